#!/usr/bin/env bash
# Owns the guest kernels: which Debian package serves each series, how it is
# fetched and verified, and where it is cached.
# Usage: kernel.sh SERIES     prints the kernel's folder, which holds vmlinuz,
#                             vmlinux (if it can be unpacked), release, the suite
#                             that it is from, and lib/modules/<release>
set -euo pipefail

# series, suite, package prefixes, pinned kernel, pinned package version.
# The pin is the first choice; once the mirror has dropped it, the newest of the
# series is taken. From 7.2 on linux-image-* is an empty metapackage: vmlinuz
# is in linux-binary-*, the modules are in linux-modules-*, their lists in linux-base-*.
readonly table='
5.10  bullseye-security  linux-image                            5.10.0-46       5.10.262-1
6.1   bookworm-security  linux-image                            6.1.0-57        6.1.192-3
6.12  trixie-security    linux-image                            6.12.118+deb13  6.12.118-1
6.18  trixie-backports   linux-image                            6.18.15+deb13   6.18.15-1~bpo13+1
7.2   sid                linux-binary,linux-modules,linux-base  7.2.13+deb14    7.2.13-1
7.3   trixie-backports   linux-binary,linux-modules,linux-base  7.3.4+deb13     7.3.4-1~bpo13+1
'
# What follows "SERIES." in a kernel's name; leaves out -rt-, -cloud-, -dbg and -unsigned.
readonly abi='[0-9]+(-[0-9]+)?([+][a-z0-9]+)*'

say() { printf 'kernel.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }
# shellcheck source-path=SCRIPTDIR source=apt.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/apt.sh"

row=()
while read -r -a fields; do
    [[ ${fields[0]:-} == "${1:-}" && $# -eq 1 ]] && row=("${fields[@]}")
done <<<"${table:1:-1}"
if ((${#row[@]} == 0)); then
    known=$(awk 'NF { printf "%s%s", sep, $1; sep = ", " }' <<<"$table")
    die 2 "kernel series '$*': expected one of $known"
fi
series=${row[0]} suite=${row[1]} pin=${row[3]} pin_version=${row[4]}
IFS=, read -r -a prefixes <<<"${row[2]}"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/kernels
# Names the pin it was resolved for, so that a new pin is not hidden by an old kernel.
stamp=$cache/.series-$series

cached() {
    local stamped_pin release
    [[ -r $stamp ]] && read -r stamped_pin release <"$stamp" || return 1
    [[ $stamped_pin == "$pin" && -e $cache/$release/suite ]] || return 1
    printf '%s\n' "$cache/$release"
}

# Prints "KERNEL VERSION", the pinned one if the index has it, else the newest.
resolve() {
    local prefix=${prefixes[0]} names found
    names=$(apt-cache search --names-only "^$prefix-${series//./\\.}\\.$abi-amd64\$" | cut -d' ' -f1)
    [[ -n $names ]] || die 1 "no $prefix package of series $series in $suite"
    # shellcheck disable=SC2086 # one name a word
    found=$(apt-cache madison $names | awk -F' *[|] *' '{ sub(/^ +/, "", $1); print $1, $2 }')
    found=$(sed -n "s/^$prefix-\(.*\)-amd64 /\1 /p" <<<"$found")
    grep -xF "$pin $pin_version" <<<"$found" || sort -k2,2V <<<"$found" | tail -n 1
}

# unpack VMLINUZ VMLINUX: the kernel proper, at the place that the boot protocol's
# header tells. An emulated guest would spend a third of its boot unpacking it.
unpack() {
    local sectors offset length tool
    sectors=$(od -An -tu1 -j 497 -N 1 "$1")
    offset=$(od -An -tu4 -j 584 -N 4 "$1")
    # The last four bytes are the unpacked size, no part of the stream.
    length=$(($(od -An -tu4 -j 588 -N 4 "$1") - 4))
    for tool in xz zstd gzip lz4; do
        command -v "$tool" >/dev/null || continue
        head -c "$(((sectors + 1) * 512 + offset + length))" "$1" | tail -c "$length" |
            "$tool" -dc >"$2" 2>/dev/null || continue
        [[ $(head -c 4 "$2") != $'\177ELF' ]] || return 0
    done
    rm -f "$2"
    say "cannot unpack $1: guests will boot more slowly"
}

fetch() {
    local kernel version release prefix
    use_suite "$suite"
    read -r kernel version < <(resolve)
    [[ -n ${version:-} ]] || exit 1
    release=$kernel-amd64
    say "$series is ${prefixes[0]}-$release $version from $suite"
    if [[ ! -e $cache/$release/suite ]]; then
        mkdir "$work/root" "$work/kernel"
        for prefix in "${prefixes[@]}"; do
            (cd "$work" && apt-get -qq download "$prefix-$release=$version" >&2)
            dpkg -x "$work/$prefix-$release"_*.deb "$work/root"
        done
        local boot modules
        boot=$(find "$work/root" -name "vmlinuz*" -type f)
        modules=$(find "$work/root" -path "*/lib/modules/$release" -type d)
        [[ -f $boot && -d $modules ]] || die 1 "$release: no vmlinuz or no modules in the packages"
        mkdir -p "$work/kernel/lib/modules"
        mv "$boot" "$work/kernel/vmlinuz"
        mv "$modules" "$work/kernel/lib/modules/"
        unpack "$work/kernel/vmlinuz" "$work/kernel/vmlinux"
        depmod -b "$work/kernel" "$release"
        printf '%s\n' "$release" >"$work/kernel/release"
        printf '%s\n' "$suite" >"$work/kernel/suite"
        # Only a whole kernel gets its final name; whatever is there is not whole.
        rm -rf "${cache:?}/$release"
        mv "$work/kernel" "$cache/$release"
    fi
    printf '%s %s\n' "$pin" "$release" >"$work/stamp"
    mv "$work/stamp" "$stamp"
}

cached && exit
mkdir -p "$cache"
exec {lock}>"$cache/.lock-$series"
flock "$lock"
cached && exit # fetched by another call meanwhile
# Left by a call that was killed; the lock says that it is nobody's now.
rm -rf "$cache/.work-$series"-*
work=$(mktemp -d "$cache/.work-$series-XXXXXX")
trap 'rm -rf "$work"' EXIT
fetch
cached
