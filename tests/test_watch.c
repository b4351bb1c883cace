/* What the watchdog sees: marks of the main thread and of threads that work for it, calls on a device in any
 * order, which members have arrived at a call, and the record that a hang leaves. */
#include "base/clock.h"
#include "base/cond.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "comm/hang_file.h"
#include "comm/transport.h"
#include "lab.h"

#include <unistd.h>

/* ---- a transport whose calls are as far as the test says ---- */

static CallProgress progress[COMM_RECENT];
static Status       device_error;

static CallProgress scripted(Comm *c, int64_t call) { return progress[call % COMM_RECENT]; }
static Status scripted_error(Comm *c) { return device_error ? fail(device_error, "the link is down") : OK; }

static const Transport transport_scripted = { .name = "scripted", .call_progress = scripted,
                                              .async_error = scripted_error };

typedef struct Rank { Comm *comm; Watch watch; } Rank;

static Rank rank_open(int members, int group)
{
    Rank r = { .comm = comm_new(&transport_scripted, NULL, 0, members) };
    r.comm->group = group, r.comm->trace->comms = r.comm;
    for (int i = 0; i < members; i++) r.comm->world[i] = 10 + i;
    for (int i = 0; i < COMM_RECENT; i++) progress[i] = CALL_QUEUED;
    device_error = OK;
    watch_open(&r.watch, r.comm->trace);
    return r;
}

static void start(Rank *r, const char *op, int peer, int64_t seq)
{
    Comm *c = r->comm;
    TraceCall call = { .op = op, .group = c->group, .peer = peer, .seq = seq, .bytes = 8 };
    int64_t at = trace_begin(c->trace, call);
    c->recent[c->started++ % COMM_RECENT] = at;
    if (!peer) c->seq = seq + 1;
    if (peer && !strcmp(op, "send")) c->sent[peer - 11] = seq + 1;
    if (peer && !strcmp(op, "recv")) c->received[peer - 11] = seq + 1;
    trace_started(c->trace, at);
}

static RankState state_after(Rank *r, double seconds)
{
    RankState s;
    double now = clock_now();
    watch_poll_device(&r->watch);
    watch_sample(&r->watch, now);
    watch_state(&r->watch, now + seconds, &s);
    return s;
}

static void calls_on_a_device(void)
{
    Rank r = rank_open(2, GR_tp);
    start(&r, "all_gather", 0, 0);
    start(&r, "all_reduce", 0, 1);
    RankState s = state_after(&r, 30);
    EXPECT(s.progress.doing == RANK_COMPUTES && s.arrived[GR_tp] == 0, "queued: %s", s.line);
    EXPECT(strstr(s.line, "computes for 30.0 s before all_gather 0 of tp (8 bytes"), "%s", s.line);
    EXPECT(s.progress.idle > 29 && s.progress.idle < 31, "idle for %g s", s.progress.idle);
    progress[0] = CALL_RUNNING;
    s = state_after(&r, 40);
    EXPECT(s.progress.doing == RANK_WAITS && s.seq == 0 && s.arrived[GR_tp] == 1, "running: %s", s.line);
    EXPECT(s.members == 2 && s.member[1] == 11, "%d members", s.members);
    EXPECT(strstr(s.line, "waits 40.0 s in all_gather 0 of tp (8 bytes"), "%s", s.line);
    double before = r.watch.changed;
    progress[0] = CALL_FINISHED;
    s = state_after(&r, 50);
    EXPECT(s.progress.doing == RANK_COMPUTES && r.watch.changed > before, "a call that is done is progress");
    before = r.watch.changed;
    state_after(&r, 0);
    EXPECT(r.watch.changed == before, "and counts once");
    progress[1] = CALL_FINISHED;
    s = state_after(&r, 0);
    EXPECT(s.arrived[GR_tp] == 2 && r.comm->finished == 2, "all are done: %lld", (long long)r.comm->finished);
    EXPECT(strstr(s.line, ", after all_reduce 1 of tp (8 bytes"), "%s", s.line);
    comm_free(r.comm);
}

