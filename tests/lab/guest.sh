#!/usr/bin/env bash
# Owns one guest's life: boots it, runs the command in it, hands back output and
# exit status, and ends the guest whatever happens.
set -euo pipefail

usage='guest.sh [--kernel SERIES|FOLDER] [--memory 4G] [--cpus 2] [--nodes 1] [--append "KERNEL ARGS"]
         [--forward HOSTPORT:GUESTPORT]... [--timeout SECONDS] [--share DIR]
         [--env K=V]... [--no-rdma] [--parallel] [--userland DIR] -- COMMAND [ARGS...]
With --parallel its CPUs run at the same time: slower, but what races shows.
NUMA nodes have equal shares of its memory and of its CPUs.
A kernel for arm64 is named by its FOLDER, and its programs lie in the userland,
which covers the host'\''s files.
The command runs in the folder guest.sh was called in. The host is read-only; the
share (console.log, dmesg.txt, qemu.log, yours) is /run/lab. Exit status: the
command'\''s; 124 timeout; 125 the guest did not come up or died; 126 the command
succeeded but the kernel logged a warning; 2 wrong usage.'
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

say() { printf 'guest.sh: %s\n' "$*" >&2; }
die() { say "$2"; exit "$1"; }
# bad OPTION VALUE EXPECTED
bad() { die 2 "$1 '$2': expected $3"; }
is_port() { [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] && (($1 <= 65535)); }
is_forward() { [[ $1 == *:* ]] && is_port "${1%%:*}" && is_port "${1#*:}"; }

