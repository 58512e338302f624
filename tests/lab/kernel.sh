#!/usr/bin/env bash
# Owns the guest kernels: which Debian package is the newest of each series, how it
# is fetched and verified, and where it is cached. What is newest is asked once a day.
# Usage: kernel.sh SERIES     prints the kernel's folder, which holds vmlinuz,
#                             vmlinux (if it can be unpacked), release, the suite
#                             that it is from, and lib/modules/<release>
#        kernel.sh FOLDER     prints it again: who has asked once keeps to the answer
set -euo pipefail

# series, suites, package prefixes. The newest version of all suites is taken, of
# equal ones that of the first suite: a kernel is what its users will have next, and
# Debian builds the same sources for each. From 7.2 on linux-image-* is an empty
# metapackage: vmlinuz is in linux-binary-*, the modules are in linux-modules-*,
# their lists in linux-base-*.
readonly table='
5.10  bullseye-security                                      linux-image
6.1   bookworm-security                                      linux-image
6.12  trixie-security,bookworm-security,bookworm-backports   linux-image
6.18  trixie-backports                                       linux-image
7.2   trixie-backports,forky,sid                             linux-binary,linux-modules,linux-base
7.3   trixie-backports,forky,sid                             linux-binary,linux-modules,linux-base
'
readonly day=86400 hour=3600
# What follows "SERIES." in a kernel's name; leaves out -rt-, -cloud-, -dbg and -unsigned.
readonly abi='[0-9]+(-[0-9]+)?([+][a-z0-9]+)*'

say() { printf 'kernel.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }
# shellcheck source-path=SCRIPTDIR source=apt.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/apt.sh"

if [[ $# -eq 1 && $1 == /* && -r $1/release && -r $1/suite ]]; then
    printf '%s\n' "$1"
    exit
fi
row=()
while read -r -a fields; do
    [[ ${fields[0]:-} == "${1:-}" && $# -eq 1 ]] && row=("${fields[@]}")
done <<<"${table:1:-1}"
if ((${#row[@]} == 0)); then
    known=$(awk 'NF { printf "%s%s", sep, $1; sep = ", " }' <<<"$table")
    die 2 "kernel series '$*': expected one of $known"
fi
series=${row[0]}
IFS=, read -r -a suites <<<"${row[1]}"
IFS=, read -r -a prefixes <<<"${row[2]}"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/kernels
# One line: folder, package, version and suite of the newest, and when that was asked.
# Its own time is when to ask again.
stamp=$cache/.newest-$series

# Sets what the stamp says; fails unless that kernel is whole.
read_stamp() {
    [[ -r $stamp ]] && read -r folder package version suite asked <"$stamp" &&
        [[ -e $cache/$folder/suite ]]
}
answer() {
    say "$series is $package $version from $suite (asked $asked)"
    printf '%s\n' "$cache/$folder"
}
fresh() { read_stamp && (($(date +%s) < $(stat -c %Y "$stamp"))); }

# Prints "KERNEL VERSION SUITE", the newest of all suites that can be read.
resolve() {
    local suite found
    for suite in "${suites[@]}"; do
        # In a shell of its own, as it may end it.
        found=$(newest_of "$suite") || { say "$suite cannot be read"; continue; }
        [[ -z $found ]] || printf '%s %s\n' "$found" "$suite"
    done | sort -s -k2,2V | awk '$2 != last { first = $0 } { last = $2 } END { if (NR) print first }'
}

# Prints "KERNEL VERSION", nothing if the suite has none of the series.
newest_of() (
    prefix=${prefixes[0]}
    use_suite "$1" 2>"$work/said-$1" || exit
    names=$(apt-cache search --names-only "^$prefix-${series//./\\.}\\.$abi-amd64\$" | cut -d' ' -f1)
    [[ -n $names ]] || exit 0
    # shellcheck disable=SC2086 # one name a word
    apt-cache madison $names | awk -F' *[|] *' '{ sub(/^ +/, "", $1); print $1, $2 }' |
        sed -n "s/^$prefix-\(.*\)-amd64 /\1 /p" | sort -k2,2V | tail -n 1
)

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

# fetch KERNEL VERSION SUITE: into the folder, which is never changed once it is there.
fetch() {
    local release=$1-amd64 prefix boot modules
    [[ ! -e $cache/$folder/suite ]] || return 0
    # Its index has been read for the resolution.
    export APT_CONFIG=$work/apt-$3/apt.conf
    mkdir "$work/root" "$work/kernel"
    for prefix in "${prefixes[@]}"; do
        (cd "$work" && apt-get -qq download "$prefix-$release=$2" >&2)
        dpkg -x "$work/$prefix-$release"_*.deb "$work/root"
    done
    boot=$(find "$work/root" -name "vmlinuz*" -type f)
    modules=$(find "$work/root" -path "*/lib/modules/$release" -type d)
    [[ -f $boot && -d $modules ]] || die 1 "$release: no vmlinuz or no modules in the packages"
    mkdir -p "$work/kernel/lib/modules"
    mv "$boot" "$work/kernel/vmlinuz"
    mv "$modules" "$work/kernel/lib/modules/"
    unpack "$work/kernel/vmlinuz" "$work/kernel/vmlinux"
    depmod -b "$work/kernel" "$release"
    printf '%s\n' "$release" >"$work/kernel/release"
    printf '%s\n' "$3" >"$work/kernel/suite"
    # Only a whole kernel gets its final name; whatever is there is not whole.
    rm -rf "${cache:?}/$folder"
    mv "$work/kernel" "$cache/$folder"
}

# Asks the suites, fetches what is new, and writes the stamp; fails with nothing changed.
renew() (
    read -r kernel found from < <(resolve) || exit 1
    if read_stamp && dpkg --compare-versions "$found" lt "$version"; then
        say "warning: the newest of $series is now $found, older than the cached $version: kept"
        touch -d "@$(($(date +%s) + hour))" "$stamp"
        exit
    fi
    folder=$kernel-amd64_$found
    fetch "$kernel" "$found" "$from"
    printf '%s %s %s %s %s\n' "$folder" "${prefixes[0]}-$kernel-amd64" "$found" "$from" \
        "$(date +%F)" >"$work/stamp"
    touch -d "@$(($(date +%s) + day))" "$work/stamp"
    mv "$work/stamp" "$stamp"
)

folder='' package='' version='' suite='' asked=''
mkdir -p "$cache"
exec {lock}>"$cache/.lock-newest-$series"
flock "$lock"
if ! fresh; then
    # Left by a call that was killed; the lock says that it is nobody's now.
    rm -rf "$cache/.work-newest-$series"-*
    work=$(mktemp -d "$cache/.work-newest-$series-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # Not in a condition, where errors within would be passed over.
    set +e
    (set -e; renew)
    renewed=$?
    set -e
    if ((renewed != 0)); then
        cat "$work"/said-* >&2 2>/dev/null || true
        read_stamp || die 1 "no kernel $series in ${suites[*]}, and none is cached"
        say "warning: no kernel $series to be had from ${suites[*]}: the cached one is used"
        # So that not every guest waits for a mirror that is not there.
        touch -d "@$(($(date +%s) + hour))" "$stamp"
    fi
    read_stamp
fi
answer