/* The world over a device transport goes on with the numbers of the host world that opened it. */
static void one_numbering_with_the_companion(void)
{
    static const Transport plain = { .name = "plain" };
    Rank r = rank_open(2, GR_world);
    Comm host = { .transport = &plain, .size = 2, .group = GR_world, .seq = 5, .world = (int[]){ 10, 11 },
                  .sent = (int64_t[2]){ 0 }, .received = (int64_t[2]){ 0 } };
    r.comm->next = &host;
    RankState waits = { .waits = 5, .op = "all_reduce", .group = GR_world, .seq = 5 };
    start(&r, "all_reduce", 0, 5);
    RankState s = state_after(&r, 1);
    EXPECT(!watch_has_arrived(&s, &waits, 0), "the device has not reached call 5: %s", s.line);
    progress[0] = CALL_RUNNING;
    s = state_after(&r, 1);
    EXPECT(watch_has_arrived(&s, &waits, 0), "now it has: %s", s.line);
    r.comm->next = NULL;
    comm_free(r.comm);
}

/* A send waits for compute, which waits for a receive that was posted later, on a stream of its own. */
static void calls_out_of_order(void)
{
    Rank r = rank_open(2, GR_pp);
    start(&r, "send", 12, 4);
    start(&r, "recv", 12, 7);
    progress[1] = CALL_RUNNING;
    RankState s = state_after(&r, 9);
    EXPECT(s.progress.doing == RANK_WAITS && s.peer == 12 && s.seq == 7, "%s", s.line);
    EXPECT(strstr(s.line, "recv 7 from rank 11 of pp"), "%s", s.line);
    double before = r.watch.changed;
    progress[0] = CALL_FINISHED;
    state_after(&r, 0);
    EXPECT(r.watch.changed > before && r.comm->finished == 1, "the send is done before the receive");
    for (int i = 0; i < 2000; i++) start(&r, "send", 12, 5 + i);
    state_after(&r, 0);
    EXPECT(r.comm->finished == 2002 - COMM_RECENT, "calls long ago count as done: %lld",
           (long long)r.comm->finished);
    comm_free(r.comm);
}

/* The host has started all calls of a long micro-batch; the device waits in an early one. */
static void a_call_far_behind_the_host(void)
{
    Rank r = rank_open(2, GR_dp);
    for (int i = 0; i < 900; i++) start(&r, "all_gather", 0, i);
    for (int i = 0; i < 7; i++) progress[i] = CALL_FINISHED;
    progress[7] = CALL_RUNNING;
    RankState s = state_after(&r, 12);
    EXPECT(s.progress.doing == RANK_WAITS && s.seq == 7 && s.arrived[GR_dp] == 8, "%s", s.line);
    comm_free(r.comm);
}

/* The launch queue of a device that computes is full: the host is inside a call and waits for no rank. */
static void a_host_that_the_device_holds_up(void)
{
    Rank r = rank_open(2, GR_tp);
    start(&r, "all_gather", 0, 0);
    int64_t at = trace_begin(r.comm->trace, (TraceCall){ .op = "all_reduce", .group = GR_tp, .seq = 1 });
    RankState s = state_after(&r, 20);
    EXPECT(s.progress.doing == RANK_COMPUTES, "call 0 is queued: %s", s.line);
    progress[0] = CALL_RUNNING;
    s = state_after(&r, 20);
    EXPECT(s.progress.doing == RANK_WAITS && s.seq == 0, "the device waits in call 0: %s", s.line);
    progress[0] = CALL_FINISHED;
    s = state_after(&r, 20);
    EXPECT(s.progress.doing == RANK_WAITS && s.seq == 1, "the library blocks in call 1: %s", s.line);
    trace_end(r.comm->trace, at, 0);
    comm_free(r.comm);
}

static void marks_of_a_device_are_progress(void)
{
    Rank     r = rank_open(2, GR_tp);
    uint32_t word = 41;
    Backend  be = { .device = &device_cpu, .progress = &word };
    comm_bind(r.comm, &be);
    state_after(&r, 0);
    double before = r.watch.changed;
    RankState s = state_after(&r, 15);
    EXPECT(s.progress.idle > 14 && r.watch.changed == before, "the device stands still: %g s idle",
           s.progress.idle);
    word++;
    state_after(&r, 0);
    EXPECT(r.watch.changed > before, "it has come to a layer");
    comm_bind(r.comm, NULL);
    EXPECT(!r.comm->trace->device_word && !r.comm->be, "the word may go away");
    state_after(&r, 0);
    comm_free(r.comm);
}

static void errors_of_a_device(void)
{
    Rank r = rank_open(2, GR_dp);
    state_after(&r, 0);
    EXPECT(!r.watch.device_error, "no error yet");
    device_error = E_COMM;
    state_after(&r, 0);
    EXPECT(r.watch.device_error == E_COMM && strstr(r.watch.device_text, "the link is down"), "%s",
           r.watch.device_text);
    comm_free(r.comm);
}

