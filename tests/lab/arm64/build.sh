#!/usr/bin/env bash
# Owns the build for arm64 on this machine: mrscope, its unit tests, the lab and the
# lab's C programs, for the files of tree.sh.
# Usage: build.sh             prints the folder that the lab's guest runs in: target/release/mrscope,
#                             target/lab/{lab,workload,queue_pin}
#        build.sh test ARGS   cargo test ARGS, each program run by qemu's emulation of one process
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cd "$here/../../.."

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

[[ $# == 0 || $1 == test ]] || die 2 "arguments '$*': expected none, or test and what follows cargo test"
tree=$("$here/tree.sh")
readonly target=aarch64-unknown-linux-gnu compiler=aarch64-linux-gnu-gcc
readonly out=$PWD/target/arm64 root=$tree/userland

# The host's programs of the build (build scripts, macros) are not concerned by any of it.
# The headers of libelf and zlib are where the compiler looks below its root.
export CARGO_TARGET_DIR=$out RUSTC=/usr/bin/rustc \
    CC_aarch64_unknown_linux_gnu=$compiler \
    CFLAGS_aarch64_unknown_linux_gnu=--sysroot=$root \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$compiler \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot $tree/rust -C link-arg=--sysroot=$root" \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L $root"
cargo=(/usr/bin/cargo)

if [[ ${1:-} == test ]]; then
    exec "${cargo[@]}" test --release --locked --target "$target" "${@:2}"
fi

"${cargo[@]}" build --release --locked --target "$target" --bin mrscope >&2
lab=$("${cargo[@]}" test --release --locked --target "$target" --test lab --no-run \
    --message-format json-render-diagnostics |
    sed -n 's/.*"name":"lab".*"executable":"\([^"]*\)".*/\1/p')
[[ -x $lab ]] || die 1 "cargo named no program for the test lab"

# The lab asks for its programs by these names, wherever it runs.
readonly stage=$out/stage
mkdir -p "$stage/target/release" "$stage/target/lab"
cp "$out/$target/release/mrscope" "$stage/target/release/mrscope"
cp "$lab" "$stage/target/lab/lab"
c=("$compiler" "--sysroot=$root" -std=c11 -O2 -Wall -Wextra -Werror)
"${c[@]}" tests/lab/workload*.c -libverbs -lpthread -o "$stage/target/lab/workload"
"${c[@]}" tests/lab/queue_pin.c -o "$stage/target/lab/queue_pin"
printf '%s\n' "$stage"
