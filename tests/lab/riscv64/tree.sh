#!/usr/bin/env bash
# Owns what the riscv64 guest is made from: a kernel, and a Rust that builds for it here,
# of Debian 13, fetched, verified and cached until the cache is emptied.
# Usage: tree.sh     prints the folder that holds vmlinux, release and rustc
set -euo pipefail

say() { printf 'tree.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=../apt.sh
source "$here/../apt.sh"

(($# == 0)) || die 2 "arguments '$*': expected none"
readonly suite=trixie
key=$(sha256sum <"$here/tree.sh")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/riscv64
tree=$cache/tree-${key:0:16}

# unpack FOLDER ROOT: its packages, and no more of them.
unpack() {
    local package
    for package in "$1"/*.deb; do
        dpkg -x "$package" "$2"
        rm "$package"
    done
}

fetch_kernel() (
    local name version root=$work/kernel
    use_suite "$suite" riscv64
    name=$(apt-cache search --names-only '^linux-image-[0-9].*[+]deb[0-9]+-riscv64$' | cut -d' ' -f1 | sort -V | tail -n 1)
    [[ -n $name ]] || die 1 "no linux-image for riscv64 in $suite"
    version=$(apt-cache madison "$name" | awk -F' *[|] *' 'NR == 1 { print $2 }')
    say "fetching $name $version"
    (cd "$work" && apt-get -qq download "$name=$version" >&2)
    unpack "$work" "$root"
    mv "$(find "$root/boot" -name 'vmlinu*' -type f)" "$new/vmlinux"
    printf '%s\n' "${name#linux-image-}" >"$new/release"
)

# Standard libraries are of use to the very compiler that they were built by, so both are
# of one version; the compiler is this machine's kind, with the libraries that it needs.
fetch_rust() (
    local version root=$new/host
    use_suite "$suite"
    version=$(apt-cache madison rustc | awk -F' *[|] *' 'NR == 1 { print $2 }')
    say "fetching rustc $version, and its standard library for riscv64"
    apt-get -qq -y -o Debug::NoLocking=1 --no-install-recommends --download-only \
        install "libstd-rust-dev=$version" >&2 || die 1 "cannot fetch libstd-rust-dev $version"
    mv "$work/apt-$suite/cache/archives"/*.deb "$work"
    (cd "$work" && apt-get -qq download "rustc=$version" >&2)
    unpack "$work" "$root"
    use_suite "$suite" riscv64
    (cd "$work" && apt-get -qq download "libstd-rust-dev=$version" >&2) ||
        die 1 "no libstd-rust-dev $version for riscv64"
    unpack "$work" "$work/riscv64"
    mkdir -p "$new/sysroot/lib/rustlib"
    mv "$root/usr/lib/rustlib/x86_64-unknown-linux-gnu" \
        "$work/riscv64/usr/lib/rustlib/riscv64gc-unknown-linux-gnu" "$new/sysroot/lib/rustlib/"
)

# The compiler is linked against newer libraries than this machine may have: it alone gets
# them, and nothing that it runs.
write_rustc() {
    cat >"$new/rustc" <<'RUSTC'
#!/usr/bin/env bash
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
host=$here/host
lib=$host/usr/lib/x86_64-linux-gnu
exec "$host/usr/lib64/ld-linux-x86-64.so.2" --argv0 rustc --library-path "$lib:$host/usr/lib" \
    "$host/usr/bin/rustc" --sysroot "$here/sysroot" "$@"
RUSTC
    chmod +x "$new/rustc"
}

if [[ ! -e $tree ]]; then
    mkdir -p "$cache"
    exec {lock}>"$cache/.lock"
    flock "$lock"
    # Another call may have made it meanwhile.
    if [[ ! -e $tree ]]; then
        work=$(mktemp -d "$cache/.work-XXXXXX")
        trap 'rm -rf "$work"' EXIT
        new=$work/new
        mkdir "$new"
        fetch_kernel
        fetch_rust
        write_rustc
        "$new/rustc" --version >&2 || die 1 "the fetched rustc does not run"
        mv -T "$new" "$tree"
    fi
fi
printf '%s\n' "$tree"