static void members_arrive(void)
{
    RankState waits = { .waits = 5, .op = "all_reduce", .group = GR_tp, .seq = 7, .members = 2,
                        .member = { 3, 4 } };
    RankState other = { .arrived[GR_tp] = 7 };
    EXPECT(!watch_has_arrived(&other, &waits, 3), "7 calls are the numbers 0 to 6");
    other.arrived[GR_tp] = 8;
    EXPECT(watch_has_arrived(&other, &waits, 3), "number 7 is reached");
    EXPECT(watch_is_member(&waits, 4) && !watch_is_member(&waits, 5), "members");
    EXPECT(watch_knows_members(&waits) && !watch_knows_members(&(RankState){ .waits = 5 }), "known members");

    RankState recv = { .waits = 5, .op = "recv", .group = GR_pp, .peer = 1 + 6, .seq = 2 };
    RankState peer = { .messages = 2, .message = { { GR_pp, 9, 5, 5 }, { GR_pp, 3, 2, 9 } } };
    EXPECT(!watch_has_arrived(&peer, &recv, 3), "rank 6 has sent messages 0 and 1 to rank 3");
    peer.message[1].sent = 3;
    EXPECT(watch_has_arrived(&peer, &recv, 3), "and now 2");
    EXPECT(watch_is_member(&recv, 6) && !watch_is_member(&recv, 3), "a message has one other side");
}

/* ---- the main thread and those that work for it ---- */

static void a_thread_that_does_not_poll_is_stopped(void)
{
    Rank r = rank_open(2, GR_tp);
    static const Transport plain = { .name = "plain" };
    r.comm->transport = &plain;
    TraceCall call = { .op = "all_reduce", .group = GR_tp };
    int64_t at = trace_begin(r.comm->trace, call);
    RankState s = state_after(&r, 20);
    EXPECT(s.progress.doing == RANK_COMPUTES, "starting a call waits for nothing: %s", s.line);
    activity_poll_begin();
    s = state_after(&r, 0.5);
    EXPECT(s.progress.doing == RANK_WAITS, "%s", s.line);
    s = state_after(&r, 20);
    EXPECT(s.progress.doing == RANK_STOPPED && s.progress.idle > 19, "%s", s.line);
    EXPECT(strstr(s.line, "is stopped for 20.0 s inside all_reduce 0 of tp"), "%s", s.line);
    activity_poll_end();
    trace_end(r.comm->trace, at, 0);
    activity_slow_begin();
    s = state_after(&r, 0);
    EXPECT(s.progress.slow && s.progress.doing == RANK_COMPUTES, "a system call that may take long");
    activity_slow_end();
    comm_free(r.comm);
}

static Status mark_often(void *arg, int64_t i)
{
    for (int k = 0; k < 100; k++) activity_mark();
    return OK;
}

static void workers_mark_for_the_caller(void)
{
    ThreadPool pool;
    EXPECT_OK(thread_pool_open(&pool, 3));
    uint64_t before = activity_self()->marks;
    EXPECT_OK(thread_pool_run(&pool, 50, mark_often, NULL));
    thread_pool_close(&pool);
    EXPECT(activity_self()->marks - before >= 5000, "%llu marks",
           (unsigned long long)(activity_self()->marks - before));
}

static void *mark_for_a_while(void *others)
{
    activity_adopt(others);
    for (int i = 0; i < 10; i++) activity_mark(), usleep(20000);
    return NULL;
}

static void a_waiting_thread_marks_while_others_do(void)
{
    Activity        others = { 0 };
    pthread_t       thread;
    pthread_cond_t  cond;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint64_t        seen = 0, before;
    cond_open(&cond);
    pthread_mutex_lock(&lock);
    pthread_create(&thread, NULL, mark_for_a_while, &others);
    before = activity_self()->marks;
    activity_wait(&cond, &lock, &others, &seen);
    EXPECT(activity_self()->marks > before && seen > 0, "others have marked");
    pthread_join(thread, NULL);
    before = activity_self()->marks;
    activity_wait(&cond, &lock, &others, &seen);
    EXPECT(activity_self()->marks == before, "others have ended");
    pthread_mutex_unlock(&lock);
}

