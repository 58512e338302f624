#!/usr/bin/env bash
# Owns the arm64 files of a guest, which are also what is linked against: Debian 12's
# packages, unpacked and never configured, and Rust's standard library for them.
# Usage: tree.sh     prints the folder: userland/ is a root, rust/ a sysroot of rustc
set -euo pipefail

say() { printf 'tree.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

(($# == 0)) || die 2 "arguments '$*': expected none"
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=../apt.sh
source "$here/../apt.sh"

# What guest-init.sh and the cases call, then what is linked against.
readonly packages=(bash busybox-static coreutils dash findutils grep ibverbs-providers
    ibverbs-utils iproute2 kmod mount procps prometheus sed util-linux util-linux-extra
    libc6-dev libelf-dev libgcc-s1 libibverbs-dev librdmacm-dev zlib1g-dev)

# A standard library is of use to the very compiler that it was built by.
rust=$(dpkg-query -W -f '${Version}' rustc-web 2>/dev/null) || die 1 "rustc-web is missing: install it"
key=$(cat "$here/tree.sh" - <<<"$rust" | sha256sum)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/arm64
tree=$cache/tree-${key:0:16}

# unpack FOLDER ROOT: its packages into a root whose /bin, /lib and /sbin are in /usr.
unpack() {
    local package name
    for package in "$1"/*.deb; do
        dpkg -x "$package" "$work/one"
        for name in bin lib sbin; do
            [[ ! -d $work/one/$name ]] || cp -a "$work/one/$name/." "$2/usr/$name/"
            rm -rf "$work/one/$name"
        done
        cp -a "$work/one/." "$2/"
        rm -rf "$work/one" "$package"
    done
}

fetch_userland() (
    local root=$work/new/userland name
    use_suite bookworm arm64
    say "fetching Debian 12's arm64 packages"
    apt-get -qq -y -o Debug::NoLocking=1 --no-install-recommends --download-only \
        install "${packages[@]}" >&2 || die 1 "cannot fetch ${packages[*]} for arm64"
    mkdir -p "$root/usr"/{bin,lib,sbin}
    for name in bin lib sbin; do ln -s "usr/$name" "$root/$name"; done
    unpack "$work/apt-bookworm-arm64/cache/archives" "$root"
    # Absolute, a link would lead out of the root.
    while read -r -d '' name; do
        ln -srfT "$root$(readlink "$name")" "$name"
    done < <(find "$root" -type l -lname '/*' -print0)
    # What the packages' own scripts would have chosen.
    ln -sf mawk "$root/usr/bin/awk"
)

fetch_rust() (
    use_suite bookworm-security arm64
    say "fetching Rust's standard library for arm64, $rust"
    (cd "$work" && apt-get -qq download "libstd-rust-web-dev=$rust" >&2) ||
        die 1 "no libstd-rust-web-dev $rust for arm64: expected this machine's rustc-web to be the newest"
    mkdir -p "$work/rust/usr"/{bin,lib,sbin} "$work/new/rust/lib"
    unpack "$work" "$work/rust"
    mv "$work/rust/usr/lib/rustlib" "$work/new/rust/lib/"
)

if [[ ! -e $tree ]]; then
    mkdir -p "$cache"
    exec {lock}>"$cache/.lock-tree"
    flock "$lock"
    # Another call may have made it meanwhile.
    if [[ ! -e $tree ]]; then
        work=$(mktemp -d "$cache/.work-XXXXXX")
        trap 'rm -rf "$work"' EXIT
        fetch_userland
        fetch_rust
        mv -T "$work/new" "$tree"
    fi
fi
printf '%s\n' "$tree"
