#!/usr/bin/env bash
# Owns the proof that the lab keeps its word: guest.sh is put to the test on one
# kernel series, the ways in which a guest may end above all; and kernel.sh with a
# mirror that is not there.
# Usage: selftest.sh [SERIES]     6.1 if not given
set -euo pipefail

series=${1:-6.1}
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
work=$(mktemp -d "${TMPDIR:-/tmp}/mrscope-selftest-XXXXXX")
passed=0 failed=0

# shellcheck disable=SC2317 # reached through the trap
cleanup() {
    local pid
    for pid in $(jobs -rp); do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT

guest() { "$here/guest.sh" --kernel "$series" "$@"; }

# check NAME EXPECTED ACTUAL
check() {
    if [[ $2 == "$3" ]]; then
        passed=$((passed + 1))
        printf 'ok    %s\n' "$1"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s: expected %q, got %q\n' "$1" "$2" "$3"
    fi
}

# wait_for SECONDS CONDITION...: polls, as there is no event to wait on.
wait_for() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# The qemu processes whose guest has the folder as its share.
qemu_of() {
    ps -eo pid=,comm=,args= |
        awk -v console="path=$1/console.log" '$2 ~ /^qemu/ && index($0, console) { print $1 }'
}
no_qemu() { [[ -z $(qemu_of "$1") ]]; }
gone() { wait_for 10 no_qemu "$1" && echo gone || echo "still there: $(qemu_of "$1")"; }

share() { mkdir "$work/$1" && echo "$work/$1"; }
# start SHARE ARGS...: a guest in the background, its command running.
start() {
    # A background process ignores INT, unless that is set back.
    env --default-signal=INT "$here/guest.sh" --kernel "$series" --share "$1" "${@:2}" \
        >"$1/output" 2>"$1/errors" &
    started=$!
    wait_for 120 test -e "$1/.lab/started"
}
# status_of COMMAND...: sets status. Not for a subshell, which could not wait.
status_of() { status=0; "$@" || status=$?; }

answers() {
    local line='' socket
    # The host's side accepts before anything listens in the guest.
    { exec {socket}<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    read -r -t 2 line <&"$socket" 2>/dev/null || true
    exec {socket}>&-
    [[ $line == "from the guest" ]]
}
ended() { answers "$1" || no_qemu "$2"; no_qemu "$2"; }
free_port() {
    local port
    for ((port = 20000 + RANDOM % 20000; ; port++)); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

echo "kernel series $series"

# A cache of its own with that one kernel in it, and an apt that reaches no mirror.
kernel=$("$here/kernel.sh" "$series")
check "a kernel's folder stands for itself" "$kernel" "$("$here/kernel.sh" "$kernel")"
mkdir -p "$work/cache/mrscope/kernels"
kernels=$work/cache/mrscope/kernels
ln -s "$kernel" "$kernels/"
cp "${kernel%/*}/.newest-$series" "$kernels/"
printf 'Acquire::http::Proxy "http://127.0.0.1:9";\nAcquire::Retries "0";\n' >"$work/no-mirror"
without_mirror() {
    XDG_CACHE_HOME=$work/cache APT_CONFIG=$work/no-mirror "$here/kernel.sh" "$@" 2>"$work/said"
}
touch -d "1 day" "$kernels/.newest-$series"
check "what was asked today is not asked again" "$kernels/${kernel##*/}" "$(without_mirror "$series")"
check "and is named" "1 $series is" "$(wc -l <"$work/said") $(sed -n 's/^kernel.sh: \(.* is\) .*/\1/p' "$work/said")"
touch -d "-1 minute" "$kernels/.newest-$series"
check "without a mirror the cached kernel is used" "$kernels/${kernel##*/}" "$(without_mirror "$series")"
check "with a warning" 1 "$(grep -c warning: "$work/said")"
without_mirror "$series" >/dev/null
check "and the mirror is not asked again at once" 0 "$(grep -c warning: "$work/said")"
rm "$kernels/.newest-$series"
status_of without_mirror "$series" >/dev/null
check "without a kernel there is none" "1 0" "$status $(find "$kernels" -name '.work-*' | wc -l)"

# Every line of output with its number, stdout and stderr in turn.
cat >"$work/plain" <<'JOB'
for i in $(seq 1 400); do echo "out $i"; echo "err $i" >&2; done
exit 7
JOB
for i in {1..400}; do printf 'out %s\nerr %s\n' "$i" "$i"; done >"$work/expected"
status_of guest --no-rdma -- sh "$work/plain" >"$work/actual"
check "exit status 7 is handed back" 7 "$status"
check "output arrives intact" same "$(cmp -s "$work/expected" "$work/actual" && echo same || echo different)"

cat >"$work/probe" <<'JOB'
echo "cwd $PWD"; echo "home $HOME"; echo "given $GIVEN"; echo "path $PATH"
test -t 1 && echo terminal; rdma link | tr -s ' '; stat -c %a /dev/infiniband/uverbs0
touch "$0.written"; echo shared >/run/lab/note; sleep 600 &
JOB
dir=$(share facts)
status=0
output=$(cd "$work" && guest --share "$dir" --env "GIVEN=two  words" -- sh "$work/probe") || status=$?
check "exit status 0 is handed back, with a process left behind" 0 "$status"
check "folder, environment, rxe0 active and open to all" "cwd $work
home /root
given two  words
path $PATH
link rxe0/1 state ACTIVE physical_state LINK_UP netdev dummy0 
666" "$output"
check "the host's files are not written to" no "$([[ -e $work/probe.written ]] && echo yes || echo no)"
check "the share is written to" shared "$(cat "$dir/note")"
check "the kernel's log is saved" yes "$(grep -q 'Linux version' "$dir/dmesg.txt" && echo yes || echo no)"

status=0
# shellcheck disable=SC2016 # for the shell in the guest
output=$(guest --no-rdma --nodes 2 --append "hugepages=192 hugepagesz=1G hugepages=1" -- sh -c \
    'cd /sys/devices/system/node && for node in node*; do
        echo $node cpu $(cat $node/cpulist) 2M $(cat $node/hugepages/hugepages-2048kB/nr_hugepages)
    done; cat node*/hugepages/hugepages-1048576kB/nr_hugepages | sort | paste -sd " "') || status=$?
check "two nodes share memory and CPUs, and have hugepages" "0 node0 cpu 0 2M 96
node1 cpu 1 2M 96
0 1" "$status $output"

dir=$(share warning)
status_of guest --no-rdma --share "$dir" -- sh -c 'echo "WARNING: of a test" >/dev/kmsg' 2>"$dir/errors"
check "a kernel warning gives 126" 126 "$status"
check "the warning is shown" yes "$(grep -q 'WARNING: of a test' "$dir/errors" && echo yes || echo no)"

# shellcheck disable=SC2016 # the guest's shell
readonly say_oom='for line in "x invoked oom-killer: y" "Call Trace:" "$1"; do echo "$line" >/dev/kmsg; done'
status_of guest --no-rdma -- sh -c "$say_oom" sh " mem_cgroup_out_of_memory+0x1/0x2" 2>/dev/null
check "a cgroup out of memory is no complaint" 0 "$status"
status_of guest --no-rdma -- sh -c "$say_oom" sh " out_of_memory+0x1/0x2" 2>/dev/null
check "a host out of memory is one" 126 "$status"

dir=$(share panic)
status_of guest --no-rdma --share "$dir" -- sh -c 'echo c >/proc/sysrq-trigger' 2>"$dir/errors"
check "a kernel panic gives 125" 125 "$status"

dir=$(share timeout)
start "$dir" --no-rdma --timeout 15 -- sh -c 'echo before; sleep 600'
status_of wait "$started"
check "a timeout gives 124" 124 "$status"
check "what was said before the timeout is there" before "$(cat "$dir/output")"
check "no qemu is left after a timeout" gone "$(gone "$dir")"

dir=$(share killed)
start "$dir" --no-rdma -- sleep 600
check "a guest runs" 1 "$(qemu_of "$dir" | wc -l)"
status_of guest --share "$dir" -- true 2>/dev/null
check "its share is not given to another" 125 "$status"
kill -KILL "$started"
wait "$started" 2>/dev/null || true # says "Killed" otherwise
check "no qemu is left after SIGKILL" gone "$(gone "$dir")"

for signal in TERM INT HUP; do
    dir=$(share "$signal")
    start "$dir" --no-rdma -- sleep 600
    kill "-$signal" "$started"
    status_of wait "$started"
    check "SIG$signal gives its status" "$((128 + $(kill -l "$signal")))" "$status"
    check "no qemu is left after SIG$signal" gone "$(gone "$dir")"
done

# Two guests at a time; the first answers over a forwarded port.
dir=$(share forward)
port=$(free_port)
start "$dir" --no-rdma --forward "$port:10042" -- sh -c \
    'until [ -e /run/lab/done ]; do echo from the guest | busybox nc -l -p 10042; done; echo served'
forwarding=$started
check "a second guest runs beside it" "beside" "$(guest --no-rdma -- echo beside)"
check "a forwarded port reaches the guest" yes "$(wait_for 30 answers "$port" && echo yes || echo no)"
touch "$dir/done"
# Whatever listener is waiting already is ended by a connection.
wait_for 30 ended "$port" "$dir" || true
status_of wait "$forwarding"
check "the listening guest ends well" "0 served" "$status $(cat "$dir/output")"

usage() {
    status_of "$here/guest.sh" "$@" >"$work/usage" 2>&1
    check "wrong usage gives 2 and one line: $*" "2 1" "$status $(wc -l <"$work/usage")"
}
usage
usage --
usage true
usage --kernel 4.4 -- true
usage --kernel /nonexistent -- true
usage --memory 3T -- true
usage --cpus 0 -- true
usage --nodes 0 -- true
usage --nodes 3 --cpus 4 -- true
usage --forward 80 -- true
usage --forward 1:65536 -- true
usage --timeout 0 -- true
usage --share /nonexistent -- true
usage --userland /nonexistent -- true
usage --env NOVALUE -- true
usage --append

printf '%s passed, %s failed\n' "$passed" "$failed"
((failed == 0))
