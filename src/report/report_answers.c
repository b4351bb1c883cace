/* report/report_answers.c -- the model's answers: questions with their pictures, the latest answer,
 * its score, and answers at earlier steps. Answers of two runs to the same question are shown together. */
#include "report/report_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { QUESTIONS = 60 };

typedef struct Question {
    const Answer *by[REPORT_RUNS];
} Question; /* NULL: the run has no such question */

static const AnswerFile *latest(const ReportRun *run)
{
    return run->answer_files ? &run->answers[run->answer_files - 1] : NULL;
}

static bool same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static bool same_question(const Answer *a, const Answer *b)
{
    if (strcmp(a->question, b->question) || !same_text(a->expected, b->expected)) return false;
    if (a->images != b->images) return false;
    for (int i = 0; i < a->images; i++)
        if (strcmp(a->image[i], b->image[i])) return false;
    return true;
}

static const Answer *question_answer(const Question *c) { return c->by[0] ? c->by[0] : c->by[1]; }

/* Fills questions with the questions of each run's latest file; *all counts those beyond `most` too. */
static int collect_questions(Question *question, int most, const Report *r, int64_t *all)
{
    int n = 0;
    *all = 0;
    for (int i = 0; i < r->n; i++) {
        const AnswerFile *f = latest(r->run[i]);
        for (int k = 0; f && k < f->n; k++) {
            int c = 0;
            while (c < n && (question[c].by[i] || !same_question(question_answer(&question[c]), &f->at[k])))
                c++;
            *all += c == n;
            if (c == most) continue;
            if (c == n) question[n++] = (Question){ 0 };
            question[c].by[i] = &f->at[k];
        }
    }
    return n;
}

static void say_mark(Json *rich, int correct)
{
    if (correct < 0) return;
    page_say(rich, correct ? "verdict right-ink" : "verdict wrong-ink", "%s",
             correct ? "\xe2\x9c\x93" : "\xe2\x9c\x97");
}

static Json *answer_json(const Report *r, const Answer *a, int run)
{
    Json *mark = json_array();
    say_letter(r, mark, run);
    say_mark(mark, a->correct);
    return json_pack("{s:o, s:o}", "mark", mark, "text", page_string(a->answer));
}

static const Answer *find_same(const AnswerFile *f, const Answer *a)
{
    for (int i = 0; i < f->n; i++)
        if (same_question(&f->at[i], a)) return &f->at[i];
    return NULL;
}

static void add_earlier(Json *table, const Report *r, const Question *c, int run)
{
    for (int f = 0; c->by[run] && f < r->run[run]->answer_files - 1; f++) {
        const AnswerFile *file = &r->run[run]->answers[f];
        const Answer *was = find_same(file, c->by[run]);
        if (!was) continue;
        Json *row = table_row(table), *mark = json_array();
        say_mark(mark, was->correct);
        json_array_append_new(row, page_rich(NULL, "%s%s", two(r) ? (run ? "B " : "A ") : "step ",
                                             WHOLE((double)file->step)));
        json_array_append_new(row, mark);
        json_array_append_new(row, page_string(was->answer));
    }
}

static Json *earlier_table(const Report *r, const Question *c)
{
    static const char *const columns[] = { "when ", "- ", "answer-text " };
    Json *table = block_table(columns, 3, "Earlier answers");
    for (int i = 0; i < r->n; i++) add_earlier(table, r, c, i);
    return table;
}

static Json *question_pictures(Report *r, const Answer *a)
{
    Json *list = json_array();
    for (int i = 0; i < a->images; i++) {
        char alt[48];
        snprintf(alt, sizeof alt, "picture %d of %d", i + 1, a->images);
        json_array_append_new(list, picture_json(r, a->folder, a->image[i], alt));
    }
    return list;
}

static Json *question_json(Report *r, const Question *c)
{
    const Answer *a = question_answer(c);
    int wrong = 0, right = 0;
    Json *answers = json_array();
    for (int i = 0; i < r->n; i++) {
        if (!c->by[i]) continue;
        wrong += c->by[i]->correct == 0, right += c->by[i]->correct == 1;
        json_array_append_new(answers, answer_json(r, c->by[i], i));
    }
    bool expected = a->expected && (wrong || !right);
    r->counts.questions++;
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "class",
                     wrong   ? "wrong"
                     : right ? "right"
                             : "",
                     "pictures", question_pictures(r, a), "channel",
                     page_string(a->channel ? a->channel : ""), "question", page_string(a->question),
                     "answers", answers, "expected", expected ? page_string(a->expected) : json_null(),
                     "earlier", earlier_table(r, c));
}

static void add_scores(Report *r)
{
    Json *b = block_text("meta wide", "%s", ""), *text = json_object_get(b, "text");
    for (int i = 0; i < r->n; i++) {
        const AnswerFile *f = latest(r->run[i]);
        if (i) page_say(text, NULL, " \xc2\xa0 ");
        say_letter(r, text, i);
        if (!f) { page_say(text, NULL, "no samples"); continue; }
        page_say(text, NULL, "at step "), page_say(text, "b", "%s", WHOLE((double)f->step));
        if (!f->scored) continue;
        page_say(text, NULL, ": "), page_say(text, "b", "%" PRId64 " of %" PRId64, f->right, f->scored);
        page_say(text, NULL, " right");
    }
    page_add(&r->page, NULL, b);
}

void part_answers(Report *r)
{
    Question question[QUESTIONS];
    int64_t all;
    int n = collect_questions(question, QUESTIONS, r, &all);
    page_section(&r->page, "answers", "Answers");
    if (!n)
        return page_add(&r->page, NULL,
                        block_text("empty wide", "No samples/step-N.jsonl: no answers to show."));
    add_scores(r);
    Json *b = block_open("answers"), *list = block_list(b, "questions");
    for (int i = 0; i < n; i++) page_add(&r->page, list, question_json(r, &question[i]));
    page_add(&r->page, NULL, b);
    if (all > n)
        page_add(&r->page, NULL, block_text("note wide", "%d of %" PRId64 " questions are shown.", n, all));
}
