#!/usr/bin/env python3
"""Writes tests/parquet/*.parquet and their JSONL twins: small files of our own in the encodings, codecs and page
versions that src/data reads. A writer in plain Python; run in the repository's root."""
import json
import struct
import zlib

ROWS = [
    {"id": 7, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello \"you\"\n"}], "score": 0.5},
    {"id": -1, "messages": [{"role": "user", "content": "Gr\u00fc\u00dfe \U0001f642"}, {"role": "assistant", "content": ""}], "score": None},
    {"id": 3, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                           {"role": "user", "content": "a"}, {"role": "assistant", "content": "abc"}], "score": 2.0},
]


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def zigzag(n):
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


class Struct:
    """Thrift's compact protocol."""
    def __init__(self):
        self.out, self.last = b"", 0

    def field(self, num, kind, payload):
        delta = num - self.last
        self.last = num
        self.out += bytes([delta << 4 | kind]) + payload
        return self

    def i32(self, num, v):
        return self.field(num, 5, zigzag(v))

    def i64(self, num, v):
        return self.field(num, 6, zigzag(v))

    def text(self, num, v):
        return self.field(num, 8, varint(len(v)) + v.encode())

    def flag(self, num, v):
        return self.field(num, 1 if v else 2, b"")

    def struct(self, num, s):
        return self.field(num, 12, s.end())

    def list(self, num, kind, items):
        head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xf0 | kind]) + varint(len(items))
        return self.field(num, 9, head + b"".join(items))

    def end(self):
        return self.out + b"\0"


def snappy(b):
    """Literals, and one copy where a text repeats its first four bytes at its end."""
    out, body = varint(len(b)), b
    copy = len(b) > 8 and b[-4:] == b[:4]
    if copy:
        body = b[:-4]
    for i in range(0, len(body), 60):
        piece = body[i:i + 60]
        out += bytes([len(piece) - 1 << 2]) + piece
    return out + (bytes([(4 - 1) << 2 | 2]) + struct.pack("<H", len(body)) if copy else b"")


def lz4(b):
    n = len(b)
    head = bytes([min(n, 15) << 4])
    if n >= 15:
        n -= 15
        while n >= 255:
            head += b"\xff"
            n -= 255
        head += bytes([n])
    return head + b


CODECS = {0: lambda b: b, 1: snappy, 2: lambda b: zlib.compressobj(9, zlib.DEFLATED, 31).compress(b) or b"", 7: lz4,
          5: lambda b: struct.pack(">II", len(b), len(lz4(b))) + lz4(b)}


def gzip(b):
    z = zlib.compressobj(9, zlib.DEFLATED, 31)
    return z.compress(b) + z.flush()


CODECS[2] = gzip


