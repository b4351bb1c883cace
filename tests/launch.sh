#!/usr/bin/env bash
# treb launch: its command line, refusals printed once, exit codes, signals, and restarts. A rank that is
# killed at a random moment leads to a new start, and the run ends bit-equal to an undisturbed one; when a
# host does not come back, the planner's layout for the ranks that are left goes on with the same losses.
# TREB_KILLS sets the number of kills (1), TREB_KILL_STEPS the number of steps.
. tests/ranklab.sh
kills=${TREB_KILLS:-1} steps=${TREB_KILL_STEPS:-8}
seed=${TREB_KILL_SEED:-$RANDOM}; RANDOM=$seed
unset OMP_NUM_THREADS
has_mpi || skip "no mpirun, or a build without MPI"
small_moe

# Steps are long enough for a fault to come before the run is over.
launch() {                               # launch options of launch... -- overrides...: its output in $tmp/out
    local options=(); while [ "$1" != -- ]; do options+=("$1"); shift; done; shift
    timeout -k 5 "${RANK_LIMIT:-240}" "$treb" launch "${options[@]}" train /dev/null "${recipe[@]}" \
        train.global_tokens=6144 train.max_steps="$steps" checkpoint.save_steps=2 \
        checkpoint.save_total_limit=2 "$@" >"$tmp/out" 2>&1
}
ends_with() { local code=$1; shift; launch "$@"; [ $? -eq "$code" ]; }
said()      { grep -aq -- "$1" "$tmp/out"; }
times()     { [ "$(grep -ac -- "$2" "$tmp/out")" -eq "$1" ]; }
# process launch|train FOLDER: their ids, from /proc, since a bare system has no pgrep
process() {
    local p words
    for p in /proc/[0-9]*; do
        mapfile -d '' -t words <"$p/cmdline" || continue
        [[ "${words[*]} " == "$treb $1 "*"output_dir=$tmp/$2 "* ]] && echo "${p#/proc/}"
    done 2>/dev/null
}

# ---- the command and the table of bindings ----
check "a dry run" launch -n 2 --dry-run -- checkpoint.output_dir="$tmp/none"
check "starts nothing" [ ! -e "$tmp/none" ]
check "prints mpirun's command" said "^mpirun .*--bind-to none .*-n 2 $treb train /dev/null"
check "keeps one host to itself" said "OMPI_MCA_btl=self,.*PMIX_MCA_ptl_tcp_if_include=lo"
check "shows the binding of each rank" times 2 "^rank [01] .*CPUs [0-9,-]*, NUMA node .*, GPU .* thread"
[ "$(id -u)" -ne 0 ] || check "root is allowed" said "^mpirun --allow-run-as-root "
check "a dry run on hosts" launch --hosts a:2,b:2 --agent "$tmp/agent" --dry-run -- \
    checkpoint.output_dir="$tmp/none"
check "names the hosts, the agent and the variables" \
    said "^mpirun .*--host a:2,b:2 .*plm_[rs]sh_agent $tmp/agent .*-x TREB_LAUNCH .*-n 4"

# ---- refusals ----
check "an unknown key: exit code 2" ends_with 2 -n 4 -- train.max_step=3
check "told once, before ranks start" times 1 "not a key. Did you mean train.max_steps"
check "an illegal layout: exit code 2" ends_with 2 -n 4 --restart 3 -- parallel.tp=3 \
    checkpoint.output_dir="$tmp/tp3"
check "each rule once, though four ranks find them" times 1 "(rule 5)"
check "the first one too" times 1 "(rule 1)"
check "nothing of mpirun's own text" [ "$(grep -ac "mpirun\|^---" "$tmp/out")" -eq 0 ]
check "no restart" times 0 "starting again"
check "a missing file: exit code 4" ends_with 4 -n 2 -- "data.train=[$tmp/absent]" \
    checkpoint.output_dir="$tmp/none"
check "told once" times 1 "absent: no such file"
check "another launcher is refused" ends_with 2 -n 2 --mpirun /bin/true --
check "with the package to install" said "install openmpi-bin"
check "more ranks than slots" ends_with 2 -n 5 --hosts a:2,b:2 --
check "restarts of a verb without checkpoints" \
    [ "$("$treb" launch -n 2 --restart 1 eval x 2>&1 | grep -c "no checkpoint to start from")" -eq 1 ]

