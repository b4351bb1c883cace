# tests/simt/rewrite.awk -- CUDA C++ as C++ that includes tests/simt/simt.h: what a host compiler cannot read.
#
#   kernel<<<blocks, threads, bytes, stream>>>(x)   simt::launch(kernel, blocks, threads, bytes, stream)(x)
#   __shared__ int a[8], b;                         a struct in the block's shared memory, a and b in it
#   extern __shared__ __align__(16) char c[];       a pointer to the block's dynamic shared memory
#   asm volatile("text" : "=r"(x) : "r"(y))         SIMT_PTX("text", x, y), which ptx.h defines for the text
#   __cluster_dims__(n) ... {                       simt::cluster_begin(n); at the begin of the kernel
#   #if __has_include(<nccl.h>)                     #if 0: libraries of NVIDIA's are absent
#
# Every line keeps its number. The file's name is the variable `name`.

function constraint_dropped(s) { gsub(/"[=+]?[a-z]+" *\(/, "(", s); return s }

# An asm statement as a call: its four sections are separated by colons outside parentheses and strings.
function ptx_call(s,    i, c, depth, quoted, section, part, out) {
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        if (c == "\"" && substr(s, i - 1, 1) != "\\") quoted = !quoted
        if (!quoted && (c == "(" || c == "[")) depth++
        if (!quoted && (c == ")" || c == "]")) depth--
        if (!quoted && !depth && c == ":") section++
        else part[section + 0] = part[section + 0] c
    }
    out = part[0]
    for (i = 1; i <= 2; i++) if (part[i] ~ /[^ ]/) out = out ", " constraint_dropped(part[i])
    return "SIMT_PTX(" out ")"
}

# Declarators of a list: the names before brackets.
function shared_names(list, names,    n, i, flat) {
    flat = list
    while (match(flat, /\[[^][]*\]/)) flat = substr(flat, 1, RSTART - 1) substr(flat, RSTART + RLENGTH)
    n = split(flat, names, ",")
    for (i = 1; i <= n; i++) sub(/^.*[ *]/, "", names[i])
    return n
}

function shared_static(s,    names, n, i, out, type) {
    type = "Shared" NR
    out = "struct " type " { " s "; }; "
    sub(/;.*$/, "", s)
    n = shared_names(s, names)
    for (i = 1; i <= n; i++) out = out "auto &" names[i] " = simt::shared<" type ">()." names[i] "; "
    return out
}

function shared_dynamic(s,    type, mark, align) {
    align = 16
    if (match(s, /__align__\([0-9]+\)/)) {
        align = substr(s, RSTART + 10, RLENGTH - 11)
        s = substr(s, 1, RSTART - 1) substr(s, RSTART + RLENGTH)
    }
    sub(/\[\].*$/, "", s)
    sub(/^ */, "", s)
    mark = match(s, /[A-Za-z_0-9]+$/)
    type = substr(s, 1, mark - 1)
    return type "*const " substr(s, mark) " = (" type "*)simt::dynamic_shared(" align ");"
}

function launch(s,    from, to, start) {
    from = index(s, "<<<"); to = index(s, ">>>(")
    match(substr(s, 1, from - 1), /[A-Za-z_][A-Za-z_0-9]*(<[^<>]*>)?$/)
    start = RSTART
    return substr(s, 1, start - 1) "simt::launch(" substr(s, start, from - start) ", " \
        substr(s, from + 3, to - from - 3) ")(" substr(s, to + 4)
}

function finish(s,    at, open, depth, i, c, quoted) {
    at = match(s, /asm( volatile)? *\(/)
    open = at + RLENGTH
    depth = 1
    for (i = open; i <= length(s) && depth; i++) {
        c = substr(s, i, 1)
        if (c == "\"") quoted = !quoted
        if (!quoted && c == "(") depth++
        if (!quoted && c == ")") depth--
    }
    if (depth) return ""
    return substr(s, 1, at - 1) ptx_call(substr(s, open, i - 1 - open)) substr(s, i)
}

BEGIN { printf "# 1 \"%s\"\n", name }

held != "" {
    held = held " " $0; blank = blank "\n"
    done = finish(held)
    if (done != "") { print done blank; held = blank = "" }
    next
}
/^#if __has_include/ { print "#if 0"; next }
match($0, /__cluster_dims__\([^)]*\)/) {
    dims = substr($0, RSTART + 16, RLENGTH - 16)
    $0 = substr($0, 1, RSTART - 1) substr($0, RSTART + RLENGTH)
}
/^\{/ && dims != "" { print "{ simt::cluster_begin" dims ";" substr($0, 2); dims = ""; next }
/(^|[ {;])asm( volatile)? *\(/ && !/^ *(\/\*|\*)/ {
    done = finish($0)
    if (done == "") held = $0
    else print done
    next
}
/extern __shared__ / { at = index($0, "extern __shared__ "); s = substr($0, at + 18)
    tail = s; sub(/^[^;]*;/, "", tail)
    print substr($0, 1, at - 1) shared_dynamic(s) tail; next }
/__shared__ / { at = index($0, "__shared__ "); s = substr($0, at + 11)
    tail = s; sub(/^[^;]*;/, "", tail); sub(/;.*$/, "", s)
    print substr($0, 1, at - 1) shared_static(s) tail; next }
/<<</ { print launch($0); next }
{ print }
