#!/usr/bin/env bash
# Eight processes: how long from the start of the first of them to the end of the last one's first collective, and from a rank's error to
# the return of the last of the others (torchrun ends them itself). Both are printed, and compared
# with limits (seconds) where a person gives them, on a machine that does nothing else. times.sh PROGRAM SOURCE LAUNCHER [START_LIMIT RETURN_LIMIT]
set -uo pipefail
program=$1 source=$2 launcher=$3
said=$(timeout -k 1 300 "$source/tests/launch/start_ranks.sh" "$launcher" 8 "$program" run "$source/tests/launch/times.lua" 2>&1)
printf '%s\n' "$said" | awk -v launcher="$launcher" -v start_limit="${4:-300}" -v return_limit="${5:-300}" '
  $1 == "began" { if (!begin || $2 < begin) begin = $2 }
  $1 == "joined" { ++joined; if ($2 > last_joined) last_joined = $2 }
  $1 == "failed" { failed = $2 }
  $1 == "returned" { ++returned; if ($2 > last_returned) last_returned = $2 }
  END {
    started = last_joined - begin; told = last_returned - failed
    printf "%s, 8 ranks: %.2f s to the first collective, %.2f s from the first error to the last return\n", launcher, started, told
    exit !(joined == 8 && (returned == 7 || launcher == "torchrun") && failed && started <= start_limit && told <= return_limit)
  }' && exit 0
printf '%s\n' "$said"
exit 1