# An environment as MPICH's mpiexec makes it: no rank may take itself for the whole world.
PMI_SIZE=2 PMI_RANK=0 "$treb" train /dev/null "${recipe[@]}" \
    checkpoint.output_dir="$tmp/none" >"$tmp/out" 2>&1
code=$?
check "a rank of another MPI: exit code 6, not $code" [ $code -eq 6 ]
check "says what to use" said "MPICH.*use treb launch"

# ---- signals ----
launch -n 2 -- checkpoint.output_dir="$tmp/stop" train.max_steps=100000 checkpoint.save_steps=0 & job=$!
until_of 30000 said "^step 2/"
kill -TERM "$(process launch stop)"
wait $job; code=$?
check "SIGTERM: exit code 0, not $code" [ $code -eq 0 ]
check "and a checkpoint" [ -s "$tmp/stop/last/MANIFEST.json" ]

# ---- a killed rank ----
check "undisturbed" launch -n 4 --verbose -- checkpoint.output_dir="$tmp/calm" parallel.zero=3
check "each rank told its binding" times 4 "^launch: rank [0-3], host .*: CPUs"

# strike FOLDER WORD: kills a rank at a random moment after the first line with WORD
strike() {
    local victim
    until_of 60000 said "$2" || return
    pause $((RANDOM % 400))
    victim=$(process train "$1" | shuf -n 1 --random-source=<(yes $RANDOM)) && kill -9 "$victim"
}
hits=0 tries=0
while [ $hits -lt "$kills" ] && [ $tries -lt $((3 * kills)) ]; do
    tries=$((tries + 1)) what="kill $tries (TREB_KILL_SEED=$seed)"
    rm -rf "$tmp/run" "$tmp/out"
    launch -n 4 --restart 1 -- checkpoint.output_dir="$tmp/run" parallel.zero=3 & job=$!
    strike run "^step [0-9]*/" 2>/dev/null
    wait $job; code=$?
    check "$what: exit code 0, not $code" [ $code -eq 0 ]
    check "$what: bit-equal to the undisturbed run" same_bits "$tmp/calm" "$tmp/run"
    said "starting again on 4 ranks" && hits=$((hits + 1))
done
check "$hits of $kills kills led to a restart" [ $hits -ge "$kills" ]

# ---- a lost host ----
# The hosts a and b are this machine: mpirun is started without its --host options, and b does not answer.
real=$(command -v mpirun)
cat > "$tmp/mpirun" <<MPIRUN
#!/bin/bash
words=()
while [ \$# -gt 0 ]; do
    case \$1 in
    --host | -x) shift ;;
    --mca | --prtemca) shift 2 ;;
    *) words+=("\$1") ;;
    esac
    shift
done
exec $real "\${words[@]}"
MPIRUN
printf '#!/bin/sh\n[ "$1" = a ]\n' > "$tmp/agent"
chmod +x "$tmp/mpirun" "$tmp/agent"
hosts=(--hosts a:2,b:2 --agent "$tmp/agent" --mpirun "$tmp/mpirun" --restart 1)
rm -f "$tmp/out"
launch "${hosts[@]}" -- checkpoint.output_dir="$tmp/less" parallel.tp=2 parallel.ep=4 & job=$!
strike less "saved .*checkpoint-2 " 2>/dev/null
wait $job; code=$?
check "a host is lost: exit code 0, not $code" [ $code -eq 0 ]
check "its loss is told" said "^launch: no answer from b:2"
check "the planner's layout and its reason" \
    said "^launch: 2 ranks in place of 4, layout .*: the fastest .* that fits: "
check "two ranks go on" said "^launch: starting again on 2 ranks from .*checkpoint-"
check "with the losses of four" agree "$tmp/calm" "$tmp/less" "$steps"
rm -f "$tmp/out"
launch "${hosts[@]}" --min-ranks 3 -- checkpoint.output_dir="$tmp/few" & job=$!
strike few "^step [0-9]*/" 2>/dev/null
wait $job; code=$?
check "fewer than --min-ranks: exit code 6, not $code" [ $code -eq 6 ]
report
