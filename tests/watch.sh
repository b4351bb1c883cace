#!/usr/bin/env bash
# `treb watch`: pages of runs over HTTP while metrics grow; what it refuses; that it writes nothing; and,
# where there is a chromium, that the page draws and stays live in a browser.
passed=0 failed=0
treb=${TREB:-build/treb}
tmp=$(mktemp -d); server=
# A browser's helpers write to its profile for a moment after it has ended.
remove() {
    for _ in $(seq 50); do rm -rf "$tmp" 2>/dev/null && return; sleep 0.1; done
    rm -rf "$tmp"
}
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; remove' EXIT

lines() {                                           # lines FROM TO: metrics of these steps
    awk -v a="$1" -v b="$2" 'BEGIN { for (s = a; s <= b; s++)
        printf "{\"step\": %d, \"time\": %d, \"train/loss\": %g}\n", s, 1750000000 + s, 9 / s }'
}
make_run() {
    mkdir -p "$1"; lines 1 20 > "$1/metrics.jsonl"; echo 'train: {max_steps: 50}' > "$1/recipe.yaml"
}
make_run "$tmp/runs/first"; make_run "$tmp/runs/second"

start() {                                           # start ARGUMENTS: sets server and port
    "$treb" watch "$@" --port 0 > "$tmp/out" 2> "$tmp/err" & server=$!
    for _ in $(seq 100); do grep -q http "$tmp/out" && break; sleep 0.05; done
    port=$(sed -n 's|.*http://[^:]*:\([0-9]*\)/.*|\1|p' "$tmp/out")
}
ask() {                                             # ask METHOD PATH [HEADER]: the whole answer
    exec 9<>"/dev/tcp/127.0.0.1/$port"
    printf '%s %s HTTP/1.1\r\nHost: %s\r\n%bConnection: close\r\n\r\n' \
        "$1" "$2" "${host:-localhost:$port}" "${3:+$3\\r\\n}" >&9
    tr -d '\r' <&9; exec 9>&-
}
check() {                                           # check WHAT TEXT: the answer in $tmp/answer has TEXT
    if grep -qF -- "$2" "$tmp/answer"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $1: no '$2' in: $(head -c 300 "$tmp/answer")"
}

if [ -z "$("$treb" watch "$tmp/runs" --port 0 --host nowhere 2>&1 | grep -v 'without libmicrohttpd')" ]; then
    echo "  skip watch.sh: built without libmicrohttpd; tools/setup.sh installs libmicrohttpd-dev"
    echo "lab: 0 passed, 0 failed, 1 skipped"; exit 0
fi

start "$tmp/runs"
find "$tmp/runs" -printf '%p %s %T@\n' | sort > "$tmp/before"
ask GET / > "$tmp/answer"
check 'the page of all runs' '200 OK'
check 'the page of all runs' "watchPage('/data'"
check 'its runs' '"name":"second"'
ask GET /run/0 > "$tmp/answer";   check 'the page of a run' "watchPage('/data/run/0'"
ask GET /pair/0/1 > "$tmp/answer"; check 'two runs' "watchPage('/data/pair/0/1'"
ask HEAD / > "$tmp/answer";       check 'HEAD' '200 OK'
ask POST / > "$tmp/answer";       check 'POST' '405'; check 'POST' 'Allow: GET, HEAD'
for path in /run/2 /run/-1 /run/0x /run/0/1 /pair/0 /pair/0/9 /../metrics.jsonl /%2e%2e/x /data/run/999999; do
    ask GET "$path" > "$tmp/answer"; check "$path" '404'
done
host=elsewhere.example ask GET / > "$tmp/answer"; check 'a foreign name' '403'
ask GET /data/run/0 > "$tmp/answer"; check 'a document' 'application/json'
tag=$(sed -n 's/^ETag: //p' "$tmp/answer")
ask GET /data/run/0 "If-None-Match: $tag" > "$tmp/answer"; check 'nothing new' '304'
find "$tmp/runs" -printf '%p %s %T@\n' | sort > "$tmp/after"
diff "$tmp/before" "$tmp/after" > "$tmp/answer" && echo same > "$tmp/answer"
check 'nothing is written' same
lines 21 33 >> "$tmp/runs/first/metrics.jsonl"
ask GET /data/run/0 "If-None-Match: $tag" > "$tmp/answer"; check 'new steps' '200 OK'
check 'new steps' '{"b":"33"}'
make_run "$tmp/runs/third"
ask GET /data > "$tmp/answer"; check 'a run that began later' '"name":"third"'
printf 'nonsense\r\n\r\n' > "/dev/tcp/127.0.0.1/$port"
head -c 70000 /dev/zero > "/dev/tcp/127.0.0.1/$port" 2>/dev/null
ask GET / > "$tmp/answer"; check 'after nonsense' '200 OK'

browser=$(command -v chromium || command -v chromium-browser)
if [ -n "$browser" ]; then
    timeout 30 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$tmp/profile" --dump-dom \
        --virtual-time-budget=7000 "http://localhost:$port/" > "$tmp/answer" 2> /dev/null
    check 'a browser draws it' '<div class="runs wide">'
    check 'a browser has it live' '<span class="live">live</span>'
fi
kill -INT "$server"; wait "$server"; echo "exit $?" > "$tmp/answer"; server=
check 'it ends at Ctrl-C' 'exit 0'

"$treb" watch "$tmp/none" > "$tmp/answer" 2>&1; echo "exit $?" >> "$tmp/answer"
check 'no folder' 'no such folder'; check 'no folder' 'exit 4'
mkdir "$tmp/empty"; "$treb" watch "$tmp/empty" > "$tmp/answer" 2>&1
check 'no run' 'neither a run nor a folder of runs'
echo "lab: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
