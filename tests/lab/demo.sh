#!/usr/bin/env bash
# Owns what a demo guest runs: mrscope on port 10042, and three processes with
# habits of their own, until the guest is ended.
# Usage: demo.sh MRSCOPE WORKLOAD     in a guest of guest.sh
set -euo pipefail

mrscope=$1 workload=$2
dir=$(mktemp -d /tmp/demo-XXXXXX)

say() { printf 'demo: %s\n' "$*"; }
die() { say "$*"; exit 1; }

# mrscope_says SECONDS: prints the next line of its log within that time. Fails if
# there is none; ends the demo if mrscope has ended.
mrscope_says() {
    local state=0
    line=''
    read -r -t "$1" -u "$log" line || state=$?
    ((state == 0 || state > 128)) || die "mrscope has ended"
    ((state == 0)) && printf '%s\n' "$line"
}

declare -A to=() from=()
# start NAME
start() {
    local in out
    mkfifo "$dir/$1.in" "$dir/$1.out"
    "$workload" <"$dir/$1.in" >"$dir/$1.out" &
    exec {in}>"$dir/$1.in" {out}<"$dir/$1.out"
    to[$1]=$in from[$1]=$out
    reply "$1" '"ok":true'
    ask "$1" "name comm=$1"
}
# reply NAME EXPECTED
reply() {
    local line=''
    read -r -t 60 -u "${from[$1]}" line || die "$1 does not answer"
    [[ $line == *"$2"* ]] || die "$1 answered $line: expected $2"
}
# ask NAME COMMAND [EXPECTED]
ask() {
    printf '%s\n' "$2" >&"${to[$1]}"
    reply "$1" "${3:-"\"ok\":true"}"
}

say "mrscope starts"
exec {log}< <(exec "$mrscope" 2>&1)
line=''
until [[ $line == *" msg=ready" ]]; do
    mrscope_says 120 || die "mrscope is not ready after 120 s"
done

# What was registered before mrscope started is in no figure, so these come after it.
for node in /sys/devices/system/node/node*; do
    echo 24 >"$node/hugepages/hugepages-2048kB/nr_hugepages"
done
start demo-steady
ask demo-steady "reg count=32 size=1M pages=4k"
ask demo-steady "reg count=4 size=16M pages=2m"

start demo-churn

# Root has no memlock limit, other users do: one MR fits, more do not.
start demo-limit
ask demo-limit "rlimit memlock=8M"
ask demo-limit "setuid uid=65534"
ask demo-limit "reg size=6M"

say "the processes run"
for ((round = 0; ; round++)); do
    ask demo-churn "churn rounds=8 size=2M"
    ((round % 8 != 0)) || ask demo-limit "reg size=4M" '"errno_name":"ENOMEM"'
    mrscope_says 0.2 || true
done
