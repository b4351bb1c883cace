#!/usr/bin/env bash
# A Slurm cluster of one node, from Debian's slurm-wlm and munge, for the duration of this script: srun starts
# four ranks with the losses of one rank, and when a rank is killed the others exit. Needs root; writes only
# to a temporary folder. `tests/slurm.sh command...` runs the command in that Slurm instead of the tests
# (srun, sinfo, bash).
. tests/ranklab.sh
for p in munged slurmctld slurmd srun; do
    command -v $p >/dev/null || skip "no $p; tools/setup.sh slurm"
done
[ "$(id -u)" -eq 0 ] || skip "slurmd needs root"
has_mpi || skip "no mpirun, or a build without MPI"
srun_pmix() { ls /usr/lib/*/slurm*/mpi_pmix.so >/dev/null 2>&1; }
srun_pmix || skip "this Slurm has no PMIx plugin"

host=$(hostname -s) port=$((20000 + RANDOM % 10000)) daemons=()
export SLURM_CONF=$tmp/slurm.conf
mkdir "$tmp/state" "$tmp/spool"
cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$tmp/munge.socket
CryptoType=crypto/munge
MpiDefault=pmix
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
daemon() { local log=$1; shift; "$@" >"$tmp/out.$log" 2>&1 & daemons+=($!); }
close_all() {
    for p in "${daemons[@]}"; do kill "$p"; done
    sleep 0.5
    for p in "${daemons[@]}"; do kill -9 "$p"; done
    wait
} 2>/dev/null
trap 'close_all; rm -rf "$tmp"' EXIT

head -c 128 /dev/urandom > "$tmp/munge.key"; chmod 600 "$tmp/munge.key"
daemon munged munged -F --force --key-file="$tmp/munge.key" --socket="$tmp/munge.socket" \
    --pid-file="$tmp/munged.pid" --log-file="$tmp/munged.log" --seed-file="$tmp/munged.seed"
until_of 10000 [ -S "$tmp/munge.socket" ]
daemon slurmctld slurmctld -D
daemon slurmd slurmd -D -N "$host"
ready() { [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; }
check "the node is there" until_of 30000 ready
if [ $# -gt 0 ]; then "$@"; exit; fi

small_moe
steps=6
srun4() {                                # srun4 FOLDER options of srun... -- overrides...
    local folder=$1 words=(); shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    timeout 120 srun -n 4 "${words[@]}" "$treb" train /dev/null "${recipe[@]}" train.max_steps=$steps \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
one() {
    "$treb" train /dev/null "${recipe[@]}" train.max_steps=$steps checkpoint.output_dir="$tmp/one" \
        >"$tmp/out" 2>&1
}
check "one rank" one
check "srun starts four" srun4 "$tmp/dp4" --mpi=pmix -- parallel.zero=3
check "they have the losses of one rank" agree "$tmp/one" "$tmp/dp4" $steps
check "so do tp 2 and ep 4" srun4 "$tmp/tp2" --mpi=pmix -- parallel.tp=2 parallel.ep=4
check "to the same losses" agree "$tmp/one" "$tmp/tp2" $steps
in_allocation() {
    timeout 120 salloc -n 4 "$treb" launch -n 4 train /dev/null "${recipe[@]}" train.max_steps=$steps \
        parallel.zero=3 checkpoint.output_dir="$tmp/launch" >"$tmp/out" 2>&1
}
check "treb launch in an allocation" in_allocation
check "to the same bits as srun" same_bits "$tmp/dp4" "$tmp/launch"
# Debian's Open MPI supports PMIx only.
refused() { ! srun4 "$tmp/pmi2" --mpi=pmi2 -- && [ ! -e "$tmp/pmi2" ]; }
check "without a common PMI no rank trains alone" refused
batch() {
    sbatch -W -n 4 -o "$tmp/out" --wrap "srun $treb train /dev/null ${recipe[*]@Q} train.max_steps=$steps \
        checkpoint.output_dir=$tmp/batch" >/dev/null
}
check "a batch script" batch
check "has the losses of one rank" agree "$tmp/one" "$tmp/batch" $steps

# A rank is killed. Slurm itself would let the others wait.
steps=100000
srun4 "$tmp/kill" --mpi=pmix -- & job=$!
trains() { grep -q loss "$tmp/kill/train.log" 2>/dev/null; }
until_of 60000 trains
for p in $(pgrep -f "^$treb train .*output_dir=$tmp/kill"); do
    grep -qz '^SLURM_PROCID=2$' "/proc/$p/environ" && victim=$p
done
kill -9 "$victim"
start=$(now_ms)
wait $job; code=$?
check "all end within 10 s of a kill, not $(($(now_ms) - start)) ms" [ $(($(now_ms) - start)) -lt 10000 ]
check "srun fails, with $code" [ $code -ne 0 ]
check "and rank 0 names it" grep -aq "rank 0 exits: rank 2 (host .*, process $victim) died: " "$tmp/out"
report
