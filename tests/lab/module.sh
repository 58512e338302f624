#!/usr/bin/env bash
# Owns the lab's kernel modules: fetches the headers of a guest's kernel, and the
# kernel's compiler where this machine's is older, builds tests/lab/module once
# for each kernel and each state of its sources, and caches the outcome.
# Usage: module.sh SERIES     prints the path of mrscope_lab.ko, beside the others;
#                             SERIES may be a folder that kernel.sh has printed. Exit
#                             status 3: the archive no longer has the kernel's headers,
#                             so there is none to be had
set -euo pipefail

say() { printf 'module.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

[[ $# -eq 1 ]] || die 2 "arguments '$*': expected one kernel series"
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
kernel=$("$here/kernel.sh" "$1") || exit
release=$(<"$kernel/release")
suite=$(<"$kernel/suite")
# shellcheck source-path=SCRIPTDIR source=apt.sh
source "$here/apt.sh"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope
key=$(cat "$here/module.sh" "$here"/module/* | sha256sum)
module=$cache/modules/$release-${key:0:16}/mrscope_lab.ko
# The headers, and the compiler if it is not this machine's, as below /.
root=$cache/headers/$release
headers=$root/usr/src/linux-headers-$release

# unpack FOLDER: what was downloaded there, into the new root.
unpack() {
    local package
    for package in "$1"/*.deb; do
        dpkg -x "$package" "$work/root"
        rm "$package"
    done
}

fetch_headers() (
    local name=linux-headers-$release names
    use_suite "$suite"
    names=$(apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n 's/^Depends: //p' |
        grep -oE 'linux-(headers|kbuild)-[^ ,]+') || true
    [[ -n $names ]] || die 3 "no $name in $suite any more: a module for $release cannot be built"
    say "fetching $name"
    # shellcheck disable=SC2086 # one name a word
    (cd "$work" && apt-get -qq download "$name" $names >&2)
    unpack "$work"
    # It names its other half, and from 7.2 on itself, by the place it would be installed at.
    sed -i 's|/usr/src/|../|' "$work/root/usr/src/$name/Makefile"
)

# The compiler of the kernel whose headers are below ROOT, such as gcc-12.
compiler_of() { grep -om1 'gcc-[0-9]*' "$1/usr/src/linux-headers-$release/.kernelvariables"; }
machines_compiler_is_older() { (($(gcc -dumpversion | cut -d. -f1) < ${1#gcc-})); }

fetch_compiler() (
    local base=${suite%%-*}
    use_suite "$base"
    say "fetching $1, as this machine's gcc is older than $release's"
    # Nothing is installed, so there is no lock to take, nor a right to.
    apt-get -qq -y -o Debug::NoLocking=1 --no-install-recommends --download-only install "$1" >&2 ||
        die 1 "cannot fetch $1 of $base"
    unpack "$work/apt-$base/cache/archives"
)

fetch() {
    local compiler
    mkdir -p "$work/root" "$cache/headers"
    fetch_headers
    compiler=$(compiler_of "$work/root")
    ! machines_compiler_is_older "$compiler" || fetch_compiler "$compiler"
    mv -T "$work/root" "$root"
}

# An older kernel is built by this machine's compiler, as every kernel's options
# are known to newer compilers; the reverse does not hold. The newer compiler, and
# the headers' programs, need newer libraries too, so they are laid over /usr
# where nothing else sees them.
build() {
    local compiler user=() within=()
    compiler=$(compiler_of "$root")
    if machines_compiler_is_older "$compiler"; then
        ((EUID == 0)) || user=(--user --map-root-user)
        # shellcheck disable=SC2016 # the inner shell's own
        within=(unshare "${user[@]}" --mount sh -c
            'mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec "$@"' "$root")
    else
        compiler=gcc
    fi
    cp -r "$here/module" "$work/module"
    # Without BTF, for which pahole would be needed.
    "${within[@]}" make -C "$headers" M="$work/module" CC="$compiler" \
        CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 1 "cannot build the module for $release"
    }
    mkdir -p "$(dirname "$module")"
    # The one that is looked for last.
    mv "$work/module/mrscope_vendor.ko" "$(dirname "$module")"
    mv "$work/module/mrscope_lab.ko" "$module"
}

if [[ ! -e $module ]]; then
    for tool in gcc make; do
        command -v "$tool" >/dev/null || die 1 "$tool is missing: install $tool"
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
