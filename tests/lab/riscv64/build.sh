#!/usr/bin/env bash
# Owns the guest's program: built for riscv64 on this machine, alone in an initrd.
# Usage: build.sh TREE     prints the initrd; TREE: the folder that tree.sh has printed
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

[[ $# -eq 1 && -x ${1:-}/rustc ]] || die 2 "folder '$*': expected one that tree.sh has printed"
for tool in riscv64-linux-gnu-gcc cpio cargo; do
    command -v "$tool" >/dev/null || die 1 "$tool is missing: install gcc-riscv64-linux-gnu, cpio and Rust"
done
readonly target=riscv64gc-unknown-linux-gnu out=$here/../../../target/riscv64
mkdir -p "$out/root"

# Nothing of the caller's build is meant for another machine.
env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u RUSTC_WRAPPER -u CARGO_BUILD_TARGET \
    CARGO_TARGET_DIR="$out" RUSTC="$1/rustc" \
    CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_LINKER=riscv64-linux-gnu-gcc \
    CARGO_TARGET_RISCV64GC_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --quiet --release --locked --target "$target" \
    --manifest-path "$here/Cargo.toml" >&2

cp "$out/$target/release/mrscope-riscv64" "$out/root/init"
(cd "$out/root" && printf '%s\n' init | cpio -o --quiet -H newc -R 0:0) >"$out/initrd.cpio"
readlink -f "$out/initrd.cpio"
