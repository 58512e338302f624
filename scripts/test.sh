#!/usr/bin/env bash
# Owns the order of all tests: tier by tier, each timed, up to the first that fails.
# Usage: test.sh [lab]     lab: that tier alone
#        LAB_KERNELS: series of the lab's guests, or all; "5.10 6.1 7.3" if not set
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source scripts/lib.sh

# A tier's name and one of its commands a line; bash runs them as they stand.
tiers='
format  cargo fmt --check
format  cargo fmt --check --manifest-path tests/lab/riscv64/Cargo.toml
format  clang-format-14 --dry-run -Werror bpf/*.[ch] tests/lab/*.[ch] tests/lab/module/*.c
lint    cargo clippy --release --locked --all-targets -- -D warnings
lint    cargo clippy --release --locked --no-default-features --lib --bins -- -D warnings
lint    cargo clippy --release --locked --test lab --test riscv64 -- -D warnings
lint    cargo clippy --release --locked --manifest-path tests/lab/riscv64/Cargo.toml --target-dir target -- -D warnings
lint    shellcheck -x scripts/*.sh tests/fixtures/*.sh tests/lab/*.sh tests/lab/*/*.sh .ci/run
unit    cargo test --release --locked --lib --bins
page    cargo test --release --locked --test house --test page --test engine --test accounts --test probing --test dashboards --test memory --test limits
host    cargo test --release --locked --test cli --test host --test tasks --test placement --test locks --test counters --test nldev --test stale --test hugepages --test prometheus --test write_probe
tlb     cargo test --release --locked --test riscv64
lab     cargo test --release --locked --test lab
'
export LAB_KERNELS=${LAB_KERNELS:-5.10 6.1 7.3}

case $# in
    0)
        scripts/need.sh test
        use_rust fmt clippy ;;
    1)
        [[ $1 == lab ]] || die 2 "tier '$1': expected lab, or none for all"
        tiers=$(grep "^$1 " <<<"$tiers")
        scripts/need.sh test-kernels
        use_rust ;;
    *) die 2 "arguments '$*': expected at most one" ;;
esac

declare -A took=() outcome=()
names=()
while read -r name command; do
    [[ -z $name || -n ${outcome[$name]:-} ]] || { took[$name]=0 outcome[$name]='not run' names+=("$name"); }
done <<<"$tiers"

tier='' tier_name='' begun=0
# shellcheck disable=SC2317 # reached through the trap
finish() {
    local name
    trap - EXIT
    # A tier has a session of its own, so that none of its processes is left.
    if [[ -n $tier ]]; then
        kill -TERM -- "-$tier" 2>/dev/null || true
        wait "$tier" 2>/dev/null || true
        outcome[$tier_name]=stopped took[$tier_name]=$((took[$tier_name] + SECONDS - begun))
    fi
    printf '\n'
    for name in "${names[@]}"; do
        printf '%-8s %4d s  %s\n' "$name" "${took[$name]}" "${outcome[$name]}"
    done
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

while read -r name command <&3; do
    [[ -n $name ]] || continue
    printf '\n== %s: %s\n' "$name" "$command"
    tier_name=$name begun=$SECONDS outcome[$name]=failed status=0
    setsid bash -euo pipefail -c "$command" 3<&- </dev/null &
    tier=$!
    wait "$tier" || status=$?
    tier=''
    took[$name]=$((took[$name] + SECONDS - begun))
    ((status == 0)) || exit 1
    outcome[$name]=passed
done 3<<<"$tiers"
