/* comm/comm_mpi.h -- the two files of the MPI transport: comm_mpi.c opens and closes, comm_mpi_calls.c moves
 * tensors.
 *
 * A call is an MpiJob: what is sent to and received from each member, in rounds of at most `chunk` bytes a
 * member. Host memory that is not reduced goes straight from and to the caller's buffers, in rounds of 64
 * MiB, so that the watchdog sees a slow network make progress. Reductions, and all device memory, pass
 * through staging memory on the host in small rounds. A rank that waits for one job progresses all its jobs,
 * so joins may come in any order. */
#ifndef COMM_COMM_MPI_H
#define COMM_COMM_MPI_H

#include "comm/heartbeat.h"
#include "comm/transport.h"

#include <mpi.h>

/* Open MPI's library, loaded at run time: a build needs its headers, and a machine without the library runs
 * everything else. LIB(name without MPI_, parameters) */
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

/* Staging memory on the host, used by one job at a time in the order they were started, the same on all
 * ranks. */
typedef struct MpiStaging {
    char   *send, *recv;              /* (STAGING_BYTES) each, mapped at the first use */
    int64_t turns, served;            /* jobs that were given a turn; jobs that have finished */
} MpiStaging;

typedef struct MpiJob {
    struct MpiJob *next;              /* in the list of started jobs */
    Comm       *comm;
    CommCall    call;
    MpiStaging *staging;              /* NULL: the caller's buffers are used directly */
    int64_t     turn;
    int         tag, phase, round, rounds, reqs;
    bool        posted, done;
    bool        sums;                 /* this phase adds the received parts */
    int64_t     chunk;                /* bytes per member and round */
    char       *to;                   /* destination of sums */
    int64_t    *send_at, *send_n, *recv_at, *recv_n;     /* (size) byte ranges of in and out, by member */
    const void **part;                /* (size) parts that are summed */
    MPI_Request *req;                 /* (2 size) */
} MpiJob;

typedef struct Mpi {                  /* shared by the groups of a world */
    MpiLibrary lib;
    MpiJob    *jobs;                  /* started and not done, oldest first */
    Heartbeat *heartbeat;
    bool       initialized;           /* this transport called MPI_Init and calls MPI_Finalize */
} Mpi;

typedef struct MpiGroup {             /* priv of a Comm */
    MPI_Comm    comm;                 /* NULL: not created yet */
    Mpi        *mpi;
    MpiJob      job[COMM_TICKETS];
    MpiStaging  staging;              /* for collectives */
    MpiStaging *send_staging, *recv_staging;    /* (size) for messages of device memory to and from members */
    int64_t     calls, *sent, *got;   /* numbers that become tags: collectives; (size) sends and receives */
} MpiGroup;

static inline MpiGroup *mpi_of(const Comm *c) { return (MpiGroup *)c->priv; }

void        mpi_start(Comm *c, int slot, const CommCall *call);
void        mpi_join(Comm *c, int slot);
bool        mpi_progress(Mpi *m);                        /* progresses all jobs; whether any did */
void        mpi_idle(int *idle);                         /* yields the core after no job progressed */
void        mpi_group_free(MpiGroup *g, Comm *c);
MUST Status mpi_check(const MpiLibrary *l, int code, const char *what);

#endif
