/* comm/connection.h -- small messages over TCP between the heartbeat threads of ranks.
 * For heartbeat.c alone. */
#ifndef COMM_CONNECTION_H
#define COMM_CONNECTION_H

#include "comm/heartbeat.h"

typedef enum {
    MSG_HELLO,        /* a rank connects: the key, then its host and process */
    MSG_WELCOME,      /* rank 0 accepts it: host and process of rank 0 */
    MSG_PING,         /* to rank 0 with a RankProgress */
    MSG_GOODBYE,      /* the sender leaves the run in good order */
    MSG_PEER_LEFT,    /* rank `about` has left in good order */
    MSG_ALL_LEFT,     /* every rank has */
    MSG_ABORT,        /* the sender aborts; the text says why */
    MSG_ABORT_ACK,    /* rank 0 has received that */
    MSG_FAILED,       /* the sender's device has failed; the text says how */
    MSG_END,          /* every rank exits; the text says why */
    MSG_END_OF_HANG,  /* the same, and leaves a record of its last calls */
    MSG_END_OF_SAVE,  /* the same, after a save in progress if that is soon done */
    MSG_STATE_QUERY,  /* what does the rank do? */
    MSG_STATE_REPLY,  /* a RankState */
    MSG_KINDS
} MessageKind;

enum { MESSAGE_TEXT = 3000 };

typedef struct Message { int kind, about, bytes; char text[MESSAGE_TEXT + 1]; } Message;   /* 0-terminated */

typedef struct Connection {
    int     fd;                        /* -1: not connected */
    bool    left;                      /* the peer has sent MSG_GOODBYE */
    double  last_message;              /* clock_now() of the last message from the peer */
    char    identity[160];             /* "host a, process 12" */
    size_t  buffered;                  /* bytes in `in` */
    uint8_t in[3 * 4 + MESSAGE_TEXT];
} Connection;

/* Opens the listening socket of rank 0 and sets all of `endpoint` but the key; -1 on failure. local: on the
 * loopback interface alone. */
int  connection_listen(HeartbeatEndpoint *endpoint, bool local);
int  connection_connect(const HeartbeatEndpoint *endpoint, int address, int wait_ms);    /* -1: no answer */
int  connection_accept(int listener);
void connection_close(Connection *c);

/* Sends a message, waiting at most wait_ms while the socket's buffer is full. false: the connection is
 * broken. With wait_ms = 0 a message that would block is skipped. */
bool connection_send(Connection *c, MessageKind kind, int about, const void *text, int bytes, int wait_ms);
/* 1: a message; 0: none yet; -1: the peer has closed the connection or sent something
 * invalid. Never waits. */
int  connection_receive(Connection *c, Message *m);

#endif
