# shellcheck shell=bash
# Owns what the scripts share: their messages, a step that shows signs of life,
# and the choice of the Rust toolchain. Sourced from the package's root.
set -euo pipefail

# The jobs of make -j are no concern of the builds behind it.
unset MAKEFLAGS MFLAGS

# On a terminal a message replaces the sign of life before it.
say() {
    if [[ -t 2 ]]; then
        printf '\r\e[K%s: %s\n' "${0##*/}" "$*" >&2
    else
        printf '%s: %s\n' "${0##*/}" "$*" >&2
    fi
}

# sign_of_life WHAT SECONDS [DETAIL]
sign_of_life() {
    local text="$1, $2 s${3:+: $3}"
    if [[ -t 2 ]]; then
        printf '\r\e[K%s: %.70s' "${0##*/}" "$text" >&2
    else
        say "${text:0:100}"
    fi
}

die() { say "$2"; exit "$1"; }

# step WHAT COMMAND...: runs the command, and shows its output only if it fails.
# While it runs, step_pid is its process, for the caller's traps.
step_pid=''
step() {
    local what=$1 begun=$SECONDS alive log output state status=0
    shift
    log=$(mktemp)
    exec {output}>"$log"
    # Read through its descriptor from here on, it is gone with this process.
    rm "$log"
    log=/dev/fd/$output
    say "$what"
    # The pipe carries nothing: its end is the end of the command.
    exec {alive}< <(exec 3>&1 >&"$output" 2>&1 </dev/null; exec "$@")
    step_pid=$!
    while state=0; read -r -t 5 -u "$alive" || state=$?; ((state > 128)); do
        sign_of_life "$what" "$((SECONDS - begun))" "$(tail -n 1 "$log")"
    done
    exec {alive}<&-
    wait "$step_pid" || status=$?
    step_pid=''
    if ((status != 0)); then
        say "$what failed:"
        cat "$log" >&2
    fi
    exec {output}>&-
    return "$status"
}

# at_least VERSION LEAST
at_least() { printf '%s\n' "$2" "$1" | sort -V -C; }

rust_required() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# rust_serves [PART]...: whether the first cargo and rustc on PATH are new enough
# and know the parts, such as fmt and clippy.
rust_serves() {
    local tool part version
    for tool in rustc cargo; do
        version=$("$tool" --version 2>/dev/null) || return 1
        at_least "$(cut -d' ' -f2 <<<"$version")" "$(rust_required)" || return 1
    done
    for part; do
        cargo "$part" --version >/dev/null 2>&1 || return 1
    done
}

# use_rust [PART]...: the toolchain on PATH if it serves, else Debian's.
use_rust() {
    rust_serves "$@" && return
    # Last the folder that cargo would else search before all of PATH.
    PATH=/usr/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    rust_serves "$@"
}
