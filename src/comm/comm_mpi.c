/* comm/comm_mpi.c -- ranks that mpirun or srun started: opening, groups, host calls, closing.
 * comm_mpi_calls.c moves tensors, heartbeat.c detects dead ranks.
 *
 * `mpirun --oversubscribe` runs more ranks than cores: a waiting rank yields its core (mpi_yield_when_idle is
 * set unless the environment sets it). */
#ifdef TREB_MPI
#include "comm/comm_mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status mpi_load(MpiLibrary *l)
{
    void *file = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);        /* its plugins need global symbols */
    if (!file)
        return fail(E_CONFIG, "comm.kind = mpi: cannot load Open MPI (%s); install openmpi-bin", dlerror());
    const struct { void **to; const char *name; } all[] = {
#define LIB(name, params) { (void **)&l->name, "MPI_" #name },
        MPI_CALLS(LIB)
#undef LIB
        { (void **)&l->world, "ompi_mpi_comm_world" }, { (void **)&l->byte, "ompi_mpi_byte" },
        { (void **)&l->errors_return, "ompi_mpi_errors_return" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].to = dlsym(file, all[i].name)))
            return fail(E_CONFIG, "comm.kind = mpi: libmpi.so.40 has no %s: it is not Open MPI 4 or 5",
                        all[i].name);
    return OK;
}

void mpi_describe(char *out, size_t n)
{
    MpiLibrary l;
    char       text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int        len;
    if (mpi_load(&l)) { snprintf(out, n, "%s", status_text()); return; }
    l.Get_library_version(text, &len);
    text[strcspn(text, ",\n")] = 0;                          /* "Open MPI v4.1.4, package: …" */
    snprintf(out, n, "%s", text);
}

Status mpi_check(const MpiLibrary *l, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int  n;
    if (code == MPI_SUCCESS) return OK;
    l->Error_string(code, text, &n);
    return fail(E_COMM, "MPI, %s: %s", what, text);
}

/* ---- groups ---- */

static Status group_new(Comm *c, Mpi *m)
{
    size_t    n = (size_t)c->size;
    MpiGroup *g = c->priv = calloc(1, sizeof *g);
    if (!g) return fail(E_FIT, "no memory");
    g->mpi   = m;
    g->sent  = calloc(n, sizeof *g->sent);
    g->got   = calloc(n, sizeof *g->got);
    g->send_staging = calloc(n, sizeof *g->send_staging);
    g->recv_staging = calloc(n, sizeof *g->recv_staging);
    return g->sent && g->got && g->send_staging && g->recv_staging ? OK : fail(E_FIT, "no memory");
}

static Status mpi_group(Comm *world, Comm *out)
{
    const MpiLibrary *l = &mpi_of(world)->mpi->lib;
    MPI_Group all = NULL, some = NULL;
    TRY(group_new(out, mpi_of(world)->mpi));
    int bad = l->Comm_group(mpi_of(world)->comm, &all);
    if (!bad) bad = l->Group_incl(all, out->size, out->world, &some);
    if (!bad) bad = l->Comm_create_group(mpi_of(world)->comm, some, out->group, &mpi_of(out)->comm);
    if (some) l->Group_free(&some);
    if (all)  l->Group_free(&all);
    return mpi_check(l, bad, "a group of ranks");
}

/* ---- host calls ---- */

static Status wait_for_gather(Comm *c, MPI_Request *r)
{
    const MpiLibrary *l = &mpi_of(c)->mpi->lib;
    for (int done = 0, idle = 0;;) {                /* pending calls progress meanwhile */
        TRY(mpi_check(l, l->Test(r, &done, MPI_STATUS_IGNORE), "gather"));
        if (done) return OK;
        if (mpi_progress(mpi_of(c)->mpi)) idle = 0;
        else                          mpi_idle(&idle);
    }
}

static Status mpi_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    const MpiLibrary *l = &mpi_of(c)->mpi->lib;
    MPI_Request r;
    int         n = (int)bytes;
    REQUIRE(bytes <= INT_MAX, "%zu bytes in a host call", bytes);
    TRY(mpi_check(l, l->Iallgather(in, n, l->byte, out, n, l->byte, mpi_of(c)->comm, &r), "gather"));
    activity_poll_begin();
    Status st = wait_for_gather(c, &r);
    activity_poll_end();
    return st;
}

/* ---- opening ---- */

typedef struct HostId { char host[64]; uint64_t net; } HostId;   /* host name and network namespace */

static HostId host_id(void)
{
    HostId h = { 0 };
    struct stat st;
    gethostname(h.host, sizeof h.host - 1);
    if (!stat("/proc/self/ns/net", &st)) h.net = st.st_ino;
    return h;
}