series=6.1 memory=4G cpus=2 nodes=1 append='' timeout=600 share='' rdma=1 threads=single userland=''
forwards=() env=()
while (($# > 0)) && [[ $1 != -- ]]; do
    case $1 in
        --no-rdma) rdma=0; shift; continue ;;
        --parallel) threads=multi; shift; continue ;;
        -h | --help) printf '%s\n' "$usage"; exit ;;
        --kernel | --memory | --cpus | --nodes | --append | --forward | --timeout | --share | --env | --userland) ;;
        *) bad argument "$1" "an option of guest.sh, or -- before the command" ;;
    esac
    (($# > 1)) || bad option "$1" "a value after it"
    case $1 in
        --kernel)
            [[ $2 != /* || -r $2/release ]] || bad "$1" "$2" "a series, or a folder that kernel.sh has printed"
            series=$2 ;;
        --memory)
            [[ $2 =~ ^[1-9][0-9]*[MG]$ ]] || bad "$1" "$2" "a size such as 4G or 512M"
            memory=$2 ;;
        --cpus)
            [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || bad "$1" "$2" "a count from 1 to 999"
            cpus=$2 ;;
        --nodes)
            [[ $2 =~ ^[1-8]$ ]] || bad "$1" "$2" "a count from 1 to 8"
            nodes=$2 ;;
        --append) append=$2 ;;
        --forward)
            is_forward "$2" || bad "$1" "$2" "HOSTPORT:GUESTPORT, ports from 1 to 65535"
            forwards+=("$2") ;;
        --timeout)
            [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || bad "$1" "$2" "whole seconds, at least 1"
            timeout=$2 ;;
        --share)
            [[ -d $2 && -w $2 ]] || bad "$1" "$2" "a writable folder"
            share=$(readlink -f "$2") ;;
        --env)
            [[ $2 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || bad "$1" "$2" "NAME=VALUE"
            env+=("$2") ;;
        --userland)
            [[ -x $2/bin/busybox ]] || bad "$1" "$2" "the root of a system with busybox"
            userland=$(readlink -f "$2") ;;
    esac
    shift 2
done
(($# > 1)) || bad command "${*:2}" "-- and a command to run in the guest"
shift
megabytes=${memory%[MG]}
[[ $memory == *M ]] || ((megabytes *= 1024))
((cpus % nodes == 0 && megabytes % nodes == 0)) ||
    bad --nodes "$nodes" "a divisor of $cpus CPUs and of $megabytes MiB"

run='' qemu='' printer=''
# shellcheck disable=SC2317 # reached through the trap
cleanup() {
    trap - EXIT
    [[ -z $qemu ]] || kill -KILL "$qemu" 2>/dev/null || true
    # The printer ends when qemu has, so nothing writes to a folder that goes.
    [[ -z $printer ]] || wait "$printer" 2>/dev/null || true
    [[ -n $share || -z $run ]] || rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

kernel=$series
[[ $series == /* ]] || kernel=$("$here/kernel.sh" "$series") || exit "$(($? == 2 ? 2 : 125))"
case $(<"$kernel/release") in
    *-amd64)
        package=qemu-system-x86 console=ttyS0 output_tty=ttyS1
        machine=(qemu-system-x86_64 -M q35 -cpu max) ;;
    *-arm64*)
        [[ -n $userland ]] || bad --kernel "$series" "--userland too, as the host's programs are not for arm64"
        package=qemu-system-arm console=ttyAMA0 output_tty=ttyS0
        # Of those with atomic instructions the one that costs the least to emulate.
        machine=(qemu-system-aarch64 -M virt -cpu neoverse-n1) ;;
    *) die 125 "$kernel: for no machine that is known here" ;;
esac
for tool in "${machine[0]}" setpriv timeout; do
    command -v "$tool" >/dev/null || die 125 "$tool is missing: install $package and util-linux"
done
initrd=$("$here/initrd.sh" "$kernel" ${userland:+"$userland/bin/busybox"}) || exit 125

image=$kernel/vmlinux
[[ -e $image ]] || image=$kernel/vmlinuz
run=${share:-$(mktemp -d "${TMPDIR:-/tmp}/mrscope-lab-XXXXXX")}
# Qemu inherits the lock, so it holds for as long as the guest lives.
exec {lock}>"$run/.lock"
flock -n "$lock" || die 125 "share $run is in use by another guest"
rm -rf "$run/.lab" "$run/dmesg.txt" "$run/console.log"
mkdir "$run/.lab"
job_kernel=$kernel job_rdma=$rdma job_network=$((${#forwards[@]} > 0)) job_cwd=$PWD job_path=$PATH
job_env=("${env[@]}") job_command=("$@") job_tty=$output_tty
declare -p job_tty job_kernel job_rdma job_network job_cwd job_path job_env job_command >"$run/.lab/job"

netdev=user,id=n0,restrict=on
for forward in "${forwards[@]}"; do
    netdev+=,hostfwd=tcp:127.0.0.1:${forward%%:*}-:${forward#*:}
done
# loglevel=5 shows kernel warnings, which quiet would hide from the console.
cmdline="console=$console quiet loglevel=5 panic=-1 nokaslr mitigations=off apparmor=0 selinux=0 audit=0"
# The TSC as on real machines: the kernel distrusts an emulated one, and the HPET that it takes
# instead makes each reading of the clock cost as much as a system call.
cmdline+=" tsc=reliable clocksource=tsc"
cmdline+=" random.trust_cpu=on cryptomgr.notests nmi_watchdog=0 8250.nr_uarts=2 log_buf_len=1M $append"

# A socket a node, or the kernel complains that CPUs of one cache lie on two nodes.
node_devices=()
if ((nodes > 1)); then
    for ((node = 0; node < nodes; node++)); do
        # shellcheck disable=SC2054 # the commas are qemu's
        node_devices+=(-object "memory-backend-ram,id=m$node,size=$((megabytes / nodes))M"
            -numa "node,nodeid=$node,memdev=m$node,cpus=$((node * cpus / nodes))-$(((node + 1) * cpus / nodes - 1))")
    done
fi

output_device=(-serial chardev:out) userland_device=()
# The machine of arm64 has one serial port; a second is a PCI device.
# shellcheck disable=SC2054 # the commas are qemu's
[[ $package != qemu-system-arm ]] || output_device=(-device pci-serial,chardev=out)
if [[ -n $userland ]]; then
    # shellcheck disable=SC2054 # as above
    userland_device=(-fsdev "local,id=f2,path=${userland//,/,,},security_model=none,readonly=on"
        -device virtio-9p-pci,fsdev=f2,mount_tag=userland)
fi

# Qemu would leave its output non-blocking, which must not happen to the caller's.
exec {output}> >(exec cat)
printer=$!
# Pdeathsig ends the guest even if this script is killed, first timeout, then qemu.
# (Bash's own wait -n, with a timer beside qemu, at times misses that qemu ended.)
as_child=(setpriv --pdeathsig KILL --)
"${as_child[@]}" timeout --foreground --signal KILL "$timeout" "${as_child[@]}" \
    "${machine[@]}" -nodefaults -no-user-config -display none -no-reboot \
    -accel "tcg,thread=$threads" -smp "$cpus,sockets=$nodes" -m "$memory" "${node_devices[@]}" \
    -chardev "file,id=con,path=${run//,/,,}/console.log" -serial chardev:con \
    -chardev stdio,id=out,signal=off "${output_device[@]}" \
    -kernel "$image" -initrd "$initrd" -append "$cmdline" \
    -fsdev local,id=f0,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=f0,mount_tag=hostroot \
    -fsdev "local,id=f1,path=${run//,/,,},security_model=none" \
    -device virtio-9p-pci,fsdev=f1,mount_tag=run "${userland_device[@]}" \
    -netdev "$netdev" -device virtio-net-pci,netdev=n0,romfile= -device virtio-rng-pci \
    </dev/null 1>&"$output" 2>"$run/qemu.log" &
qemu=$!
SECONDS=0
exec {output}>&-
wait "$qemu" 2>/dev/null || true
qemu=''
took=$SECONDS
wait "$printer" || true
printer=''

status=125
if [[ -s $run/.lab/status ]]; then
    status=$(<"$run/.lab/status")
elif ((took >= timeout)); then
    status=124
    [[ -e $run/.lab/started ]] && what="the command was still running" || what="the guest had not come up"
    say "timeout: $what after $timeout s"
elif [[ -e $run/.lab/started ]]; then
    say "the guest died while the command ran"
else
    say "the guest did not come up"
fi

# The line at which the kernel complains. What it tells of a cgroup without memory, which a case may want, is none.
complaint() {
    awk '
        /invoked oom-killer:/ { oom = 1 }
        oom && !at && /Call Trace/ { at = NR; next }
        oom && /mem_cgroup_out_of_memory/ { oom = at = 0 }
        /WARNING:|BUG:|Oops|Call Trace/ { if (!at) at = NR; exit }
        END { if (at) print at }' "$1"
}

# A kernel that complained is a failure that the command may not have noticed.
for log in "$run/dmesg.txt" "$run/console.log"; do
    [[ -e $log ]] || continue
    line=$(complaint "$log")
    [[ -n $line ]] || continue
    say "the guest's kernel complained:"
    sed -n "$((line > 5 ? line - 5 : 1)),$((line + 60)){s/\r\$//;p}" "$log" >&2
    ((status != 0)) || status=126
    exit "$status"
done
if [[ ! -s $run/.lab/status ]]; then
    say "end of the guest's console:"
    # No console if qemu would not start: its own words tell then.
    tail -q -n 40 "$run/qemu.log" "$run/console.log" 2>/dev/null | tr -d '\r' >&2 || true
fi
exit "$status"
