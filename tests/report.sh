#!/usr/bin/env bash
# Pages of `treb report` in a browser: the script runs, nothing is loaded, no text of a run becomes markup,
# and nothing is wider than the window. Skipped, with a message, where there is no chromium;
# `tools/setup.sh report` installs it.
passed=0 failed=0
treb=${TREB:-build/treb}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ]; then
    echo "  skip report.sh: no chromium here; tools/setup.sh report installs it"
    echo "lab: 0 passed, 0 failed, 1 skipped"; exit 0
fi
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT

# make_run FOLDER STEPS TEXT: a small run whose names and answers are TEXT (fit for JSON)
make_run() {
    mkdir -p "$1/samples"
    text=$3 awk -v n="$2" 'BEGIN {
        t = ENVIRON["text"]
        for (s = 1; s <= n; s++)
            printf "{\"step\": %d, \"time\": %d, \"label\": \"benchmark-only\", \"train/loss\": %g, " \
                   "\"perf/mfu_vision\": 0.4, \"train/learning_rate\": 1e-5, \"loss_by_source/%s\": %g, " \
                   "\"%s\": 1}\n", s, 1750000000 + s, 20 / (s + 9), t, 3, t
    }' > "$1/metrics.jsonl"
    echo "{\"cpu\": \"$3\"}" > "$1/env.json"
    echo "model: {path: \"$3\"}" > "$1/recipe.yaml"
    echo "{\"arenas\": [{\"name\": \"$3\", \"bytes\": 9, \"labels\": [{\"name\": \"$3\", \"bytes\": 5}]}]," \
         "\"flops\": {\"head\": 1}}" > "$1/plan.json"
    echo '{"layers": [{"layer": 0, "image": [1, 2, 0, 9], "text": [5, 5, 5, 5]}]}' > "$1/expert_load.json"
    for s in 5 "$2"; do
        echo "{\"question\": \"$3\", \"answer\": \"$3\", \"expected\": \"$3\", \"correct\": false," \
             "\"images\": [\"dot.png\", \"$3\"]}" > "$1/samples/step-$s.jsonl"
    done
    base64 -d > "$1/samples/dot.png" \
        <<<iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC
}

# The probe does what a visitor does and records the effects. It uses the page's nonce, without which a script
# may not run.
probe='
var seen = [], root = document.documentElement;
function all(what) { return [].slice.call(document.querySelectorAll(what)); }
function note(name, value) { seen.push(name + "=" + String(value).replace(/[^A-Za-z0-9.,<>()]/g, "")); }
function point(e) {
  var r = e.getBoundingClientRect();
  var at = { bubbles: true, clientX: r.left + 0.6 * r.width, clientY: r.top + 0.5 * r.height };
  e.dispatchEvent(new PointerEvent("pointermove", at));
}
function pick(way) {
  document.getElementById("pick-" + way).click();
  note(way, all(".answer").filter(function (e) { return e.checkVisibility(); }).length);
}
var plot = all(".chart .plot")[0], heat = all(".heat svg")[0];
point(plot);
note("chart", plot.querySelector(".tip").textContent);
plot.dispatchEvent(new PointerEvent("pointerleave"));
note("left", !plot.querySelector(".tip"));
point(heat);
note("heat", heat.parentNode.querySelector(".tip").textContent);
document.getElementById("theme").click();
note("theme", root.dataset.theme);
note("background", getComputedStyle(document.body).backgroundColor);
pick("right");
pick("wrong");
all("details").forEach(function (d) { d.open = true; });
note("scripts", document.scripts.length);
function from_outside(e) { return !e.name.startsWith("data:"); }
function embedded(i) { return i.getAttribute("src").startsWith("data:image/"); }
note("loaded", performance.getEntriesByType("resource").filter(from_outside).length);
note("pictures", all("img").filter(embedded).length);
note("images", all("img").length);
note("wide", Math.max(0, root.scrollWidth - innerWidth));
note("owned", window.owned || 0);
note("title", document.title);
note("charts", all(".chart").length);
document.body.dataset.seen = seen.join(" ");'

