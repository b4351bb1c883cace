/* comm/connection.h -- small notes over TCP, for pulse.c alone: how a connection is made and what is said on it. */
#ifndef COMM_CONNECTION_H
#define COMM_CONNECTION_H

#include "comm/heartbeat.h"

typedef enum {
    N_HELLO,          /* key, then host and process: who wants in */
    N_WELCOME,        /* host and process of rank 0 */
    N_BEAT, N_BYE,
    N_LEFT,           /* rank `about` has said goodbye */
    N_ABORT,          /* this rank gives up, and why */
    N_HEARD,          /* that was understood */
    N_END,            /* all end, and why */
    N_ASK, N_TELL,    /* what do you wait in? */
    N_KINDS
} NoteKind;

enum { NOTE_TEXT = 600 };

typedef struct Note { int kind, about, bytes; char text[NOTE_TEXT + 1]; } Note;   /* text[bytes] is 0 */

typedef struct Wire {
    int     fd;                        /* -1: none */
    bool    left;                      /* it has said goodbye */
    double  heard;                     /* clock_now() of its last note */
    char    who[160];                  /* "host a, process 12" */
    size_t  have;
    uint8_t in[3 * 4 + NOTE_TEXT];
} Wire;

/* Rank 0's listening socket, -1 on failure; fills all of door but the key. */
int  wire_listen(PulseDoor *door, bool local);
int  wire_connect(const PulseDoor *door, int address, int wait_ms);      /* -1: nobody there */
int  wire_accept(int door);
void wire_close(Wire *w);

/* Write a note; waits at most wait_ms for room. false: it is of no use any more. */
bool wire_put(Wire *w, NoteKind kind, int about, const void *text, int bytes, int wait_ms);
/* 1: a note; 0: none yet; -1: the other side is gone or speaks nonsense. Never waits. */
int  wire_get(Wire *w, Note *n);

#endif
