#!/usr/bin/env bash
# Owns the guest's initrd: busybox, init.sh, guest-init.sh and the modules
# without which the guest cannot reach the host's files or RDMA.
# Usage: initrd.sh KERNELDIR [BUSYBOX]     prints the path of an uncompressed cpio;
#                                          BUSYBOX: the machine's own, if not set
set -euo pipefail

# Any that a kernel lacks, or has built in, is left out.
readonly storage=(virtio_pci 9pnet_virtio 9p overlay)
# The checksums are what rdma_rxe asks for without depending on it.
readonly rdma=(crc32_generic crc32_pclmul crc32c_generic crc32c_intel libcrc32c
    dummy ib_core ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe)
# What init.sh and guest-init.sh call.
readonly applets=(sh mount insmod grep cp switch_root mkdir ln chmod ip stty mkfifo
    cat env sleep dmesg poweroff)

die() { printf 'initrd.sh: %s\n' "$2" >&2; exit "$1"; }

if [[ $# -lt 1 || $# -gt 2 || ! -r $1/release ]]; then
    die 2 "kernel folder '$*': expected one folder that kernel.sh has printed"
fi
kernel=$1
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
release=$(<"$kernel/release")
busybox=${2:-$(command -v busybox)} || die 1 "busybox is missing: install busybox-static"

key=$(cat "$here/initrd.sh" "$here/init.sh" "$here/guest-init.sh" "$busybox" \
    "$kernel/release" "$kernel/vmlinuz" | sha256sum)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mrscope/initrds
initrd=$cache/$release-${key:0:16}.cpio
if [[ -e $initrd ]]; then
    printf '%s\n' "$initrd"
    exit
fi

command -v cpio >/dev/null || die 1 "cpio is missing: install cpio"
command -v modprobe >/dev/null || die 1 "modprobe is missing: install kmod"
# The guest has no libraries when busybox starts.
! ldd "$busybox" >/dev/null 2>&1 || die 1 "$busybox is not static: install busybox-static"

# Prints the files of the named modules, dependencies first.
closure() {
    local module
    for module in "$@"; do
        modprobe -C /dev/null -d "$kernel" -S "$release" --show-depends "$module" 2>/dev/null || true
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# pack FILE: puts it into the initrd as a plain file, which is all that busybox
# insmod takes, and prints its line for init.sh.
pack() {
    local name=${1##*/}
    name=${name%%.ko*}
    case $1 in
        *.xz) xz -dc "$1" ;;
        *.zst) zstd -qdc "$1" ;;
        *) cat "$1" ;;
    esac >"$root/modules/$name.ko"
    # Or it would make a dummy0 of its own.
    [[ $name != dummy ]] || name+=' numdummies=0'
    printf '%s\n' "$name"
}

mkdir -p "$cache"
work=$(mktemp -d "$cache/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,modules,proc,sys,dev,host,userland,upper,new}
cp "$busybox" "$root/bin/busybox"
for applet in "${applets[@]}"; do
    ln -s busybox "$root/bin/$applet"
done
cp "$here/init.sh" "$root/init"
cp "$here/guest-init.sh" "$root/guest-init.sh"
chmod +x "$root/init"
closure "${storage[@]}" >"$work/storage"
closure "${storage[@]}" "${rdma[@]}" | grep -vxFf "$work/storage" >"$work/rdma"
for list in storage rdma; do
    while read -r file; do
        pack "$file"
    done <"$work/$list" >"$root/modules/$list"
done
(cd "$root" && find . -print0 | cpio -0 -o --quiet -H newc -R 0:0) >"$work/initrd.cpio"
mv "$work/initrd.cpio" "$initrd"
printf '%s\n' "$initrd"