# look PAGE WIDTH: writes what the probe recorded, one word a line, and the console's messages to $tmp/seen
look() {
    local nonce
    nonce=$(grep -o "script nonce='[0-9a-f]*'" "$1" | head -n 1 | cut -d"'" -f2)
    sed '$d' "$1" > "$tmp/probed.html"
    echo "</script><script nonce=\"$nonce\">$probe</script></body></html>" >> "$tmp/probed.html"
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run \
        --user-data-dir="$tmp/profile" --hide-scrollbars --blink-settings=preferredColorScheme=1 \
        --window-size="$2",900 --enable-logging=stderr --dump-dom "file://$tmp/probed.html" \
        > "$tmp/dom" 2> "$tmp/console"
    grep -o 'data-seen="[^"]*"' "$tmp/dom" | cut -d'"' -f2 | sed 's/&lt;/</g; s/&gt;/>/g' |
        tr ' ' '\n' > "$tmp/seen"
    grep -oE 'CONSOLE.*' "$tmp/console" >> "$tmp/seen"
}

expect() {
    if grep -qxF -- "$1" "$tmp/seen"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $page: wanted $1 in:"; sed 's/^/    /' "$tmp/seen" | head -n 30
}
expect_none() {
    if ! grep -qF -- "$1" "$tmp/seen"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $page: not wanted: $(grep -F -- "$1" "$tmp/seen" | head -n 3)"
}

make_run "$tmp/plain" 40 "a plain text"
make_run "$tmp/other" 60 "another text"
evil='<script>window.owned=1</script><img src=x onerror=window.owned=2>'"'"'\"></title></style></td></svg>'
named="$tmp/<script>window.owned=3"
make_run "$named" 40 "$evil"
"$treb" report "$tmp/plain" --out "$tmp/plain.html" > /dev/null || failed=$((failed + 1))
"$treb" report "$tmp/plain" "$tmp/other" --out "$tmp/two.html" > /dev/null || failed=$((failed + 1))
"$treb" report "$named" --out "$tmp/evil.html" > /dev/null || failed=$((failed + 1))

for page in plain two evil; do
    for width in 1280 500; do
        look "$tmp/$page.html" $width
        expect "left=true"; expect "theme=dark"; expect "background=rgb(15,18,23)"; expect "right=0"
        expect "loaded=0"; expect "scripts=2"; expect "wide=0"; expect "owned=0"; expect_none "CONSOLE"
    done
    case $page in
        plain) expect "chart=step23train0.625"; expect "heat=layer0,expert20mean"
               expect "title=plaintrebreport"; expect "wrong=1"; expect "charts=5"
               expect "pictures=1"; expect "images=1" ;;
        two)   expect "title=plainandothertrebreport"; expect "wrong=2"; expect "charts=8" ;;
        evil)  expect "title=<script>window.owned3trebreport"; expect "wrong=1"
               expect "pictures=1"; expect "images=1" ;;
    esac
done
# The page of a plan: every block is drawn, nothing is loaded, no error on the console.
page=plan
probe='
var all = function (what) { return document.querySelectorAll(what).length; };
var seen = ["spans=" + (all(".time rect") > 50), "nodes=" + all(".node"),
            "stages=" + all("#memory figure"), "tiles=" + all(".tile"),
            "loaded=" + performance.getEntriesByType("resource").length, "rows=" + (all("#messages tr") > 4)];
document.body.dataset.seen = seen.join(" ");'
big=recipes/qwen3-235b-a22b-256-h100.yaml
if "$treb" plan $big --ranks 256 --hardware h100 --html "$tmp/plan.html" > /dev/null 2>&1 || [ $? = 3 ]; then
    look "$tmp/plan.html" 1280
    expect "spans=true"; expect "nodes=32"; expect "stages=8"; expect "tiles=5"
    expect "loaded=0"; expect "rows=true"; expect_none "CONSOLE"
else
    failed=$((failed + 1)); echo "  FAIL plan: no page"
fi
echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
