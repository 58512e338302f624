#!/usr/bin/env bash
# Owns how the main figures of a page look in a terminal.
# Usage: table.sh wide|plain BEFORE NOW SECONDS     two pages of /metrics, so long apart;
#                                                   plain gives one line a process and a device
set -euo pipefail

if (($# != 4)) || [[ $1 != wide && $1 != plain ]]; then
    printf "table.sh: '%s': expected wide|plain BEFORE NOW SECONDS\n" "$*" >&2
    exit 2
fi

# The sample's name is $1 up to the brace; a label's value may hold any character.
exec awk -v form="$1" -v seconds="$4" '
function label(name,    at, value, end) {
    at = match($0, "[{,]" name "=\"")
    if (!at) return ""
    value = substr($0, at + RLENGTH)
    for (end = 1; end <= length(value); end++) {
        if (substr(value, end, 1) == "\\") end++
        else if (substr(value, end, 1) == "\"") break
    }
    return substr(value, 1, end - 1)
}
function bytes(n,    unit) {
    unit = 1
    while (n >= 1024 && unit < 6) { n /= 1024; unit++ }
    return sprintf(unit == 1 ? "%.0f %s" : "%.1f %s", n, UNIT[unit])
}
function duration(sum, count) {
    if (!count) return "-"
    if (sum / count < 0.001) return sprintf("%.0f us", sum / count * 1e6)
    if (sum / count < 1) return sprintf("%.2f ms", sum / count * 1e3)
    return sprintf("%.2f s", sum / count)
}
function rate(row,    rise) {
    rise = count[row] - old[row]
    return seconds > 0 ? sprintf("%.1f", rise > 0 ? rise / seconds : 0) : "-"
}
function seen(row, order, number) {
    if (!(row in known)) { known[row] = 1; order[number] = row; return number + 1 }
    return number
}
function print_plain(what, row) {
    printf "%s active=%.0f active_bytes=%.0f registrations=%.0f per_second=%s mean_seconds=%.6f failures=%.0f\n",
        what, active[row], held[row], count[row], rate(row), count[row] ? sum[row] / count[row] : 0, failures[row]
}
BEGIN { split("B KiB MiB GiB TiB PiB", UNIT, " ") }
/^#/ { next }
{
    metric = $0
    sub(/[{ ].*/, "", metric)
    if (metric ~ /^mrscope_process_mr_/) {
        row = label("pid") SUBSEP label("comm")
    } else if (metric ~ /^mrscope_mr_(registration_duration|active)/) {
        row = label("device") SUBSEP label("kind") SUBSEP
    } else if (metric == "mrscope_mr_registration_failures_total") {
        if (FILENAME != ARGV[1]) failed[label("device")] += $NF
        next
    } else next
    if (metric ~ /_registration_duration_seconds_count$/) {
        if (FILENAME == ARGV[1]) { old[row] = $NF; next }
        count[row] = $NF
        if (metric ~ /^mrscope_process_/) processes = seen(row, process, processes + 0)
        else devices = seen(row, device, devices + 0)
    }
    if (FILENAME == ARGV[1]) next
    if (metric ~ /_registration_duration_seconds_sum$/) sum[row] = $NF
    else if (metric ~ /_mr_active$/) active[row] = $NF
    else if (metric ~ /_mr_active_bytes$/) held[row] = $NF
    else if (metric ~ /_failures_total$/ && $NF > 0) {
        failures[row] += $NF
        causes[row] = causes[row] (causes[row] ? ", " : "") label("cause")
    }
}
END {
    # Without the cause it fits 80 columns.
    columns = "%-7s %-15s %6s %9s %10s %6s %8s %6s  %s\n"
    if (form == "wide")
        printf columns, "PID", "COMM", "ACTIVE", "BYTES", "REGISTERED", "PER S", "MEAN", "FAILED", "CAUSE"
    for (i = 0; i < processes; i++) {
        row = process[i]
        split(row, part, SUBSEP)
        if (part[1] == "" && !count[row] && !failures[row] && !active[row]) continue
        if (form == "wide")
            printf columns, part[1], part[1] == "" ? "(all others)" : part[2], active[row] + 0, bytes(held[row]), count[row], rate(row), duration(sum[row], count[row]), failures[row] + 0, causes[row]
        else print_plain("pid=" part[1] " comm=\"" part[2] "\"", row)
    }
    if (form == "wide")
        printf "\n" columns, "DEVICE", "KIND", "ACTIVE", "BYTES", "REGISTERED", "PER S", "MEAN", "FAILED", ""
    for (i = 0; i < devices; i++) {
        row = device[i]
        split(row, part, SUBSEP)
        # Failures are by device alone: they stand in its first line.
        failures[row] = failed[part[1]] + 0
        if (!count[row] && !active[row] && !failures[row]) continue
        delete failed[part[1]]
        if (form == "wide")
            printf columns, part[1], part[2], active[row], bytes(held[row]), count[row], rate(row), duration(sum[row], count[row]), failures[row], ""
        else print_plain("device=" part[1] " kind=" part[2], row)
    }
}' "$2" "$3"