/* Numbers the nodes in the order of their first ranks. *local: all ranks are on one. */
static Status find_nodes(Comm *c, int per_node, bool *local)
{
    HostId mine = host_id(), *all = calloc((size_t)c->size, sizeof *all);
    int    nodes = 0;
    if (!all) return fail(E_FIT, "no memory");
    Status st = mpi_host_gather(c, all, &mine, sizeof mine);
    for (int i = 0; i < c->size && !st; i++) {
        int j = 0;
        while (j < i && memcmp(&all[j], &all[i], sizeof *all)) j++;
        c->node[i] = j < i ? c->node[j] : nodes++;
    }
    *local = nodes == 1;
    for (int i = 0; i < c->size && per_node > 0; i++) c->node[i] = i / per_node;
    free(all);
    return st;
}

static Status begin_heartbeat(Comm *c, const CommConf *conf, bool local)
{
    Mpi *m = mpi_of(c)->mpi;
    HeartbeatEndpoint endpoint = { 0 }, *all;
    if (c->size == 1) return OK;
    TRY(heartbeat_open(&m->heartbeat, c->rank, c->size, conf, c->trace));
    Status st = c->rank == 0 ? heartbeat_listen(m->heartbeat, &endpoint, local) : OK;
    TRY(comm_agree(c, st));
    if (!(all = calloc((size_t)c->size, sizeof *all))) return fail(E_FIT, "no memory");
    st = mpi_host_gather(c, all, &endpoint, sizeof endpoint);
    if (!st) st = heartbeat_connect(m->heartbeat, &all[0]);
    free(all);
    return comm_agree(c, st);
}

static Status init_mpi(Mpi *m)
{
    int on = 0, over = 0, level;
    TRY(mpi_load(&m->lib));
    m->lib.Initialized(&on);
    m->lib.Finalized(&over);
    if (over) return fail(E_COMM, "MPI was finalized in this process and cannot be initialized again");
    if (on) return OK;
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);   /* containers forbid it, with warnings */
    m->initialized = true;
    return mpi_check(&m->lib, m->lib.Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "start");
}

static Status open_world(Comm *c, Mpi *m, const CommConf *conf)
{
    bool local = true;
    TRY(group_new(c, m));
    TRY(mpi_check(&m->lib, m->lib.Comm_dup(m->lib.world, &mpi_of(c)->comm), "start"));
    m->lib.Comm_set_errhandler(mpi_of(c)->comm, m->lib.errors_return);
    TRY(find_nodes(c, conf->per_node, &local));
    return begin_heartbeat(c, conf, local);
}

static Status mpi_open(Comm **world, const CommConf *conf)
{
    int    rank = 0, size = 1;
    Mpi   *m = calloc(1, sizeof *m);
    Status st = m ? init_mpi(m) : fail(E_FIT, "no memory");
    if (st) { free(m); return st; }
    m->lib.Comm_rank(m->lib.world, &rank);
    m->lib.Comm_size(m->lib.world, &size);
    if (size == 1 && comm_launched()) {                      /* each rank would be a world of its own */
        free(m);
        return fail(E_COMM, "several ranks were started, but Open MPI sees one; MPICH's and Intel MPI's "
                    "mpiexec cannot start them: use treb launch, Open MPI's mpirun or srun --mpi=pmix");
    }
    Comm *c = comm_new(&transport_mpi, NULL, rank, size);
    if (!c) { free(m); return fail(E_FIT, "no memory"); }
    st = open_world(c, m, conf);
    if (st && !c->priv) free(m);
    if (st) return comm_close(c), st;
    *world = c;
    return OK;
}

/* ---- closing ---- */

/* While calls are pending or after a rank has failed MPI_Finalize would wait for ever. */
static void world_close(Comm *c, Mpi *m)
{
    bool clean = !c->sticky && !c->abort_sent && !m->jobs;
    heartbeat_leave(m->heartbeat);
    if (clean && m->initialized) m->lib.Finalize();
    heartbeat_close(m->heartbeat);
    free(m);
}

/* A group that is closed while calls are pending belongs to a run that has failed: MPI may still write to the
 * buffers of its jobs, so they are not freed. */
static void mpi_close(Comm *c)
{
    MpiGroup *g = c->priv;
    if (!g) return;
    Mpi *m = g->mpi;
    bool clean = !c->pending && !c->root->sticky && !c->root->abort_sent;
    for (MpiJob **at = &m->jobs; *at && c->root != c;)
        if ((*at)->comm == c) *at = (*at)->next;
        else at = &(*at)->next;
    if (c->root == c) world_close(c, m);
    else if (clean && g->comm) m->lib.Comm_free(&g->comm);
    if (clean) mpi_group_free(g, c);
    c->priv = NULL;
}

static void mpi_abort(Comm *world, const char *why)
{
    heartbeat_abort(mpi_of(world)->mpi->heartbeat, why, world->sticky == E_COMM);
}

static void mpi_watch(Comm *world, double seconds, HeartbeatPrint *print, void *self)
{
    heartbeat_watch(mpi_of(world)->mpi->heartbeat, seconds, print, self);
}

const Transport transport_mpi = {
    .name = "mpi", .open = mpi_open, .group = mpi_group, .close = mpi_close,
    .start = mpi_start, .join = mpi_join,
    .host_gather = mpi_host_gather, .abort = mpi_abort, .watch = mpi_watch,
};
#endif
