/* tests/test_stream.c -- documents packed into streams: positions, segment starts, supervised rows, patches,
 * and what is refused. */
#include "lab.h"
#include "tensor/stream.h"

static const StreamShape shape  = { .image_token = 90, .video_token = 91, .merge = 2, .patch_dim = 3 };
static const Budget      budget = { .tokens = 64, .patches = 96, .docs = 4, .supervised = 40 };

static Status add(Stream *s, int64_t n, const int32_t *ids, int64_t slices, const VisualSlice *slice)
{
    int32_t targets[64];
    for (int64_t i = 0; i < n; i++) targets[i] = i % 3 == 2 ? 7 : -1;
    Document d = { n, ids, targets, slices, slice };
    return stream_add(s, &d);
}

/* 4 text tokens, an image of 4 x 6 patches, text: the example in the model's documentation. */
static void positions(void)
{
    Stream s;
    int32_t ids[12] = { 1, 2, 3, 4, 90, 90, 90, 90, 90, 90, 5, 6 };
    VisualSlice pic = { 4, 6, NULL };
    EXPECT_OK(stream_open(&s, &shape, &budget));
    EXPECT_OK(add(&s, 12, ids, 1, &pic));
    static const int32_t want[3][12] = { { 0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8 },
                                         { 0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8 },
                                         { 0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8 } };
    for (int a = 0; a < 3; a++)
        for (int t = 0; t < 12; t++)
            EXPECT(s.pos[a * 64 + t] == want[a][t], "axis %d token %d: %d", a, t, s.pos[a * 64 + t]);
    for (int t = 0; t < 12; t++) EXPECT(s.ids[t] == (ids[t] == 90 ? -1 : ids[t]), "token %d", t);
    for (int i = 0; i < 6; i++) EXPECT(s.visual_row[i] == 4 + i, "visual row %d", i);
    stream_close(&s);
}

static void merge_block_order(void)
{
    Stream s;
    int32_t ids[6] = { 90, 90, 90, 90, 90, 90 };
    VisualSlice pic = { 4, 6, NULL };
    EXPECT_OK(stream_open(&s, &shape, &budget));
    EXPECT_OK(add(&s, 6, ids, 1, &pic));
    static const int32_t cells[8][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 },
                                         { 0, 2 }, { 0, 3 }, { 1, 2 }, { 1, 3 } };
    for (int k = 0; k < 8; k++) {
        EXPECT(s.cell[4 * k] == cells[k][0] && s.cell[4 * k + 1] == cells[k][1], "patch %d: %d %d", k,
               s.cell[4 * k], s.cell[4 * k + 1]);
        EXPECT(s.cell[4 * k + 2] == 4 && s.cell[4 * k + 3] == 6, "patch %d: grid", k);
        EXPECT(s.vpos[k] == cells[k][0] && s.vpos[96 + k] == cells[k][1], "patch %d: rotary position", k);
    }
    EXPECT(s.cell[4 * 12] == 2 && s.cell[4 * 12 + 1] == 0, "the second row of blocks begins at patch 12");
    stream_close(&s);
}

