/* parallel/dispatch_chunked.c -- into how many token chunks a layer is cut whose rows do not fit the buffers.
 *
 * Chunk w of W is tokens [w T / W, (w + 1) T / W) of every member. W is 2, 4, 8 …, from the number that the
 * rows of the fullest member suggest, until each chunk fits on every member. A member fetches its
 * expert choices once; for a W it counts where the rows of each chunk would go and sends the counts to the
 * others, BATCH chunks at a time. All members decide by the same numbers. Chunks of one token of each member
 * always fit, so W = T is the last that is tried.
 *
 * Counts of a chunk: rows for the experts of each EP rank. A two-level dispatcher also counts tokens for each
 * EP rank and for each domain, because a member that forwards tokens has buffers of limited size too. */
#include "parallel/dispatch.h"

enum { BATCH = 8 };

static int ep_ranks(const Dispatcher *d) { return d->n / d->etp; }

static bool forwards(const Dispatcher *d)
{
    return d->row->two_level && d->domains > 1 && d->domain_size > 1;
}

/* Counts of one chunk: rows [EP], then where members forward: tokens [EP], tokens [domains]. */
static int counts_per_chunk(const Dispatcher *d)
{
    return forwards(d) ? 2 * ep_ranks(d) + d->domains : ep_ranks(d);
}

size_t chunk_counts_len(const Dispatcher *d) { return BATCH * (size_t)counts_per_chunk(d); }

/* Whether a token chose an expert of one of the members [first, first + n). */
static bool has_expert_in(const Dispatcher *d, const int32_t *chosen, int first, int n)
{
    for (int64_t k = 0; k < d->conf.shape.K; k++) {
        int at = chosen[k] < 0 ? -d->etp : (int)(chosen[k] / d->local_experts) * d->etp;
        if (at < first + n && at + d->etp > first) return true;
    }
    return false;
}

static void count_token(const Dispatcher *d, int32_t *count, const int32_t *chosen)
{
    int ep = ep_ranks(d), size = d->domain_size;
    for (int64_t k = 0; k < d->conf.shape.K; k++)
        if (chosen[k] >= 0) count[chosen[k] / d->local_experts]++;
    if (!forwards(d)) return;
    for (int r = 0; r < ep; r++)         count[ep + r] += has_expert_in(d, chosen, r * d->etp, d->etp);
    for (int g = 0; g < d->domains; g++) count[2 * ep + g] += has_expert_in(d, chosen, g * size, size);
}

/* Counts of chunk i of the batch, as `member` sent them. */
static const int32_t *counts_from(const Dispatcher *d, int member, int i)
{
    return d->chunk_counts + (size_t)(member + 1) * chunk_counts_len(d) + i * counts_per_chunk(d);
}

/* Tokens of chunk i that `member` would receive from other domains or forward within its own, the larger. */
static int64_t forwarded_rows(const Dispatcher *d, int i, int member)
{
    int     domain = member / d->domain_size, first = domain * d->domain_size;
    int64_t received = 0, sent = 0;
    for (int s = member % d->domain_size; s < d->n; s += d->domain_size) {       /* members that send to it */
        const int32_t *count = counts_from(d, s, i);
        received += count[2 * ep_ranks(d) + domain];
        for (int q = first; q < first + d->domain_size; q++) sent += count[ep_ranks(d) + q / d->etp];
    }
    return received > sent ? received : sent;
}

/* Rows of chunk i that the fullest buffer of any member would hold. */
static int64_t max_rows_of_chunk(const Dispatcher *d, int i)
{
    int64_t most = 0;
    for (int to = 0; to < ep_ranks(d); to++) {
        int64_t rows = 0;
        for (int s = 0; s < d->n; s++) rows += counts_from(d, s, i)[to];
        if (rows > most) most = rows;
    }
    for (int member = 0; member < d->n && forwards(d); member++) {
        int64_t rows = forwarded_rows(d, i, member);
        if (rows > most) most = rows;
    }
    return most;
}

/* Counts chunks [first, first + BATCH) of W on this member and gathers the counts of all members. */
static void exchange_chunk_counts(const Dispatcher *d, int64_t T, int64_t W, int64_t first)
{
    size_t n = chunk_counts_len(d);
    for (size_t i = 0; i < n; i++) d->chunk_counts[i] = 0;
    for (int64_t w = first; w < W && w < first + BATCH; w++)
        for (int64_t t = T * w / W; t < T * (w + 1) / W; t++)
            count_token(d, d->chunk_counts + (w - first) * counts_per_chunk(d),
                        d->chosen + t * d->conf.shape.K);
    comm_host_gather(d->mesh->comm[GR_etp_ep], d->chunk_counts + n, d->chunk_counts,
                     n * sizeof *d->chunk_counts);
}

static bool every_chunk_fits(const Dispatcher *d, int64_t T, int64_t W)
{
    for (int64_t first = 0; first < W; first += BATCH) {
        exchange_chunk_counts(d, T, W, first);
        for (int i = 0; i < BATCH; i++)
            if (max_rows_of_chunk(d, i) > d->row_capacity) return false;
    }
    return true;
}

int64_t dispatch_token_chunks(const Pass *c, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t     W = 2, last = d->conf.shape.T > 2 ? d->conf.shape.T : 2;
    REQUIRE(kept.n[0] <= d->conf.shape.T, "chunks of %lld tokens", (long long)kept.n[0]);
    for (int64_t i = 0; i < t_count(kept); i++) d->chosen[i] = -1;
    backend_fetch(c->be, d->chosen, kept);
    while (W < last && W * d->row_capacity < d->max_rows) W *= 2;
    while (W < last && !every_chunk_fits(d, kept.n[0], W)) W *= 2;
    return W < last ? W : last;
}
