#!/usr/bin/env bash
# A full disk, and a limit on file size, while a checkpoint of adapters or a merged model is written: the exit
# code is 4, the message names the file and the reason, earlier checkpoints are intact and can be resumed, and
# no partial folder passes for a checkpoint or a model. The disk is a small tmpfs in a mount namespace; if
# mounting is not permitted, only the limit is tested.
if [ -z "${FULL_DISK:-}" ] && unshare -rm mount -t tmpfs none /mnt 2>/dev/null; then
    FULL_DISK=1 exec unshare -rm bash "$0"
fi
. tests/ranklab.sh
small_moe
export TMPDIR="$tmp"                     # for mpirun, which runs as another user in a namespace
disk="$tmp/disk" skipped=0
mkdir "$disk"
trap 'umount "$disk" 2>/dev/null; rm -rf "$tmp"' EXIT

train() {                                # train FOLDER keys...
    "$treb" train /dev/null "${recipe[@]}" "${base[@]}" train.global_tokens=256 checkpoint.output_dir="$@" \
        >"$tmp/out" 2>&1
}
exits() {                                # exits CODE command...
    local want=$1 rc; shift
    "$@"; rc=$?
    [ $rc -eq "$want" ] || { echo "  exit code $rc, not $want"; false; }
}
says()  { grep -q "^treb: .*$1.*$2" "$tmp/out"; }
limited() { (ulimit -f "$1"; shift; "$@"); }                     # blocks of 1024 bytes
base=()
check "a base model" train "$tmp/base" train.max_steps=1 checkpoint.hf=final
cp "$tmp/model/tokenizer.json" "$tmp/base/checkpoint-1/"
base=('model.preset=""' model.path="$tmp/base/checkpoint-1" lora.rank=8 checkpoint.hf=every)
check "adapters of two steps" train "$tmp/kept" train.max_steps=2

resume() {                               # resume FOLDER: goes on to step 4
    train "$1" train.max_steps=4 checkpoint.resume_from_checkpoint=auto
}
clean() { [ -z "$(ls -d "$1"/*.tmp 2>/dev/null)" ] && sound "$1"; }
sound() { [ "$(readlink "$1/last")" = checkpoint-2 ] && [ ! -e "$1/checkpoint-4" ] &&
          "$treb" convert --native "$1/last" "$tmp/native" >>"$tmp/out" 2>&1 && rm -r "$tmp/native"; }
merge() { "$treb" convert --merge "$tmp/kept/last" "$1" >"$tmp/out" 2>&1; }
peft()  { "$treb" convert "$tmp/kept/last" "$1" >"$tmp/out" 2>&1; }
empty() {                                # empty FOLDER: nothing in it passes for a model or an adapter
    [ -z "$(find "$1" -name config.json -o -name adapter_config.json -o -name '*.safetensors*' \
        -o -name '.*.tmp')" ]
}

# ---- a limit on file size ----
cp -r "$tmp/kept" "$tmp/run"
check "a checkpoint beyond the limit" exits 4 limited 64 resume "$tmp/run"
check "says which file and why" says "checkpoint-4.*state/model.safetensors" "File too large"
check "leaves earlier checkpoints and nothing else" clean "$tmp/run"
check "and resumes without the limit" resume "$tmp/run"
check "a merged model beyond the limit" exits 4 limited 256 merge "$tmp/merged"
check "says which file and why" says "merged/model.safetensors" "File too large"
check "leaves no model" empty "$tmp/merged"
check "and succeeds on the second try" merge "$tmp/merged"
check "an adapter beyond the limit" exits 4 limited 16 peft "$tmp/peft"
check "says which file and why" says "peft/adapter_model.safetensors" "File too large"
check "leaves no adapter" empty "$tmp/peft"

# ---- a full disk ----
fill() {                                 # fill KB: leaves KB kilobytes free
    rm -f "$disk/filler"
    local left; left=$(df -k --output=avail "$disk" | tail -n 1)
    head -c $(((left - $1) * 1024)) /dev/zero >"$disk/filler"
}
if [ "${FULL_DISK:-}" ] && mount -t tmpfs -o size=4m none "$disk"; then
    cp -r "$tmp/kept" "$disk/run"
    fill 24
    check "a disk without space is refused at the start" exits 4 resume "$disk/run"
    check "with the size of a checkpoint and the key" says "a checkpoint takes .* the disk has" check_space
    check "leaves earlier checkpoints and nothing else" clean "$disk/run"
    base+=(checkpoint.check_space=false)         # from here on saves meet the end of the disk
    took=0
    for size in 24 200 800 950 1600; do # too small for the state, for the PEFT files, then enough
        fill $size
        resume "$disk/run"; rc=$?
        if [ $rc -eq 0 ]; then took=$size; break; fi
        check "$size KB: exit code 4, not $rc" [ $rc -eq 4 ]
        check "$size KB: says which file and why" says "run/" "No space left on device"
        check "$size KB: leaves earlier checkpoints and nothing else" clean "$disk/run"
    done
    check "it resumes once there is space, at $took KB" [ $took -gt 0 ]
    if has_mpi; then                     # two ranks, neither of which has space for its files
        rm -rf "$disk/run"
        cp -r "$tmp/kept" "$disk/run"
        fill 24
        ranks_start 2 -- "$treb" train /dev/null "${recipe[@]}" "${base[@]}" train.global_tokens=256 \
            parallel.ep=2 train.max_steps=4 \
            checkpoint.output_dir="$disk/run" checkpoint.resume_from_checkpoint=auto
        wait $job
        codes=$(echo $(cat "$tmp"/code.*))
        check "two ranks exit with 4, not $codes" [ "$codes" = "4 4" ]
        check "say which file and why" grep -q "^treb: .*checkpoint-4.*No space left on device" "$tmp/out.0"
        check "leave earlier checkpoints" sound "$disk/run"
    fi
    fill 300
    check "a merged model on a full disk" exits 4 merge "$disk/merged"
    check "says which file and why" says "merged/model.safetensors" "No space left on device"
    check "leaves no model" empty "$disk/merged"
    fill 100
    check "an adapter on a full disk" exits 4 peft "$disk/peft"
    check "says which file and why" says "peft/" "No space left on device"
    check "leaves no adapter" empty "$disk/peft"
    umount "$disk"
else
    skipped=1
    echo "  skip $(basename "$0"): mounting is not permitted; only the limit on file size was tested"
fi
report $skipped
