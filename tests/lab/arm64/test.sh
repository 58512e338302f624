#!/usr/bin/env bash
# Owns the tests for arm64: the unit tests, each program emulated, then the lab's cases
# in emulated guests.
# Usage: test.sh [WORD]     only the cases with the word in their name, and no unit tests
#        LAB_KERNELS: the guests' kernels, "6.1-arm64 6.12-arm64-16k 7.3-arm64" if not set
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cd "$here/../../.."

say() { printf 'test.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

(($# <= 1)) || die 2 "arguments '$*': expected a word of a case's name, or none"
# A guest that takes longer hangs.
readonly guest_seconds=1500
# Of 2 MiB whatever the base page: where that has 16 KiB, the usual ones have 32 MiB.
readonly append='default_hugepagesz=2M hugepagesz=2M hugepages=192'
passed=0 failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# guest KERNEL BOOT WORD: runs the cases of that guest, and adds up what it closes with.
guest() {
    local folder module good bad status=0 parallel=()
    [[ $2 != parallel ]] || parallel=(--parallel)
    folder=$("$here/kernel.sh" "$1")
    module=$("$here/module.sh" "$folder")
    (cd "$stage" && exec "$here/../guest.sh" --kernel "$folder" --userland "$tree/userland" \
        --timeout "$guest_seconds" --append "$append" --env "LAB_MODULE=$module" "${parallel[@]}" \
        -- target/lab/lab --in-guest "$1" "$2" ${3:+"$3"}) | tee "$output" || status=$?
    read -r good bad < <(sed -n 's/^guest: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$output") || bad=1
    # The cases went well, but the guest did not, or its kernel warned.
    ((status == 0 || bad > 0)) || bad=1
    passed=$((passed + ${good:-0})) failed=$((failed + bad))
    ((status == 0)) || say "$1, $2: the guest ended with status $status"
}

scripts/need.sh test-arm64
tree=$("$here/tree.sh")
(($# > 0)) || "$here/build.sh" test --lib --bins
stage=$("$here/build.sh")
for kernel in ${LAB_KERNELS:-6.1-arm64 6.12-arm64-16k 7.3-arm64}; do
    for boot in usual parallel; do
        guest "$kernel" "$boot" "${1:-}"
    done
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0 && passed > 0))