static void packs_documents(void)
{
    Stream s;
    int32_t text[5] = { 1, 2, 3, 4, 5 }, video[7] = { 8, 91, 91, 9, 91, 91, 6 };
    float px[8 * 3];
    for (int i = 0; i < 24; i++) px[i] = (float)i;
    VisualSlice slices[2] = { { 2, 4, px }, { 4, 2, px } };
    Budget b = budget;
    b.by_document = true;
    EXPECT_OK(stream_open(&s, &shape, &b));
    EXPECT_OK(add(&s, 5, text, 0, NULL));
    EXPECT_OK(add(&s, 7, video, 2, slices));
    EXPECT(s.tokens == 12 && s.docs == 2 && s.slices == 2 && s.patches == 16 && s.visual == 4, "counts");
    EXPECT(s.start[0] == 0 && s.start[1] == 5 && s.start[2] == 12, "borders");
    EXPECT(s.vstart[1] == 8 && s.vstart[2] == 16, "each slice is a segment");
    EXPECT(s.pos[5] == 0 && s.pos[6] == 1 && s.pos[8] == 3,
           "positions restart, a slice of 2x4 advances by 2");
    EXPECT(s.group[4] == 0 && s.group[5] == 1 && s.group[12] == -1 && s.group_len[1] == 7, "groups");
    EXPECT(s.supervised == 3 && s.sup_row[1] == 7 && s.sup_label[1] == 7, "supervised rows");
    EXPECT(s.pairs == 15 + 28 && s.vpairs == 128, "pairs %g %g", s.pairs, s.vpairs);
    EXPECT(((float *)s.pixels)[8 * 3 + 1] == 1, "pixels of the second slice");
    stream_clear(&s);
    EXPECT(s.tokens == 0 && s.ids[0] == -1 && ((float *)s.pixels)[8 * 3 + 1] == 0, "cleared");
    stream_close(&s);
    stream_close(&s);
}

/* Tokens and targets one further: nothing crosses from a document to the next. */
static void shifts_inside_documents(void)
{
    static const int32_t ids[] = { 5, 6, 7, 8, 9, 3 }, targets[] = { 6, 7, -1, 9, -1, 4 };
    static const int32_t want_ids[] = { 6, 7, 0, 9, 0, 0, 0, 0 };
    static const int32_t want_row[] = { -1, 0, -1, -1, -1 }, want_label[] = { -1, 7, -1, -1, -1 };
    Budget  small = { .tokens = 8, .docs = 4, .supervised = 5 };
    int32_t got[8], row[5], label[5];
    Stream  s;
    EXPECT_OK(stream_open(&s, &shape, &small));
    for (int d = 0, at = 0; d < 3; at += 3 - d, d++)             /* documents of 3, 2 and 1 tokens */
        EXPECT_OK(stream_add(&s, &(Document){ 3 - d, ids + at, targets + at, 0, NULL }));
    stream_shift(&s, got, row, label);
    for (int i = 0; i < 8; i++) EXPECT(got[i] == want_ids[i], "id %d: %d", i, got[i]);
    for (int i = 0; i < 5; i++)
        EXPECT(row[i] == want_row[i] && label[i] == want_label[i], "row %d: %d, %d", i, row[i], label[i]);
    EXPECT(stream_shifted_targets(&s) == 1, "%lld targets", (long long)stream_shifted_targets(&s));
    stream_close(&s);
}

static void refuses(void)
{
    Stream s;
    int32_t ids[12] = { 1, 90, 90, 5, 90, 90, 6, 0, 0, 0, 0, 0 }, many[64] = { 0 };
    VisualSlice   one = { 2, 4, NULL }, odd = { 3, 4, NULL }, two[2] = { { 2, 4, NULL }, { 2, 4, NULL } },
          four = { 4, 4, NULL };
    EXPECT_OK(stream_open(&s, &shape, &budget));
    EXPECT_FAIL(add(&s, 7, ids, 1, &one), E_DATA, "4 image and video tokens");
    EXPECT_FAIL(add(&s, 7, ids, 1, &odd), E_DATA, "multiple of 2");
    EXPECT_FAIL(add(&s, 7, ids, 1, &four), E_DATA, "the text has 2 placeholders");
    EXPECT(s.tokens == 0 && s.docs == 0 && s.patches == 0 && s.visual == 0,
           "a refused document leaves nothing");
    EXPECT_OK(add(&s, 7, ids, 2, two));
    EXPECT_FAIL(add(&s, 58, many, 0, NULL), E_FIT, "57 tokens");
    for (int i = 0; i < 3; i++) EXPECT_OK(add(&s, 2, many, 0, NULL));
    EXPECT_FAIL(add(&s, 2, many, 0, NULL), E_FIT, "0 documents");
    stream_close(&s);
}

int main(void)
{
    RUN(positions);
    RUN(merge_block_order);
    RUN(packs_documents);
    RUN(shifts_inside_documents);
    RUN(refuses);
    return lab_report();
}
