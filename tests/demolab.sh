# Functions of the tests of both demos, which source this file: a few steps on a small set in $tmp/demo,
# counting, output.
passed=0 failed=0
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export DEMO_DIR=$tmp/demo DEMO_STEPS=3 DEMO_TRAIN=270 DEMO_EVAL=90

check() {                                # check WHAT command...
    local what=$1; shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL $what"; fi
}
has() { grep -qE -- "$1" "$tmp/out"; }
report() {                               # prints the output of the last demo where something failed
    [ $failed -eq 0 ] || sed 's/^/    /' "$tmp/out"
    echo "lab: $passed passed, $failed failed, 0 skipped"
    [ $failed -eq 0 ]; exit
}