def runs(values, width):
    """Bit-packed groups for the first eight values, runs for the others."""
    out, i = b"", 0
    if len(values) >= 8:
        bits = sum(v << k * width for k, v in enumerate(values[:8]))
        out, i = varint(1 << 1 | 1) + bits.to_bytes(width, "little"), 8
    while i < len(values):
        n = 1
        while i + n < len(values) and values[i + n] == values[i]:
            n += 1
        out += varint(n << 1) + values[i].to_bytes((width + 7) // 8, "little")
        i += n
    return out


def delta(values, wrap=0):
    """wrap: differences are numbers of so many bits."""
    out = varint(128) + varint(4) + varint(len(values)) + zigzag(values[0] if values else 0)
    steps = [b - a for a, b in zip(values, values[1:])]
    if wrap:
        steps = [(s + (1 << wrap - 1)) % (1 << wrap) - (1 << wrap - 1) for s in steps]
    for i in range(0, len(steps), 128):
        block = steps[i:i + 128]
        low = min(block)
        block = [s - low for s in block] + [0] * (128 - len(block))
        out += zigzag(low)
        minis = [block[k:k + 32] for k in range(0, 128, 32)]
        widths = [max(m).bit_length() for m in minis]
        out += bytes(widths)
        for m, w in zip(minis, widths):
            out += sum(v << k * w for k, v in enumerate(m)).to_bytes(32 * w // 8, "little")
    return out


def plain(kind, values):
    if kind == 6:
        texts = [v if isinstance(v, bytes) else v.encode() for v in values]
        return b"".join(struct.pack("<I", len(v)) + v for v in texts)
    if kind in (3, 7):
        return b"".join(values)
    return b"".join(struct.pack({1: "<i", 2: "<q", 5: "<d"}[kind], v) for v in values)


def encode(kind, encoding, values):
    if encoding == 0:
        return plain(kind, values)
    if encoding == 5:
        return delta(values, 32 if kind == 1 else 0)
    texts = [v.encode() for v in values]
    if encoding == 6:
        return delta([len(t) for t in texts]) + b"".join(texts)
    if encoding == 7:
        prefix, rest, last = [], [], b""
        for t in texts:
            n = 0
            while n < len(t) and n < len(last) and t[n] == last[n]:
                n += 1
            prefix.append(n)
            rest.append(t[n:])
            last = t
        return delta(prefix) + delta([len(t) for t in rest]) + b"".join(rest)
    words = sorted(set(values))
    width = max(1, (len(words) - 1).bit_length())
    return bytes([width]) + runs([words.index(v) for v in values], width)


def page(body, levels, cells, nulls, rows, codec, encoding, version):
    rep, dfn = levels
    if version == 2:
        packed = CODECS[codec](body)
        head = Struct().i32(1, cells).i32(2, nulls).i32(3, rows).i32(4, encoding).i32(5, len(dfn)).i32(6, len(rep)).flag(7, True)
        whole = Struct().i32(1, 3).i32(2, len(rep) + len(dfn) + len(body)).i32(3, len(rep) + len(dfn) + len(packed)).struct(8, head)
        return whole.end() + rep + dfn + packed
    raw = b"".join(struct.pack("<I", len(x)) + x for x in (rep, dfn) if x) + body
    packed = CODECS[codec](raw)
    head = Struct().i32(1, cells).i32(2, encoding).i32(3, 3).i32(4, 3)
    return Struct().i32(1, 0).i32(2, len(raw)).i32(3, len(packed)).struct(5, head).end() + packed


# name, type, max_def, max_rep, cells of a row as (rep, def, value)
def message_cells(key):
    return lambda row: [(0 if i == 0 else 1, 3, m[key]) for i, m in enumerate(row["messages"])]


COLUMNS = [
    ("id", 2, 0, 0, lambda row: [(0, 0, row["id"])]),
    ("role", 6, 3, 1, message_cells("role")),
    ("content", 6, 3, 1, message_cells("content")),
    ("score", 5, 1, 0, lambda row: [(0, int(row["score"] is not None), row["score"])]),
]


def column(out, col, groups, codec, encodings, version, rows_of_page):
    name, kind, max_def, max_rep, cells_of = col
    encoding = encodings.get(kind, 0)
    begin, dictionary, values = len(out), None, 0
    if encoding == 8:
        words = sorted({v for row in groups for _, d, v in cells_of(row) if d == max_def})
        body = plain(kind, words)
        packed = CODECS[codec](body)
        out += Struct().i32(1, 2).i32(2, len(body)).i32(3, len(packed)).struct(7, Struct().i32(1, len(words)).i32(2, 0)).end() + packed
        dictionary = begin
    first, locations = len(out), []
    for i in range(0, len(groups), rows_of_page):
        part = groups[i:i + rows_of_page]
        cells = [c for row in part for c in cells_of(row)]
        present = [v for _, d, v in cells if d == max_def]
        rep = runs([c[0] for c in cells], 1) if max_rep else b""
        dfn = runs([c[1] for c in cells], max_def.bit_length()) if max_def else b""
        if encoding == 8:
            words = sorted({v for row in groups for _, d, v in cells_of(row) if d == max_def})
            width = max(1, (len(words) - 1).bit_length())
            body = bytes([width]) + runs([words.index(v) for v in present], width)
        else:
            body = encode(kind, encoding, present)
        at = len(out)
        out += page(body, (rep, dfn), len(cells), len(cells) - len(present), len(part), codec, encoding, version)
        locations.append(Struct().i64(1, at).i32(2, len(out) - at).i64(3, i).end())
        values += len(cells)
    meta = Struct().i32(1, kind).list(2, 5, [zigzag(encoding)]).list(3, 8, [varint(len(name)) + name.encode()])
    meta.i32(4, codec).i64(5, values).i64(6, len(out) - begin).i64(7, len(out) - begin).i64(9, first)
    if dictionary is not None:
        meta.i64(11, dictionary)
    return Struct().i64(2, begin).struct(3, meta), locations


def index_chunk(out, chunk, locations):
    """Appends the chunk's OffsetIndex."""
    at = len(out)
    out += Struct().list(1, 12, locations).end()
    return chunk.i64(4, at).i32(5, len(out) - at).end()


def empty_group(columns):
    """A row group without rows, as Arrow writes it: its pages are nowhere."""
    chunks = []
    for name, kind, *_ in columns:
        meta = Struct().i32(1, kind).list(2, 5, [zigzag(0)]).list(3, 8, [varint(len(name)) + name.encode()])
        chunks.append(Struct().i64(2, 0).struct(3, meta.i32(4, 0).i64(5, 0).i64(6, 0).i64(7, 0).i64(9, 0)).end())
    return Struct().list(1, 12, chunks).i64(2, 0).i64(3, 0).end()


def element(name, repeat=None, kind=None, children=None, converted=None, length=None, scale=None, precision=None, logical=None):
    s = Struct()
    if kind is not None:
        s.i32(1, kind)
    if length:
        s.i32(2, length)
    if repeat is not None:
        s.i32(3, repeat)
    s.text(4, name)
    if children:
        s.i32(5, children)
    if converted is not None:
        s.i32(6, converted)
    if scale:
        s.i32(7, scale)
    if precision:
        s.i32(8, precision)
    return s.struct(10, logical).end() if logical else s.end()


SCHEMA = [element("schema", children=3), element("id", 0, 2), element("messages", 1, None, 1, 3), element("list", 2, None, 1),
          element("element", 0, None, 2), element("role", 1, 6, None, 0), element("content", 0, 6, None, 0), element("score", 1, 5)]


# Numbers of 32 bits, signed and unsigned.
NUMBERS = [("i", 1, 0, 0, lambda row: [(0, 0, row["i"])]), ("u", 1, 0, 0, lambda row: [(0, 0, (row["u"] + 2**31) % 2**32 - 2**31)])]
NUMBERS_SCHEMA = [element("schema", children=2), element("i", 0, 1), element("u", 0, 1, None, 13)]
NUMBER_ROWS = [{"i": 2**31 - 1, "u": 2**32 - 1}, {"i": -2**31, "u": 0}, {"i": 5, "u": 2**31}, {"i": -1, "u": 1}]


def time_kind(field, utc, unit):
    return Struct().struct(field, Struct().flag(1, utc).struct(2, Struct().struct(unit, Struct())))


# Values whose annotation says what they stand for: name, element, and (stored, as JSON) of each row.
MEANINGS = [
    ("price", dict(kind=1, converted=5, scale=2, precision=9), [(350, 3.50), (-7, -0.07), (0, 0.0)]),
    ("share", dict(kind=7, length=9, converted=5, scale=20, precision=21, logical=Struct().struct(5, Struct().i32(1, 20).i32(2, 21))),
     [((-5 * 10**19).to_bytes(9, "big", signed=True), -0.5), (bytes(9), 0.0), ((1).to_bytes(9, "big"), 1e-20)]),
    ("whole", dict(kind=6, converted=5, precision=24), [(b"\x7f", 127), (b"\x80", -128), ((10**20).to_bytes(10, "big"), 1e20)]),
    ("day", dict(kind=1, converted=6), [(0, "1970-01-01"), (-1, "1969-12-31"), (11016, "2000-02-29")]),
    ("clock", dict(kind=1, converted=7), [(0, "00:00:00"), (86399999, "23:59:59.999"), (3600000, "01:00:00")]),
    ("seen", dict(kind=2, converted=10), [(1500000000000001, "2017-07-14T02:40:00.000001+00:00"),
                                          (-1, "1969-12-31T23:59:59.999999+00:00"), (0, "1970-01-01T00:00:00+00:00")]),
    ("local", dict(kind=2, logical=time_kind(8, False, 3)), [(1, "1970-01-01T00:00:00.000000001"),
                                                            (-2**63, "1677-09-21T00:12:43.145224192"), (10**9, "1970-01-01T00:00:01")]),
    ("half", dict(kind=7, length=2, logical=Struct().struct(15, Struct())), [(struct.pack("<e", v), v) for v in (1.5, -65504.0, 2.0**-24)]),
    ("uuid", dict(kind=7, length=16, logical=Struct().struct(14, Struct())), [(bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f")] * 3),
    ("old", dict(kind=3), [(struct.pack("<qI", 3600 * 10**9, 2440589), "1970-01-02T01:00:00")] * 3),
]


def meanings():
    """Writes them as Parquet and as JSONL."""
    columns = [(name, e["kind"], 0, 0, lambda row, k=k: [(0, 0, row[k])]) for k, (name, e, _) in enumerate(MEANINGS)]
    schema = [element("schema", children=len(MEANINGS))] + [element(name, 0, **e) for name, e, _ in MEANINGS]
    rows = [[v[i][0] for _, _, v in MEANINGS] for i in range(3)]
    write("tests/parquet/meanings.parquet", rows, 0, {}, 1, 99, 99, columns, schema)
    with open("tests/parquet/meanings.jsonl", "w") as f:
        for i in range(3):
            f.write(json.dumps({name: v[i][1] for name, _, v in MEANINGS}) + "\n")


def write(path, rows, codec, encodings, version, group_rows, page_rows, columns=None, schema=None, indexed=False):
    """indexed: with OffsetIndexes, and an empty row group before the others."""
    columns, schema = columns or COLUMNS, schema or SCHEMA
    out, groups = bytearray(b"PAR1"), [empty_group(columns)] if indexed else []
    for i in range(0, len(rows), group_rows):
        part = rows[i:i + group_rows]
        chunks = []
        for col in columns:
            if col[0] == "content":
                col = (col[0], col[1], 2, 1, lambda row: [(r, 2, v) for r, _, v in message_cells("content")(row)])
            chunks.append(column(out, col, part, codec, encodings, version, page_rows))
        chunks = [index_chunk(out, *c) if indexed else c[0].end() for c in chunks]
        groups.append(Struct().list(1, 12, chunks).i64(2, 0).i64(3, len(part)).end())
    footer = Struct().i32(1, 1).list(2, 12, schema).i64(3, len(rows)).list(4, 12, groups).end()
    with open(path, "wb") as f:
        f.write(bytes(out) + footer + struct.pack("<I", len(footer)) + b"PAR1")


def main():
    rows = ROWS * 5
    cases = {"plain": (0, {}, 1, 99, 99), "snappy-dictionary": (1, {6: 8, 2: 8, 5: 8}, 1, 7, 3), "gzip-v2": (2, {6: 8}, 2, 99, 4),
             "lz4-delta": (7, {6: 6, 2: 5}, 2, 6, 99), "hadoop-delta-bytes": (5, {6: 7, 2: 5}, 1, 99, 2)}
    for name, args in cases.items():
        write(f"tests/parquet/{name}.parquet", rows, *args)
    write("tests/parquet/indexed.parquet", rows, 1, {6: 8}, 1, 7, 2, indexed=True)
    write("tests/parquet/numbers.parquet", NUMBER_ROWS * 3, 0, {1: 5}, 1, 99, 5, NUMBERS, NUMBERS_SCHEMA)
    meanings()
    with open("tests/parquet/numbers.jsonl", "w") as f:
        for row in NUMBER_ROWS * 3:
            f.write(json.dumps(row) + "\n")
    with open("tests/parquet/twin.jsonl", "w") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


main()
