/* parallel/dispatch_chunked.c -- in how many slices of its tokens a group does a layer it has no room for.
 *
 * 2, 4, 8 … slices, from as many as the rows of the fullest member take, until each of them has room on every
 * member. A member fetches its choice once; for a number of slices it counts where the rows of each would go
 * and tells the others, CELLS slices at a time. All decide by the same numbers. One token of each member fits
 * always, so as many slices as tokens are the last that is tried.
 *
 * Told of a slice: rows for the experts of each EP rank; where members hand on what comes for their domain
 * also tokens for each EP rank and for each domain, as none may be handed more than it has room for. */
#include "parallel/dispatch.h"

enum { CELLS = 8 };

static int  ep_of(const Dispatcher *d)    { return d->n / d->etp; }
static bool hands_on(const Dispatcher *d) { return d->ops->forwards && d->domains > 1 && d->domain_size > 1; }

/* A cell: rows [EP], tokens [EP], tokens [domains]. */
static int lists(const Dispatcher *d) { return hands_on(d) ? 2 * ep_of(d) + d->domains : ep_of(d); }

size_t slices_counted(const Dispatcher *d) { return CELLS * (size_t)lists(d); }

/* Whether a token has an expert with one of `n` members. */
static bool wants(const Dispatcher *d, const int32_t *choice, int first, int n)
{
    for (int64_t k = 0; k < d->conf.shape.K; k++) {
        int at = choice[k] < 0 ? -d->etp : (int)(choice[k] / d->local_experts) * d->etp;
        if (at < first + n && at + d->etp > first) return true;
    }
    return false;
}

static void count_token(const Dispatcher *d, int32_t *cell, const int32_t *choice)
{
    int ep = ep_of(d);
    for (int64_t k = 0; k < d->conf.shape.K; k++)
        if (choice[k] >= 0) cell[choice[k] / d->local_experts]++;
    if (!hands_on(d)) return;
    for (int r = 0; r < ep; r++)       cell[ep + r] += wants(d, choice, r * d->etp, d->etp);
    for (int g = 0; g < d->domains; g++) cell[2 * ep + g] += wants(d, choice, g * d->domain_size, d->domain_size);
}

static int32_t *told(const Dispatcher *d, int member, int i)
{
    return d->chunk_counts + (size_t)(member + 1) * slices_counted(d) + i * lists(d);
}

/* Rows that the fullest member would have of cell i. */
static int64_t fullest(const Dispatcher *d, int i)
{
    int64_t most = 0;
    for (int to = 0; to < ep_of(d); to++) {
        int64_t rows = 0;
        for (int s = 0; s < d->n; s++) rows += told(d, s, i)[to];
        if (rows > most) most = rows;
    }
    for (int me = 0; me < d->n && hands_on(d); me++) {
        int64_t came = 0, sent = 0;
        for (int s = me % d->domain_size; s < d->n; s += d->domain_size) {         /* members of its place */
            const int32_t *cell = told(d, s, i);
            came += cell[2 * ep_of(d) + me / d->domain_size];
            for (int q = me / d->domain_size * d->domain_size, last = q + d->domain_size; q < last; q++)
                sent += cell[ep_of(d) + q / d->etp];
        }
        if (came > most) most = came;
        if (sent > most) most = sent;
    }
    return most;
}

/* Counts slices [first, first + CELLS) of W here and hears of everybody's. */
static void tell(const Dispatcher *d, int64_t T, int64_t W, int64_t first)
{
    size_t n = slices_counted(d);
    for (size_t i = 0; i < n; i++) d->chunk_counts[i] = 0;
    for (int64_t w = first; w < W && w < first + CELLS; w++)
        for (int64_t t = T * w / W; t < T * (w + 1) / W; t++)
            count_token(d, d->chunk_counts + (w - first) * lists(d), d->chosen + t * d->conf.shape.K);
    comm_host_gather(d->mesh->comm[GR_etp_ep], d->chunk_counts + n, d->chunk_counts, n * sizeof *d->chunk_counts);
}

static bool room_for_each(const Dispatcher *d, int64_t T, int64_t W)
{
    for (int64_t first = 0; first < W; first += CELLS) {
        tell(d, T, W, first);
        for (int i = 0; i < CELLS; i++)
            if (fullest(d, i) > d->row_capacity) return false;
    }
    return true;
}

int64_t dispatch_token_chunks(Ctx *c, Tensor kept)
{
    Dispatcher *d = c->dispatch;
    int64_t   W = 2, most = d->conf.shape.T > 2 ? d->conf.shape.T : 2;
    REQUIRE(kept.n[0] <= d->conf.shape.T, "slices of %lld tokens", (long long)kept.n[0]);
    for (int64_t i = 0; i < t_count(kept); i++) d->chosen[i] = -1;
    backend_fetch(c->be, d->chosen, kept);
    while (W < most && W * d->row_capacity < d->max_rows) W *= 2;
    while (W < most && !room_for_each(d, kept.n[0], W)) W *= 2;
    return W < most ? W : most;
}
