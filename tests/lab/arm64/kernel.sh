#!/usr/bin/env bash
# Owns the guests' arm64 kernels: the newest of each series and flavour in Debian,
# fetched, verified and cached until the cache is emptied.
# Usage: kernel.sh SERIES-FLAVOUR     prints the kernel's folder, as ../kernel.sh does, but without
#                                     vmlinux: those of arm64 are not packed
set -euo pipefail

# series and flavour, suite, package prefixes as in ../kernel.sh. The base pages of
# -16k have 16 KiB, those of the others 4.
readonly table='
6.1-arm64       bookworm-security  linux-image
6.12-arm64      trixie-security    linux-image
6.12-arm64-16k  trixie-security    linux-image
7.3-arm64       trixie-backports   linux-binary,linux-modules,linux-base
'
readonly abi='[0-9]+(-[0-9]+)?([+][a-z0-9]+)*'

say() { printf 'kernel.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }
# shellcheck source-path=SCRIPTDIR source=../apt.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../apt.sh"

row=()
while read -r -a fields; do
    [[ ${fields[0]:-} == "${1:-}" && $# -eq 1 ]] && row=("${fields[@]}")
done <<<"${table:1:-1}"
if ((${#row[@]} == 0)); then
    known=$(awk 'NF { printf "%s%s", sep, $1; sep = ", " }' <<<"$table")
    die 2 "arm64 kernel '$*': expected one of $known"
fi
series=${row[0]%%-*} flavour=${row[0]#*-} suite=${row[1]}
IFS=, read -r -a prefixes <<<"${row[2]}"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/arm64/kernels
stamp=$cache/.series-${row[0]}

cached() {
    local release
    [[ -r $stamp ]] && read -r release <"$stamp" && [[ -e $cache/$release/suite ]] || return 1
    printf '%s\n' "$cache/$release"
}

# Prints "RELEASE VERSION".
resolve() {
    local prefix=${prefixes[0]} names
    names=$(apt-cache search --names-only "^$prefix-${series//./\\.}\\.$abi-$flavour\$" | cut -d' ' -f1)
    [[ -n $names ]] || die 1 "no $prefix package of ${row[0]} in $suite"
    # shellcheck disable=SC2086 # one name a word
    apt-cache madison $names | awk -F' *[|] *' '{ sub(/^ +/, "", $1); print $1, $2 }' |
        sed "s/^$prefix-//" | sort -k2,2V | tail -n 1
}

fetch() {
    local release version prefix boot modules
    use_suite "$suite" arm64
    read -r release version < <(resolve)
    [[ -n ${version:-} ]] || exit 1
    say "${row[0]} is ${prefixes[0]}-$release $version from $suite"
    mkdir "$work/root" "$work/kernel"
    for prefix in "${prefixes[@]}"; do
        (cd "$work" && apt-get -qq download "$prefix-$release=$version" >&2)
        dpkg -x "$work/$prefix-$release"_*.deb "$work/root"
    done
    boot=$(find "$work/root" -name "vmlinuz*" -type f)
    modules=$(find "$work/root" -path "*/lib/modules/$release" -type d)
    [[ -f $boot && -d $modules ]] || die 1 "$release: no vmlinuz or no modules in the packages"
    mkdir -p "$work/kernel/lib/modules"
    mv "$boot" "$work/kernel/vmlinuz"
    mv "$modules" "$work/kernel/lib/modules/"
    depmod -b "$work/kernel" "$release"
    printf '%s\n' "$release" >"$work/kernel/release"
    printf '%s\n' "$suite" >"$work/kernel/suite"
    rm -rf "${cache:?}/$release"
    mv "$work/kernel" "$cache/$release"
    printf '%s\n' "$release" >"$work/stamp"
    mv "$work/stamp" "$stamp"
}

cached && exit
mkdir -p "$cache"
exec {lock}>"$cache/.lock"
flock "$lock"
cached && exit # fetched by another call meanwhile
work=$(mktemp -d "$cache/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
fetch
cached
