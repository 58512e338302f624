#!/usr/bin/env bash
# Owns a run of mrscope from nothing: on this machine where it has an RDMA device,
# else in a guest with a demo workload, its figures shown as they change.
# Usage: run.sh auto|host|guest|build     build only builds
#        MRSCOPE_PORT: port on this machine, 10042 if not set
set -euo pipefail

# Ends with its parent, make above all, even if that is killed. Who had no parent
# left when this was set up sees another one now. A shell that starts make in the
# background may have had INT ignored.
if [[ ${1:-} != --child-of ]]; then
    exec env --default-signal=INT setpriv --pdeathsig TERM "$0" --child-of "$PPID" "$@"
fi
[[ $PPID == "$2" ]] || exit 143
mode=${3:-} arguments=$(($# - 2))

cd "$(dirname "$(readlink -f "$0")")/.."
source scripts/lib.sh

readonly series=6.1 redraw=2 plain_interval=10
readonly port=${MRSCOPE_PORT:-10042}
target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
readonly target
# Each child has a session of its own: it gets its signals from here alone.
readonly own=(setsid setpriv --pdeathsig TERM)

guest='' drawn=0
# shellcheck disable=SC2317 # reached through the trap
cleanup() {
    local pid
    trap - EXIT
    for pid in $step_pid $guest; do
        kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    [[ ! -t 1 ]] || printf '\e[?25h'
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

may_load_bpf() {
    local caps
    caps=0x$(sed -n 's/^CapEff:\t//p' /proc/self/status)
    # CAP_SYS_ADMIN, or CAP_PERFMON and CAP_BPF.
    (((caps >> 21 & 1) || ((caps >> 38 & 1) && (caps >> 39 & 1))))
}

choose_mode() {
    if ! compgen -G '/sys/class/infiniband/*' >/dev/null; then
        say "no device in /sys/class/infiniband: mrscope will run in a guest"
        mode=guest
    elif ! may_load_bpf; then
        say "no right to load BPF (root, or CAP_BPF and CAP_PERFMON): mrscope will run in a guest"
        mode=guest
    else
        mode=host
    fi
}

check_port() {
    if [[ ! $port =~ ^[1-9][0-9]{0,4}$ ]] || ((port > 65535)); then
        die 1 "MRSCOPE_PORT '$port': expected a port from 1 to 65535"
    fi
    if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        die 1 "port $port of 127.0.0.1 is taken: expected a free one, here or in MRSCOPE_PORT"
    fi
}

build() {
    # shellcheck disable=SC2119 # no parts beyond cargo and rustc
    use_rust
    step "building mrscope" "${own[@]}" cargo build --release --locked --bins
}

build_workload() {
    mkdir -p "$target/lab"
    step "building the demo workload" "${own[@]}" gcc -std=c11 -O2 -Wall -Wextra -Werror \
        tests/lab/workload*.c -libverbs -lpthread -o "$target/lab/workload.$$"
    mv "$target/lab/workload.$$" "$target/lab/workload"
}

# get PATH: the body of a good answer. Qemu takes the call before anybody listens
# in the guest, hence the time limit.
get() {
    local answer
    # shellcheck disable=SC2016 # for the shell in between
    answer=$(timeout --foreground 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
        printf "GET %s HTTP/1.0\r\n\r\n" "$2" >&3 && cat <&3' get "$port" "$1" 2>/dev/null) || return 1
    [[ $answer == HTTP/1.?" 200 "* ]] || return 1
    printf '%s\n' "${answer#*$'\r\n\r\n'}"
}

# Whether the page shows all that the demo's processes do.
shows_demo() {
    awk '/^mrscope_process_mr_registration_duration_seconds_count[{]comm="demo-/ && $NF > 0 { registering++ }
        /^mrscope_process_mr_registration_failures_total[{].*comm="demo-/ && $NF > 0 { failing++ }
        END { exit registering < 3 || !failing }' <<<"$page"
}

# hear SECONDS: shows a line that the guest writes within that time; fails if there
# is none. Ends the run if the guest has ended.
hear() {
    local line='' state=0 status=0
    read -r -t "$1" -u "$voice" line || state=$?
    if ((state == 0)); then
        erase
        say "guest: $line"
        return
    fi
    ((state <= 128)) || return 1
    wait "$guest" || status=$?
    guest=''
    ((status != 0)) || status=1
    erase
    die "$status" "the guest has ended"
}

boot() {
    exec {voice}< <(exec "${own[@]}" tests/lab/guest.sh --kernel "$series" \
        --nodes 2 --forward "$port:10042" --timeout 999999 -- \
        tests/lab/demo.sh "$target/release/mrscope" "$target/lab/workload" 2>&1 </dev/null)
    guest=$!
}

# An emulated guest needs half a minute, on a busy machine a few.
await_figures() {
    local begun=$SECONDS shown=$SECONDS
    until get /-/ready >/dev/null && page=$(get /metrics) && shows_demo; do
        ((SECONDS - begun < 300)) || die 1 "no figures on port $port after 300 s"
        if hear 1; then
            shown=$SECONDS
        elif ((SECONDS - shown >= 5)); then
            sign_of_life "waiting for the guest's figures" "$((SECONDS - begun))"
            shown=$SECONDS
        fi
    done
}

erase() {
    ((drawn == 0)) || printf '\e[%dA\e[J' "$drawn"
    drawn=0
}

# Two pages, so long apart, as a table in place of the one before, or as lines.
draw() {
    local form=plain text width
    [[ ! -t 1 ]] || form=wide
    text=$(scripts/table.sh "$form" <(printf '%s\n' "$before") <(printf '%s\n' "$page") "$1")
    if [[ $form == plain ]]; then
        printf '%s\n' "$text"
        return
    fi
    text+=$'\n\n'"http://127.0.0.1:$port/metrics in a guest with kernel $series; Ctrl-C ends it"
    # A line that breaks would spoil the count of lines.
    { width=$(stty size <&3 | cut -d' ' -f2); } 3>&1
    ((width == 0)) || text=$(cut -c "1-$width" <<<"$text")
    erase
    printf '\e[?25l\n%s\n' "$text"
    drawn=$(($(wc -l <<<"$text") + 1))
}

show() {
    local interval=$plain_interval before=$page before_us=0 now_us end answer
    [[ ! -t 1 ]] || interval=$redraw
    while :; do
        now_us=${EPOCHREALTIME/[.,]/}
        draw "$(awk -v us="$((before_us ? now_us - before_us : 0))" 'BEGIN { print us / 1e6 }')"
        before=$page before_us=$now_us
        end=$((SECONDS + interval))
        while ((SECONDS < end)); do hear "$((end - SECONDS))" || break; done
        if answer=$(get /metrics); then page=$answer; else say "no answer on port $port"; fi
    done
}

run_build() {
    scripts/need.sh run-host
    build
    say "built $target/release/mrscope"
}

run_host() {
    scripts/need.sh run-host
    build
    exec "$target/release/mrscope" --web.listen-address ":$port"
}

run_guest() {
    scripts/need.sh run-guest
    step "fetching the guest's kernel, if it is not cached" "${own[@]}" tests/lab/kernel.sh "$series"
    build
    build_workload
    say "booting a guest with software RDMA, in emulation"
    boot
    await_figures
    printf 'ready http://127.0.0.1:%s/metrics\n' "$port"
    show
}

if ((arguments != 1)) || [[ ! $mode =~ ^(auto|host|guest|build)$ ]]; then
    die 2 "mode '${*:3}': expected auto, host, guest or build"
fi
[[ $mode == build ]] || check_port
[[ $mode != auto ]] || choose_mode
"run_$mode"
