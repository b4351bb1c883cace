/* data/record_form.h -- brings the forms of records that users have into those that conversation_read
 * reads. */
#ifndef DATA_RECORD_FORM_H
#define DATA_RECORD_FORM_H

#include "base/json.h"

/* Changes the record in place: renames columns ("messages=dialog,images=pictures": ours=theirs), turns
 * query/response, prompt/completion, question/answer and the like into instruction/output or messages, writes
 * the roles of other projects as ours, and puts pictures that no placeholder shows in front of the first
 * question. Refused by name: what would change the meaning of the sample if it was dropped (objects,
 * audios). */
MUST Status record_form(Json *record, const char *columns);
MUST Status record_columns_check(const char *columns); /* E_CONFIG where the value of data.columns is none */

/* Keys of records that nothing reads, with the number of records that have them. */
enum { UNUSED_KEYS = 48, UNUSED_NAME = 64 };
typedef struct UnusedKeys {
    char    name[UNUSED_KEYS][UNUSED_NAME];
    int64_t count[UNUSED_KEYS], others;
    int     n;
} UnusedKeys;

/* Adds the keys of a record after record_form. template: the source of the chat template, whose words are
 * keys of messages that it may read; NULL: ChatML, which reads those that conversation_read knows. */
void unused_keys_add(UnusedKeys *u, const Json *record, const char *template);
void unused_keys_join(UnusedKeys *u, const UnusedKeys *more);
void unused_keys_text(const UnusedKeys *u, char *out, size_t cap); /* "id (64), source (2)"; "" for none */

#endif
