#!/usr/bin/env bash
# make lint: words (tools/words.lint), timed waits, 110 columns, includes downwards (tools/layers.sh), one
# definition of each public type, and clang-tidy (.clang-tidy) over the C sources. Prints every finding with
# file and line; exits with 1 if there is one. LINT_TIDY=0 leaves clang-tidy out.
set -u
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8
bad=0
report() { [ -z "$2" ] || { printf 'lint: %s\n%s\n' "$1" "$2"; bad=1; }; }
# Every file that git does not ignore; in a tree without git, every file that is not built.
all=$(git ls-files --cached --others --exclude-standard 2>/dev/null ||
      find . -type f -not -path './build/*' | sed 's|^\./||')
list() {
    local f p
    for f in $all; do
        for p in "$@"; do
            # shellcheck disable=SC2053
            if [[ $f == $p && -f $f ]]; then echo "$f"; break; fi
        done
    done
}

code=$(list 'src/*.[ch]' 'src/*.cu' 'src/*.cuh' 'src/*.def' 'tests/*.[ch]' 'tests/*.sh' 'demo/*.[ch]' \
    'bench/*.[ch]' 'tools/*.sh')
text=$(list '*.md' 'recipes/*.yaml' Makefile 'bench/*.sh' 'bench/*.py' 'tools/*.py')

# Words. The rules themselves and the changelog, which names old words, are left out.
rules=$(sed -E '/^#|^$/d' tools/words.lint)
searched=$(printf '%s\n' $code $text |
    grep -vE '^(tools/words.lint|tools/lint.sh|CHANGELOG.md|CONTRIBUTING.md)$')
while IFS= read -r rule; do
    pattern=$(sed -E 's/ {2,}.*//' <<<"$rule") advice=$(sed -E 's/.* {2,}//' <<<"$rule")
    found=$(grep -nIiwE -- "$pattern" $searched /dev/null |
        grep -v 'lint: a JSON key that stays' | cut -c1-160)
    report "the word '$pattern' is not used here; write: $advice" "$found"
done <<<"$rules"

# A wait on the realtime clock ends early or late when the machine's time is set.
report "timed waits outside base/cond.c; write: cond_open, cond_wait_for" \
    "$(grep -nE 'pthread_(cond_timedwait|mutex_timedlock)|sem_timedwait' $code /dev/null |
        grep -vE '^(src/base/cond.c|tools/lint.sh):')"

report "lines over 110 columns" "$(grep -nE '^.{111,}' $code /dev/null | cut -c1-120)"

# A type that a header defines has one definition, so that any two headers can be included together.
types=$(list 'src/*.h' | xargs awk '
    function define(t) { where[t] = where[t] " " FILENAME; n[t]++ }
    /^typedef (struct|enum|union) [A-Za-z0-9_]+ \{/ { define($3); next }
    /^typedef (struct|enum|union) \{.*\} [A-Za-z0-9_]+;/ {
        t = $0; sub(/.*\} /, "", t); sub(/;.*/, "", t); define(t); next }
    /^typedef (struct|enum|union) \{/ { unnamed = $2 }
    unnamed == "enum" && /\} [A-Za-z0-9_]+;/ || unnamed && /^\} [A-Za-z0-9_]+;/ {
        t = $0; sub(/.*\} /, "", t); sub(/;.*/, "", t); define(t); unnamed = "" }
    END { for (t in n) if (n[t] > 1) print t ":" where[t] }' | sort)
report "public types defined more than once" "$types"

tools/layers.sh || bad=1

if [ "${LINT_TIDY:-1}" = 1 ] && command -v clang-tidy >/dev/null; then
    flags="-std=gnu17 -Isrc -I. ${LINT_FLAGS:-}"
    report "clang-tidy" "$(list 'src/*.c' 'demo/*.c' 'bench/*.c' | xargs -P "$(nproc)" -n 12 sh -c \
        'clang-tidy --quiet "$@" -- '"$flags"' -Wno-unknown-pragmas -Wno-everything 2>/dev/null' sh |
        grep -E 'warning:|error:' | sort -u)"
fi
exit $bad
