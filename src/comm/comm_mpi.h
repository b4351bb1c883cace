/* comm/comm_mpi.h -- the two halves of the MPI transport: comm_mpi.c opens and closes, comm_mpi_calls.c
 * moves.
 *
 * A call is a Job: what goes to and comes from each member, in rounds of at most `chunk` bytes a member. Host
 * memory that is not summed goes straight from and to the caller's buffers, in rounds of a gigabyte because
 * MPI counts in int. What is summed, and all device memory, passes through a Lane of host memory in small
 * rounds. A rank that waits for one job works on all that it has begun, so joins may come in any order. */
#ifndef COMM_COMM_MPI_H
#define COMM_COMM_MPI_H

#include "comm/heartbeat.h"
#include "comm/transport.h"

#include <mpi.h>

/* Open MPI's library, loaded while running: a build needs its headers, a machine without it runs all the
 * rest. LIB(name without MPI_, parameters) */
#define MPI_CALLS(LIB)                                                                                   \
    LIB(Init_thread,         (int *, char ***, int, int *))                                              \
    LIB(Initialized,         (int *))                                                                    \
    LIB(Finalized,           (int *))                                                                    \
    LIB(Finalize,            (void))                                                                     \
    LIB(Error_string,        (int, char *, int *))                                                       \
    LIB(Get_library_version, (char *, int *))                                                            \
    LIB(Comm_rank,           (MPI_Comm, int *))                                                          \
    LIB(Comm_size,           (MPI_Comm, int *))                                                          \
    LIB(Comm_dup,            (MPI_Comm, MPI_Comm *))                                                     \
    LIB(Comm_free,           (MPI_Comm *))                                                               \
    LIB(Comm_group,          (MPI_Comm, MPI_Group *))                                                    \
    LIB(Comm_create_group,   (MPI_Comm, MPI_Group, int, MPI_Comm *))                                     \
    LIB(Comm_set_errhandler, (MPI_Comm, MPI_Errhandler))                                                 \
    LIB(Group_incl,          (MPI_Group, int, const int *, MPI_Group *))                                 \
    LIB(Group_free,          (MPI_Group *))                                                              \
    LIB(Irecv,               (void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *))             \
    LIB(Isend,               (const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *))       \
    LIB(Iallgather,          (const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm,      \
                              MPI_Request *))                                                            \
    LIB(Test,                (MPI_Request *, int *, MPI_Status *))                                       \
    LIB(Testall,             (int, MPI_Request *, int *, MPI_Status *))

typedef struct MpiLibrary {
#define LIB(name, params) int (*name) params;
    MPI_CALLS(LIB)
#undef LIB
    MPI_Comm       world;
    MPI_Datatype   byte;
    MPI_Errhandler errors_return;
} MpiLibrary;

MUST Status mpi_load(MpiLibrary *l);

/* Staging memory, used by one job at a time in the order they were begun: the same order on all ranks. */
typedef struct Lane {
    char   *send, *recv;              /* (LANE_BYTES) each, mapped when first wanted */
    int64_t turns, served;
} Lane;

typedef struct Job {
    struct Job *next;                 /* of all that this rank has begun */
    Comm       *comm;
    CommCall        call;
    Lane       *lane;                 /* NULL: straight */
    int64_t     turn;
    int         tag, phase, round, rounds, reqs;
    bool        posted, done;
    bool        sums;                 /* this phase adds what comes in */
    int64_t     chunk;                /* bytes of a member in a round */
    char       *to;                   /* where sums go */
    int64_t    *send_at, *send_n, *get_at, *get_n;       /* (size) bytes of in and out, by member */
    const void **part;                /* (size) what is summed */
    MPI_Request *req;                 /* (2 size) */
} Job;

typedef struct Mpi {                  /* what the groups of a world share */
    MpiLibrary lib;
    Job   *jobs;                      /* begun and not done, oldest first */
    Heartbeat *heartbeat;
    bool   ours;                      /* MPI was begun here and is ended here */
} Mpi;

typedef struct MpiGroup {             /* priv of a Comm */
    MPI_Comm comm;                    /* NULL: not made yet */
    Mpi     *mpi;
    Job      job[COMM_TICKETS];
    Lane     lane;                    /* of collectives */
    Lane    *sends, *recvs;           /* (size) of letters to and from each member; device memory alone */
    int64_t  calls, *sent, *got;      /* collectives; (size) letters */
} MpiGroup;

static inline MpiGroup *mpi_of(const Comm *c) { return (MpiGroup *)c->priv; }

void        mpi_start(Comm *c, int slot, const CommCall *call);
void        mpi_join(Comm *c, int slot);
bool        mpi_work(Mpi *m);                            /* move on whatever can; did anything? */
void        mpi_rest(int *idle);                         /* nothing could: let others have the core */
void        mpi_group_free(MpiGroup *g, Comm *c);
MUST Status mpi_check(const MpiLibrary *l, int code, const char *what);

#endif
