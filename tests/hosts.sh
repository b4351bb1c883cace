#!/usr/bin/env bash
# Four hosts on one machine: network namespaces, each with a host name and an address, joined by a bridge, so
# that ranks use TCP as between machines. Four ranks have the losses of one rank; then a host is cut off, and
# all ranks exit, the rank on that host too; treb launch goes on with the hosts that are left. Needs root; the
# network of the machine itself is not changed.
. tests/ranklab.sh
has_mpi || skip "no mpirun, or a build without MPI"
command -v ip >/dev/null && command -v unshare >/dev/null || skip "no ip or no unshare; tools/setup.sh hosts"
[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
net=treb$$ silence=4 steps=6
hosts="0 1 2 3"

close_hosts() {
    local n
    for n in $hosts switch; do
        ip netns pids $net-$n | xargs -r kill -9
        ip netns del $net-$n
    done 2>/dev/null
    rm -rf "$tmp"
}
trap close_hosts EXIT

open_hosts() {                           # the bridge is in a namespace, too
    ip netns add $net-switch && ip -n $net-switch link add bridge type bridge &&
        ip -n $net-switch link set bridge up || return
    for h in $hosts; do
        ip netns add $net-$h &&
        ip -n $net-$h link add eth0 type veth peer name port$h netns $net-switch &&
        ip -n $net-switch link set port$h master bridge up &&
        ip -n $net-$h addr add 10.77.0.$((h + 1))/24 dev eth0 &&
        ip -n $net-$h link set eth0 up && ip -n $net-$h link set lo up || return
    done
}
open_hosts 2>"$tmp/out" || skip "no network namespaces here ($(head -n 1 "$tmp/out"))"

# mpirun starts its daemons with this script in place of ssh: host 10.77.0.N is namespace N - 1.
cat > "$tmp/enter" <<ENTER
#!/bin/sh
h=\$((\${1##*.} - 1)); shift
ip -n $net-switch link show port\$h up | grep -q . || exit 255          # cut off
exec ip netns exec $net-\$h unshare --uts sh -c "hostname host\$h; \$*"
ENTER
chmod +x "$tmp/enter"
from=(ip netns exec $net-0 unshare --uts sh -c 'hostname host0; exec "$0" "$@"')
over=(--host 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1,10.77.0.4:1 --mca plm_rsh_agent "$tmp/enter" --map-by node)

run() {                                  # run FOLDER overrides...: starts a rank on each host
    local folder=$1; shift
    ranks_start 4 "${over[@]}" -- "$treb" train /dev/null "${recipe[@]}" train.max_steps=$steps \
        comm.timeout=$silence checkpoint.output_dir="$folder" "$@"
}
bytes()  { ip netns exec $net-"$1" cat /sys/class/net/eth0/statistics/tx_bytes; }
codes()  { for r in $hosts; do cat "$tmp/code.$r" 2>/dev/null || echo none; done | tr '\n' ' '; }
whole()  { run "$@"; wait $job; [ "$(codes)" = "0 0 0 0 " ]; }
trains() { grep -aq loss "$tmp/out.0" 2>/dev/null; }
ended()  { [ "$(count code)" -eq 4 ]; }
one() {
    "$treb" train /dev/null "${recipe[@]}" train.max_steps=$steps checkpoint.output_dir="$tmp/one" \
        >"$tmp/out" 2>&1
}

small_moe
check "one rank" one
for layout in "parallel.zero=3" "parallel.tp=2 parallel.ep=4" \
              "parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep"; do
    name=${layout//[^a-z0-9]/} before=$(bytes 2)
    check "four hosts, $layout" whole "$tmp/$name" $layout
    check "$layout has the losses of one rank" agree "$tmp/one" "$tmp/$name" $steps
    check "$layout sends over the network" [ $(($(bytes 2) - before)) -gt 500000 ]
    echo "  $layout: $((($(bytes 2) - before) / 1024)) KiB left host2"
done

# mpirun cannot reach its daemon on the host that is cut off and may wait for it. RANK_LIMIT bounds this wait,
# which is not tested.
cut_off() {                              # cut_off HOST
    local other=$(($1 ? 0 : 1))
    steps=100000 RANK_LIMIT=60 run "$tmp/cut$1"
    until_of 40000 trains
    ip -n $net-switch link set port$1 down
    local start; start=$(now_ms)
    until_of 30000 ended
    ms=$(($(now_ms) - start))
    check "host$1 is cut off: all exit with 6, not $(codes)" [ "$(codes)" = "6 6 6 6 " ]
    check "within comm.timeout and 6 s, not $ms ms" [ $ms -lt $((1000 * silence + 6000)) ]
    check "rank $other names the lost rank" \
        grep -aq "exits: rank $1 (host host$1, .*) sent no heartbeat" "$tmp/out.$other"
    echo "  host$1 cut off: the last rank ended after $ms ms, comm.timeout is $silence s"
    for h in $hosts; do ip netns pids $net-"$h" | xargs -r kill -9; done 2>/dev/null
    { wait $job; } 2>/dev/null
    ip -n $net-switch link set port$1 up
    for h in $hosts; do ip -n $net-"$h" neigh flush all; done    # hosts that did not answer are remembered
    sleep 1
}
cut_off 3
check "rank 0 names the call and who is missing" \
    grep -aqE "waits in [a-z_]+ [0-9]+ of [a-z_]+ \(.*: ranks .* arrived, rank.* 3 did not" "$tmp/out.0"
cut_off 0

# treb launch: host3 is cut off after the first checkpoint, and the other hosts go on from it.
launch() {                               # launch FOLDER overrides...
    local folder=$1; shift
    timeout -k 5 120 "${from[@]}" "$treb" launch --hosts 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1,10.77.0.4:1 \
        --agent "$tmp/enter" --restart 1 train /dev/null "${recipe[@]}" train.max_steps=$steps \
        comm.timeout=$silence checkpoint.save_steps=2 checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
said() { grep -aq -- "$1" "$tmp/out"; }
rm -f "$tmp"/out.*
steps=24
launch "$tmp/launch" parallel.tp=2 parallel.ep=4 & job=$!
until_of 40000 said "saved .*checkpoint-2 "
ip -n $net-switch link set port3 down
wait $job; code=$?
check "launch goes on without host3: exit code 0, not $code" [ $code -eq 0 ]
check "and says so" said "no answer from 10.77.0.4:1"
check "on the hosts that are left" said "starting again on [23] ranks from .*checkpoint-"
grep -a "^launch: " "$tmp/out" | sed 's/^/  /'
rm -rf "$tmp/one"
check "one rank, $steps steps" one
check "with the losses of one rank" agree "$tmp/one" "$tmp/launch" $steps
report
