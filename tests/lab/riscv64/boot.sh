#!/usr/bin/env bash
# Owns the guest's life: boots an initrd, prints what it says, and ends it whatever happens.
# Usage: boot.sh TREE INITRD     as tree.sh and build.sh have printed them; exit status 124: timeout
set -euo pipefail

say() { printf 'boot.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }

[[ $# -eq 2 && -r $1/vmlinux && -r $2 ]] || die 2 "arguments '$*': expected a folder of tree.sh and an initrd of build.sh"
for tool in qemu-system-riscv64 setpriv timeout; do
    command -v "$tool" >/dev/null || die 1 "$tool is missing: install qemu-system-misc, opensbi and util-linux"
done
# It takes some 10; one that takes longer hangs.
readonly seconds=300

# Plain rv64 can't leave the kernel out of a count.
# Pdeathsig ends the guest even if this script is killed, first timeout, then qemu.
as_child=(setpriv --pdeathsig KILL --)
exec "${as_child[@]}" timeout --foreground --signal KILL "$seconds" "${as_child[@]}" \
    qemu-system-riscv64 -M virt -cpu rv64,sscofpmf=true -smp 2 -m 512M -accel tcg,thread=multi \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$1/vmlinux" -initrd "$2" \
    -append 'console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init transparent_hugepage=never' </dev/null
