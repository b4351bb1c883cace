/* comm/connection.h -- small notes over TCP, for heartbeat.c alone: how a connection is made and what is said on it. */
#ifndef COMM_CONNECTION_H
#define COMM_CONNECTION_H

#include "comm/heartbeat.h"

typedef enum {
    MSG_HELLO,          /* key, then host and process: who wants in */
    MSG_WELCOME,        /* host and process of rank 0 */
    MSG_PING, MSG_GOODBYE,
    MSG_PEER_LEFT,           /* rank `about` has said goodbye */
    MSG_ABORT,          /* this rank gives up, and why */
    MSG_ABORT_ACK,          /* that was understood */
    MSG_END,            /* all end, and why */
    MSG_WAIT_QUERY, MSG_WAIT_REPLY,    /* what do you wait in? */
    MSG_KINDS
} MessageKind;

enum { MESSAGE_TEXT = 600 };

typedef struct Message { int kind, about, bytes; char text[MESSAGE_TEXT + 1]; } Message;   /* text[bytes] is 0 */

typedef struct Connection {
    int     fd;                        /* -1: none */
    bool    left;                      /* it has said goodbye */
    double  heard;                     /* clock_now() of its last note */
    char    who[160];                  /* "host a, process 12" */
    size_t  have;
    uint8_t in[3 * 4 + MESSAGE_TEXT];
} Connection;

/* Rank 0's listening socket, -1 on failure; fills all of door but the key. */
int  connection_listen(HeartbeatEndpoint *door, bool local);
int  connection_connect(const HeartbeatEndpoint *door, int address, int wait_ms);      /* -1: nobody there */
int  connection_accept(int door);
void connection_close(Connection *w);

/* Write a note; waits at most wait_ms for room. false: it is of no use any more. */
bool connection_send(Connection *w, MessageKind kind, int about, const void *text, int bytes, int wait_ms);
/* 1: a note; 0: none yet; -1: the other side is gone or speaks nonsense. Never waits. */
int  connection_receive(Connection *w, Message *n);

#endif
