#!/bin/bash
# Owns the guest once the host's files are there, as pid 1: mounts, devices,
# the command, its exit status, power-off.
set -euo pipefail

# guest.sh leaves here what to do, and reads here what came of it.
readonly job=/run/lab/.lab
# Busybox first: programs from the host start slowly.
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

finish() {
    dmesg >/run/lab/dmesg.txt || true
    # Last, as guest.sh takes a status as the sign that all else is written.
    [[ -z ${status:-} ]] || echo "$status" >"$job/status"
    poweroff -f
}
trap finish EXIT

mount_all() {
    ln -s /proc/self/fd /dev/fd
    ln -s fd/0 /dev/stdin
    ln -s fd/1 /dev/stdout
    ln -s fd/2 /dev/stderr
    mkdir -p /dev/pts /dev/shm /lib/modules
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t tracefs tracefs /sys/kernel/tracing
    mount -t debugfs debugfs /sys/kernel/debug
    mount -t bpf bpf /sys/fs/bpf
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount --bind "$job_kernel/lib/modules" /lib/modules
}

# Software RDMA over an interface that is always up: rxe0, 10.9.0.1, GID index 1.
# Its modules were loaded by init.sh.
start_rdma() {
    local gid='' tries
    ip link add dummy0 type dummy
    ip link set dummy0 mtu 9000 up
    ip addr add 10.9.0.1/24 dev dummy0
    rdma link add rxe0 type rxe netdev dummy0
    chmod 666 /dev/infiniband/uverbs*
    # The kernel fills the GID table in the background.
    for ((tries = 0; tries < 200; tries++)); do
        { gid=$(</sys/class/infiniband/rxe0/ports/1/gids/1); } 2>/dev/null || true
        [[ $gid != *:0a09:0001 ]] || return 0
        sleep 0.05
    done
    echo "guest-init: rxe0 got no GID for 10.9.0.1"
    return 1
}

# The addresses are those of qemu's user network.
start_network() {
    # The host's modprobe, which reads compressed modules.
    /sbin/modprobe virtio_net
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
}

# Ends what the command left running, or the output would never close.
end_leftovers() {
    local dir pid
    for dir in /proc/[0-9]*; do
        pid=${dir#/proc/}
        [[ $pid == 1 || $pid == "$1" ]] || kill -KILL "$pid" 2>/dev/null || true
    done
}

run_command() {
    local tty output
    # Here, where a failure ends the guest.
    cd "$job_cwd"
    # Raw, or the terminal would add a CR to each line.
    exec {tty}<>"/dev/$job_tty"
    stty raw -echo <&"$tty"
    # A pipe, so that a program sees no terminal, just as under any other harness.
    mkfifo /run/output
    cat /run/output >&"$tty" &
    output=$!
    : >"$job/started"
    status=0
    (
        exec {tty}>&-
        exec env -i HOME=/root "PATH=$job_path" "${job_env[@]}" "${job_command[@]}"
    ) </dev/null >/run/output 2>&1 || status=$?
    end_leftovers "$output"
    wait "$output"
    # Returns when the last byte is out.
    stty raw -echo <&"$tty"
}

job_tty='' job_kernel='' job_rdma=1 job_network=0 job_cwd=/ job_path=$PATH
job_env=() job_command=()
# shellcheck source=/dev/null # written by guest.sh for each run
source "$job/job"
mount_all
echo guest >/proc/sys/kernel/hostname
ip link set lo up
((job_rdma == 0)) || start_rdma
((job_network == 0)) || start_network
run_command
