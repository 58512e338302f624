#!/usr/bin/env bash
# Owns the tests for arm64: all are run in emulated guests, the unit tests in one.
# Usage: test.sh [WORD]     only the lab's cases with the word in their name, no unit tests
#        LAB_KERNELS: the guests' kernels, "6.1-arm64 6.12-arm64-16k 7.3-arm64" if not set
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cd "$here/../../.."

say() { printf 'test.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

(($# <= 1)) || die 2 "arguments '$*': expected a word of a case's name, or none"
read -r -a kernels <<<"${LAB_KERNELS:-6.1-arm64 6.12-arm64-16k 7.3-arm64}"
# A guest that takes longer hangs.
readonly guest_seconds=1500
# With less, no GiB is left whole for the hugepage: each has something of the kernel's own.
readonly memory=6G
# Of 2 MiB whatever the base page: where that has 16 KiB, the usual ones have 32 MiB.
# CMA would lie across the only 1 GiB that is free as a whole.
readonly append='cma=0 default_hugepagesz=2M hugepagesz=2M hugepages=192 hugepagesz=1G hugepages=1'
# How the lab and the harness of the unit tests close: counts of the good and the bad.
readonly closing='s/^guest: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p
    s/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p'
passed=0 failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# guest KERNEL [OPTION]... -- COMMAND...: runs it in a guest, and adds up what it closes with.
guest() {
    local kernel=$1 folder module good=0 bad=0 status=0
    shift
    folder=$("$here/kernel.sh" "$kernel")
    module=$("$here/module.sh" "$folder")
    (cd "$stage" && exec "$here/../guest.sh" --kernel "$folder" --userland "$tree/userland" \
        --memory "$memory" --nodes 2 --timeout "$guest_seconds" --append "$append" --env "LAB_MODULE=$module" "$@") |
        tee "$output" || status=$?
    read -r good bad < <(sed -n "$closing" "$output" | awk '{ g += $1; b += $2 } END { print g + 0, b + 0 }')
    if ((status != 0)); then
        say "the guest with $kernel ended with status $status"
        # Its cases may have gone well, and its kernel not.
        ((bad > 0)) || bad=1
    fi
    passed=$((passed + good)) failed=$((failed + bad))
}

scripts/need.sh test-arm64
tree=$("$here/tree.sh")
stage=$("$here/build.sh")
if (($# == 0)); then
    # shellcheck disable=SC2016 # for the shell in the guest
    guest "${kernels[0]}" --no-rdma -- sh -c 'cd "$0" && exec "$1"' "$PWD" "$stage/target/lab/unit"
fi
for kernel in "${kernels[@]}"; do
    for half in usual second; do
        guest "$kernel" -- target/lab/lab --in-guest "$kernel" "$half" "$@"
    done
    guest "$kernel" --parallel -- target/lab/lab --in-guest "$kernel" parallel "$@"
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0 && passed > 0))
