#!/usr/bin/env bash
# Owns what has to be installed: which Debian packages each mode needs, and their
# installation where it can be done.
# Usage: need.sh run-host|run-guest|test|test-kernels|test-arm64     silent if nothing is missing
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source scripts/lib.sh

readonly build=(ca-certificates clang-14 gcc libc6-dev libelf-dev libibverbs-dev librdmacm-dev make
    pkg-config zlib1g-dev)
readonly guest=(busybox-static cpio debian-archive-keyring ibverbs-providers iproute2 kmod
    qemu-system-x86 xz-utils zstd)
# What cases call, and what else looks at sources.
readonly cases=(ibverbs-utils procps prometheus) check=(clang-format-14 shellcheck)
# Its compiler of Rust is Debian's, as only Debian has its standard library for arm64.
readonly arm64=(gcc-aarch64-linux-gnu qemu-system-arm rustc-web cargo-web)
# TLBs whose counters count are riscv64's.
readonly riscv64=(gcc-riscv64-linux-gnu libc6-dev-riscv64-cross opensbi qemu-system-misc)
# Those of bookworm-security, which keep up with Firefox.
readonly rust=(rustc-web cargo-web) rust_check=(rustfmt-web rust-web-clippy)

packages=() rust_packages=() rust_parts=()
case ${1:-} in
    run-host) packages=("${build[@]}" ibverbs-providers) rust_packages=("${rust[@]}") ;;
    run-guest) packages=("${build[@]}" "${guest[@]}") rust_packages=("${rust[@]}") ;;
    test-kernels)
        packages=("${build[@]}" "${guest[@]}" "${cases[@]}") rust_packages=("${rust[@]}") ;;
    test)
        packages=("${build[@]}" "${guest[@]}" "${cases[@]}" "${check[@]}" "${riscv64[@]}")
        rust_packages=("${rust[@]}" "${rust_check[@]}") rust_parts=(fmt clippy) ;;
    test-arm64) packages=("${build[@]}" "${guest[@]}" "${cases[@]}" "${arm64[@]}") ;;
    *) die 2 "mode '${1:-}': expected run-host, run-guest, test, test-kernels or test-arm64" ;;
esac

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' \
    "${packages[@]}" "${rust_packages[@]}" 2>/dev/null) || true
is_installed() { grep -qxF "$1 installed" <<<"$installed"; }
missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
done
if ! use_rust "${rust_parts[@]}"; then
    for package in "${rust_packages[@]}"; do
        # If the compiler is too old, all of them are.
        rust_serves && is_installed "$package" || missing+=("$package")
    done
fi
((${#missing[@]} > 0)) || exit 0

command=(apt-get install -y --no-install-recommends "${missing[@]}")
say "missing for $1: ${missing[*]}"
debian=$(sed -n 's/^ID=//p' /etc/os-release 2>/dev/null) || true
if [[ $debian != debian ]]; then
    die 1 "this is not Debian, where they would come by: ${command[*]}"
fi
if ((EUID != 0)); then
    die 1 "run as root: ${command[*]}"
fi

# Apt and dpkg are never cut off: they hear Ctrl-C themselves, and are waited for.
stopped=0
trap 'stopped=130' INT
trap 'stopped=143' TERM
trap 'stopped=129' HUP
apt() {
    local status=0
    DEBIAN_FRONTEND=noninteractive step "$1" env --default-signal=INT \
        apt-get -o DPkg::Lock::Timeout=560 "${@:2}" || status=$?
    ((stopped == 0)) || exit "$stopped"
    return "$status"
}

# Apt waits for dpkg's lock, but not for that of its lists, which a timer of the
# system may hold, and which gives no sign when it is free.
lists_locked() {
    local inode
    inode=$(stat -c %i /var/lib/apt/lists/lock 2>/dev/null) && grep -q ":$inode " /proc/locks
}
update() {
    local begun=$SECONDS
    while lists_locked && ((SECONDS - begun < 560 && stopped == 0)); do
        sign_of_life "waiting for another apt that reads the lists" "$((SECONDS - begun))"
        sleep 2
    done
    apt "reading the package lists" update
}

# Sets lacking to the missing packages that apt's lists do not offer.
find_lacking() {
    local offered package version
    offered=$(apt-cache policy "${missing[@]}" |
        awk '/^[^ ]/ { name = $1 } $1 == "Candidate:" && $2 != "(none)" { print name $2 }')
    lacking=()
    for package in "${missing[@]}"; do
        version=$(sed -n "s/^$package://p" <<<"$offered")
        if [[ -z $version ]]; then
            lacking+=("$package")
        elif [[ $package == rustc-web ]] && ! at_least "$version" "$(rust_required)"; then
            lacking+=("rustc-web $(rust_required) or newer")
        fi
    done
    ((${#lacking[@]} > 0))
}
lacking=()
if find_lacking; then
    update || exit 1
    if find_lacking; then
        die 1 "apt does not offer ${lacking[*]}: expected bookworm and bookworm-security in its sources"
    fi
fi

# No daemon of a package is to start, now or at the next boot.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
install() { apt "installing them and what they depend on" "${command[@]:1}"; }
# Lists that are too old name packages that the mirror no longer has.
install || { update && install; } || exit 1
if [[ " ${missing[*]} " == *" prometheus "* ]]; then
    update-rc.d prometheus disable
fi
use_rust "${rust_parts[@]}" || die 1 "Rust $(rust_required) with ${rust_parts[*]:-cargo} is still missing"
