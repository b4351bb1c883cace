#!/usr/bin/env bash
# Registers, stack and spills of kernels, from what ptxas says (nvcc -Xptxas -v): kernel_registers.sh [-short]
# FILE... with files <name>.<compute capability>.txt, as `make CUDA=1 kernel-registers` makes them. Prints a
# line for each kernel, -short: for each name, and kernels that spill. Exits with 1 if one spills: the loops
# of all these kernels are hot.
set -u
short=0
[ "${1:-}" != -short ] || { short=1; shift; }
for f in "$@"; do
    name=$(basename "$f" .txt)
    c++filt < "$f" | awk -v file="${name%.*}" -v arch="${name##*.}" '
        /Compiling entry function/ {
            kernel = $0
            sub(/.*entry function .(void )?/, "", kernel)
            sub(/. for .sm_.*/, "", kernel)
            gsub(/\(anonymous namespace\)::/, "", kernel)
            sub(/\(TileArgs.*|\(Fp8Args.*|\(FlashArgs.*|\(int.*/, "", kernel)
        }
        /bytes stack frame/ { stack = $1; spills = $5 + $9 }
        /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            printf "%-24s sm_%-4s %4d registers %4d bytes of stack %4d spilled  %s\n", file, arch,
                   substr($0, RSTART + 5, RLENGTH - 5), stack, spills, substr(kernel, 1, 60)
        }'
done | sort -k1,1 -k2,2V | awk -v short=$short '
    function name_ends() {
        if (short && name) printf "%-24s %3d kernels, at most%s registers\n", name, kernels, most
    }
    $1 != name { name_ends(); name = $1; arch = most = ""; kernels = 0 }
    $2 != arch { arch = $2; top = 0; before = most }
    { kernels++; if ($3 > top) { top = $3; most = before " " arch ":" top } }
    !short || $9 > 0 { print }
    $9 > 0 { bad++; print "  spills" }
    END {
        name_ends()
        if (!NR) print "no kernels found"
        else if (bad || short) print (bad ? bad : "none") " of " NR " kernels spill"
        exit bad > 0 || !NR
    }'
