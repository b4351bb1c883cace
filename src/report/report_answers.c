/* report/report_answers.c -- what the model says: a card per question with its pictures, the latest answer,
 * whether it is right, and what was answered at earlier steps. Two runs answer on the same card. */
#include "report/report_html.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CARDS = 60, LONG_TEXT = 280 };

typedef struct Card { const Sample *by[REPORT_RUNS]; } Card;          /* NULL: that run was not asked */

static const SampleFile *latest(const Run *run)
{
    return run->sample_files ? &run->samples[run->sample_files - 1] : NULL;
}

static bool same_text(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static bool same_question(const Sample *a, const Sample *b)
{
    if (strcmp(a->question, b->question) || !same_text(a->expected, b->expected)) return false;
    if (a->images != b->images) return false;
    for (int i = 0; i < a->images; i++)
        if (strcmp(a->image[i], b->image[i])) return false;
    return true;
}

static const Sample *card_sample(const Card *c) { return c->by[0] ? c->by[0] : c->by[1]; }

/* Questions of the latest file of each run; a question that both were asked is one card. */
static int deal(Card *card, int most, const Runs *r, int64_t *all)
{
    int n = 0;
    *all = 0;
    for (int i = 0; i < r->n; i++) {
        const SampleFile *f = latest(r->at[i]);
        for (int k = 0; f && k < f->n; k++) {
            int c = 0;
            while (c < n && (card[c].by[i] || !same_question(card_sample(&card[c]), &f->at[k]))) c++;
            *all += c == n;
            if (c == most) continue;
            if (c == n) card[n++] = (Card){ 0 };
            card[c].by[i] = &f->at[k];
        }
    }
    return n;
}

static void put_verdict(Html *h, int correct)
{
    if (correct < 0) return;
    html_put(h, correct ? "<span class='verdict right-ink' role='img' aria-label='right'>\xe2\x9c\x93"
                        : "<span class='verdict wrong-ink' role='img' aria-label='wrong'>\xe2\x9c\x97");
    html_put(h, "</span>");
}

static void put_pictures(Html *h, const Sample *s)
{
    if (!s->images) return;
    html_put(h, "<div class='pics'>");
    for (int i = 0; i < s->images; i++) {
        char alt[48];
        snprintf(alt, sizeof alt, "picture %d of %d", i + 1, s->images);
        picture_put(h, s->folder, s->image[i], alt);
    }
    html_put(h, "</div>");
}

static void put_answer(Html *h, const Sample *s, int which, bool letter)
{
    html_put(h, "<p class='a'>");
    if (letter) html_letter(h, which);
    put_verdict(h, s->correct);
    html_fmt(h, "<span dir='auto'%s>", strlen(s->answer) > LONG_TEXT ? " class='long'" : "");
    if (*s->answer) html_text(h, s->answer);
    else            html_put(h, "<small class='note'>(nothing)</small>");
    html_put(h, "</span></p>");
}

static const Sample *find_same(const SampleFile *f, const Sample *s)
{
    for (int i = 0; i < f->n; i++)
        if (same_question(&f->at[i], s)) return &f->at[i];
    return NULL;
}

/* The way to the latest answer. */
static void put_history(Html *h, const Runs *r, const Card *c)
{
    bool open = false;
    for (int i = 0; i < r->n; i++)
        for (int f = 0; c->by[i] && f < r->at[i]->sample_files - 1; f++) {
            const SampleFile *file = &r->at[i]->samples[f];
            const Sample *was = find_same(file, c->by[i]);
            if (!was) continue;
            if (!open) html_put(h, "<details><summary>Earlier answers</summary><table class='was'>");
            open = true;
            html_put(h, two(r) ? (i ? "<tr><td>B " : "<tr><td>A ") : "<tr><td>step ");
            html_fmt(h, "%s</td><td>", WHOLE((double)file->step));
            put_verdict(h, was->correct);
            html_around(h, "</td><td dir='auto'>", was->answer, "</td></tr>");
        }
    if (open) html_put(h, "</table></details>");
}

static void put_card(Html *h, const Runs *r, const Card *c)
{
    const Sample *s = card_sample(c);
    int wrong = 0, right = 0;
    for (int i = 0; i < r->n; i++)
        if (c->by[i]) wrong += c->by[i]->correct == 0, right += c->by[i]->correct == 1;
    html_fmt(h, "<article class='card answer %s'>", wrong ? "wrong" : right ? "right" : "");
    put_pictures(h, s);
    html_put(h, "<div class='body'>");
    if (s->channel && *s->channel) html_around(h, "<p class='channel'>", s->channel, "</p>");
    html_put(h, "<p dir='auto' ");
    html_around(h, strlen(s->question) > LONG_TEXT ? "class='q long'>" : "class='q'>", s->question, "</p>");
    for (int i = 0; i < r->n; i++)
        if (c->by[i]) put_answer(h, c->by[i], i, two(r));
    if (s->expected && (wrong || !right))
        html_around(h, "<p class='expected' dir='auto'>expected: ", s->expected, "</p>");
    put_history(h, r, c);
    html_put(h, "</div></article>\n");
    h->counts.cards++;
}

static void put_scores(Html *h, const Runs *r)
{
    html_put(h, "<p class='meta'>");
    for (int i = 0; i < r->n; i++) {
        const SampleFile *f = latest(r->at[i]);
        if (i) html_put(h, " \xc2\xa0 ");
        if (two(r)) html_letter(h, i);
        if (!f) { html_put(h, "no samples"); continue; }
        html_fmt(h, "at step <b>%s</b>", WHOLE((double)f->step));
        if (f->judged) html_fmt(h, ": <b>%lld of %lld</b> right", (long long)f->right, (long long)f->judged);
    }
    html_put(h, "</p>");
}

static void put_picker(Html *h)
{
    static const char *const ways[] = { "all", "wrong", "right" };
    html_put(h, "<div class='pick' role='radiogroup' aria-label='which answers'>");
    for (int i = 0; i < 3; i++)
        html_fmt(h, "<label><input type='radio' name='pick' id='pick-%s'%s>%s</label>", ways[i],
                 i ? "" : " checked", ways[i]);
    html_put(h, "</div>");
}

void part_answers(Html *h, const Runs *r)
{
    Card card[CARDS];
    int64_t all;
    int n = deal(card, CARDS, r, &all);
    html_put(h, "<section id='answers'><h2>Answers</h2>");
    if (!n) {
        html_put(h, "<p class='empty'>No samples/step-N.jsonl: no answers to show.</p></section>\n");
        return;
    }
    put_scores(h, r);
    put_picker(h);
    html_put(h, "<div class='cards'>\n");
    for (int i = 0; i < n; i++) put_card(h, r, &card[i]);
    html_put(h, "</div>");
    if (all > n) html_fmt(h, "<p class='note'>%d of %" PRId64 " questions are shown.</p>", n, all);
    html_put(h, "</section>\n");
}
