#!/usr/bin/env bash
# Owns the lab's kernel modules for arm64: headers of the guest's kernel, the programs
# and the compiler that build for it here, and the cached outcome. See ../module.sh.
# Usage: module.sh KERNELDIR     prints the path of mrscope_lab.ko; others are beside it
set -euo pipefail

say() { printf 'module.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

[[ $# -eq 1 && -r ${1:-}/release ]] || die 2 "kernel folder '$*': expected one that kernel.sh has printed"
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
release=$(<"$1/release")
suite=$(<"$1/suite")
# shellcheck source-path=SCRIPTDIR source=../apt.sh
source "$here/../apt.sh"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/arm64
key=$(cat "$here/module.sh" "$here"/../module/* | sha256sum)
module=$cache/modules/$release-${key:0:16}/mrscope_lab.ko
root=$cache/headers/$release
headers=$root/usr/src/linux-headers-$release

unpack() {
    local package
    for package in "$1"/*.deb; do
        dpkg -x "$package" "$work/root"
        rm "$package"
    done
}

# The headers are arm64's, the programs of their build are this machine's.
fetch_headers() (
    local name=linux-headers-$release names kbuild
    use_suite "$suite" arm64
    names=$(apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n 's/^Depends: //p' |
        grep -oE 'linux-(headers|kbuild)-[^ ,]+') || true
    [[ -n $names ]] || die 1 "no $name in $suite any more: a module for $release cannot be built"
    kbuild=$(grep '^linux-kbuild' <<<"$names")
    names=$(grep '^linux-headers' <<<"$names")
    say "fetching $name"
    # shellcheck disable=SC2086 # one name a word
    (cd "$work" && apt-get -qq download "$name" $names >&2)
    use_suite "$suite"
    (cd "$work" && apt-get -qq download "$kbuild" >&2)
    unpack "$work"
    # It names its other half by the place it would be installed at.
    sed -i 's|/usr/src/|../|' "$work/root/usr/src/$name/Makefile"
)

# The compiler that the kernel was built with: its options are unknown to older ones.
fetch_compiler() (
    local base=${suite%%-*}
    use_suite "$base"
    say "fetching $1-aarch64-linux-gnu"
    # Nothing is installed, so there is no lock to take, nor a right to.
    apt-get -qq -y -o Debug::NoLocking=1 --no-install-recommends --download-only \
        install "$1-aarch64-linux-gnu" >&2 || die 1 "cannot fetch $1-aarch64-linux-gnu of $base"
    unpack "$work/apt-$base/cache/archives"
)

compiler_of() { grep -om1 'gcc-[0-9]*' "$1/usr/src/linux-headers-$release/.kernelvariables"; }
machines_compiler_is_older() {
    (($(aarch64-linux-gnu-gcc -dumpversion | cut -d. -f1) < ${1#gcc-}))
}

fetch() {
    local compiler
    mkdir -p "$work/root" "$cache/headers"
    fetch_headers
    compiler=$(compiler_of "$work/root")
    ! machines_compiler_is_older "$compiler" || fetch_compiler "$compiler"
    mv -T "$work/root" "$root"
}

# A newer compiler, and the headers' programs, need newer libraries: laid over /usr,
# where nothing else sees them.
build() {
    local compiler user=() within=()
    compiler=$(compiler_of "$root")
    if machines_compiler_is_older "$compiler"; then
        ((EUID == 0)) || user=(--user --map-root-user)
        # shellcheck disable=SC2016 # the inner shell's own
        within=(unshare "${user[@]}" --mount sh -c
            'mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec "$@"' "$root")
        compiler=aarch64-linux-gnu-$compiler
    else
        compiler=aarch64-linux-gnu-gcc
    fi
    cp -r "$here/../module" "$work/module"
    # Without BTF, for which pahole would be needed.
    "${within[@]}" make -C "$headers" M="$work/module" ARCH=arm64 \
        CROSS_COMPILE=aarch64-linux-gnu- CC="$compiler" \
        CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 1 "cannot build the module for $release"
    }
    mkdir -p "$(dirname "$module")"
    # The one that is looked for comes last.
    mv "$work/module/mrscope_lab.ko" "$work"
    find "$work/module" -name '*.ko' -exec mv -t "$(dirname "$module")" {} +
    mv "$work/mrscope_lab.ko" "$module"
}

if [[ ! -e $module ]]; then
    for tool in aarch64-linux-gnu-gcc make; do
        command -v "$tool" >/dev/null || die 1 "$tool is missing: install gcc-aarch64-linux-gnu and make"
    done
    mkdir -p "$cache/modules"
    exec {lock}>"$cache/modules/.lock-$release"
    flock "$lock"
    work=$(mktemp -d "$cache/modules/.work-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # Another call may have done either meanwhile.
    [[ -e $root ]] || fetch
    [[ -e $module ]] || build
fi
printf '%s\n' "$module"
