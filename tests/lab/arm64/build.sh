#!/usr/bin/env bash
# Owns the build for arm64 on this machine: mrscope, its unit tests, the lab and the
# lab's C programs, for the files of tree.sh.
# Usage: build.sh     prints the folder that the lab's guests run in, which holds
#                     target/release/{mrscope,mrscope-write-probe} and
#                     target/lab/{lab,unit,workload,queue_pin}
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
cd "$here/../../.."

say() { printf 'build.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

(($# == 0)) || die 2 "arguments '$*': expected none"
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
    BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu=--sysroot=$root \
    PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=$root \
    PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig

built=$(/usr/bin/cargo test --release --locked --target "$target" --lib --test lab \
    --no-run --message-format json-render-diagnostics)

# test_of KIND NAME: the test program of that target.
test_of() {
    local path
    path=$(sed -n "/\"kind\":\[\"$1\"\].*\"name\":\"$2\".*\"test\":true},\"features\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$built")
    [[ -x $path ]] || die 1 "cargo named no test program $2 ($1)"
    printf '%s\n' "$path"
}
lab=$(test_of test lab)
unit=$(test_of lib mrscope)

# The lab asks for its programs by these names, wherever it runs. What a guest still
# runs is not overwritten.
readonly stage=$out/stage
mkdir -p "$stage/target/release" "$stage/target/lab"
rm -f "$stage"/target/*/*
cp "$out/$target/release"/mrscope{,-write-probe} "$stage/target/release/"
cp "$lab" "$stage/target/lab/lab"
cp "$unit" "$stage/target/lab/unit"
c=("$compiler" "--sysroot=$root" -std=c11 -O2 -Wall -Wextra -Werror)
"${c[@]}" tests/lab/workload*.c -libverbs -lpthread -o "$stage/target/lab/workload"
"${c[@]}" tests/lab/queue_pin.c -o "$stage/target/lab/queue_pin"
printf '%s\n' "$stage"
