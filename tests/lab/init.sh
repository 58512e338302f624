#!/bin/sh
# Owns the guest's first steps, as pid 1 in the initrd: reaches the host's files
# and hands over to guest-init.sh. Any failure ends pid 1 and with it the guest.
# shellcheck shell=bash # it is busybox ash, which knows all that is used here
set -euo pipefail

# load LIST: each line names a module of the initrd and its parameters.
load() {
    local name parameters
    while read -r name parameters; do
        # shellcheck disable=SC2086 # one parameter a word
        insmod "/modules/$name.ko" $parameters || echo "init: cannot load $name"
    done <"$1"
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
load /modules/storage

# The host is not to be changed: all writes go to memory.
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 hostroot /host
lower=/host
if grep -q userland /sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag; then
    mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 userland /userland
    lower=/userland:/host
fi
mount -t tmpfs tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=$lower,upperdir=/upper/files,workdir=/upper/work overlay /new
# The host's sockets and pid files mean nothing here.
mount -t tmpfs -o mode=755 tmpfs /new/run
mkdir /new/run/lab
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 run /new/run/lab

# From here, where they are plain files, modules load much faster than from the
# host's tree, where later kernels have them compressed.
! grep -q '^declare -- job_rdma="1"' /new/run/lab/.lab/job || load /modules/rdma

# Guest-init.sh is spared the start of dozens of programs from the host.
cp -a /bin /new/run/bin
cp /guest-init.sh /new/run/guest-init.sh
for dir in proc sys dev; do
    mount --move "/$dir" "/new/$dir"
done
exec switch_root -c /dev/console /new /bin/bash /run/guest-init.sh