/* The threads that are waited for are in a slow system call; the waiting thread freezes. */
static void a_frozen_wait_is_slow_for_seconds_alone(void)
{
    Activity        others = { .slow = 1 };
    pthread_cond_t  cond;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint64_t        seen = 0;
    double          now = clock_now();
    cond_open(&cond);
    pthread_mutex_lock(&lock);
    activity_wait(&cond, &lock, &others, &seen);
    pthread_mutex_unlock(&lock);
    EXPECT(activity_is_slow(activity_self(), now + 1), "as slow as the others");
    EXPECT(!activity_is_slow(activity_self(), now + 60), "unless it does not come back");
}

static void *hold_for_ever(void *mutex)
{
    pthread_mutex_lock(mutex);
    return NULL;
}

/* The watchdog reads a trace whose writer is stopped with the lock held. */
static void a_held_lock_blocks_no_reader(void)
{
    Rank r = rank_open(2, GR_tp);
    pthread_t thread;
    char line[300];
    start(&r, "all_gather", 0, 3);
    pthread_create(&thread, NULL, hold_for_ever, &r.comm->trace->lock);
    pthread_join(thread, NULL);
    double from = clock_now();
    trace_describe(r.comm->trace, line, sizeof line);
    EXPECT(strstr(line, "all_gather 3 of tp"), "%s", line);
    EXPECT(clock_now() - from < 2, "%g s", clock_now() - from);
    comm_free(r.comm);
}

/* ---- the record ---- */

static void the_record_is_json(void)
{
    char folder[] = "/tmp/treb-watch-XXXXXX", path[200];
    Rank r = rank_open(3, GR_ep);
    Json *o = NULL;
    EXPECT(mkdtemp(folder) != NULL, "%s", folder);
    activity_phase("step", 12);
    activity_micro_batch(3, "forward");
    activity_layer(7);
    for (int i = 0; i < 100; i++) {
        start(&r, "all_to_all", 0, i);
        trace_end(r.comm->trace, i, 0);
        progress[i] = i < 40 ? CALL_FINISHED : i == 40 ? CALL_RUNNING : CALL_QUEUED;
    }
    watch_poll_device(&r.watch);
    hang_file_write(folder, 2, 5, &r.watch, "rank 1 (host \"a\\b\") has\nstopped");
    activity_phase(NULL, 0);
    snprintf(path, sizeof path, "%s/hang/rank-00002.json", folder);
    EXPECT_OK(json_load(&o, path));
    const Json *calls = json_object_get(o, "calls"), *first = json_array_get(calls, 0);
    EXPECT(json_array_size(calls) == HANG_CALLS, "%zu calls", json_array_size(calls));
    EXPECT(json_integer_value(json_object_get(first, "seq")) == 40 - HANG_CALLS / 2, "around the unfinished");
    const Json *done = json_array_get(calls, HANG_CALLS / 2 - 1);
    const Json *runs = json_array_get(calls, HANG_CALLS / 2);
    EXPECT(json_is_real(json_object_get(done, "ended")), "the device has finished call 39");
    EXPECT(json_is_null(json_object_get(runs, "ended")), "call 40 is joined on the host and runs");
    EXPECT(json_integer_value(json_object_get(first, "layer")) == 7, "layer");
    const Json *members = json_object_get(json_array_get(json_object_get(o, "groups"), 0), "members");
    EXPECT(json_array_size(members) == 3, "%zu members", json_array_size(members));
    const char *place = json_string_value(json_object_get(o, "place"));
    EXPECT(place && !strcmp(place, "step 12, micro-batch 3, layer 7, forward"), "%s", place ? place : "none");
    json_decref(o);
    hang_files_remove(folder);
    EXPECT(access(path, F_OK) && !rmdir(folder), "the records are removed");
    hang_file_write("", 0, 1, &r.watch, "");
    hang_file_write("/nowhere/at/all", 0, 1, &r.watch, "");
    comm_free(r.comm);
}

int main(void)
{
    RUN(calls_on_a_device);
    RUN(one_numbering_with_the_companion);
    RUN(calls_out_of_order);
    RUN(a_call_far_behind_the_host);
    RUN(a_host_that_the_device_holds_up);
    RUN(marks_of_a_device_are_progress);
    RUN(errors_of_a_device);
    RUN(members_arrive);
    RUN(a_thread_that_does_not_poll_is_stopped);
    RUN(workers_mark_for_the_caller);
    RUN(a_waiting_thread_marks_while_others_do);
    RUN(a_frozen_wait_is_slow_for_seconds_alone);
    RUN(a_held_lock_blocks_no_reader);
    RUN(the_record_is_json);
    return lab_report();
}
