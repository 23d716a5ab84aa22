#!/usr/bin/env bash
# Ranks over TCP of which one fails, ends, is killed or stopped, or never comes: the others end soon, say so, and with a status that
# tells. parting.sh PROGRAM SOURCE
set -uo pipefail
program=$1 source=$2
failed=0

# try NAME STATUS TEXT SECONDS [VARIABLE=VALUE...] -- ARGUMENT
try() {
  local name=$1 status=$2 text=$3 seconds=$4 variables=() begin got said
  shift 4
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  begin=$SECONDS
  said=$(env "${variables[@]}" timeout -k 1 60 "$source/tests/launch/start_ranks.sh" variables 3 \
    "$program" run "$source/tests/launch/parting.lua" -- "$2" 2>&1)
  got=$?
  if ((got != status)) || ! [[ $said =~ $text ]] || [[ $said == *"went on"* ]] || ((SECONDS - begin > seconds)); then
    printf '%s: status %s after %s s\n%s\n' "$name" "$got" "$((SECONDS - begin))" "$said"
    failed=1
  fi
}

# By its note, or because its connections have closed.
gone="rank 1 (ended without joining all_reduce|has ended or was lost)"
try error 3 "rank 1: $source/tests/launch/parting.lua:10: the pressure is negative" 10 -- error
try error_seen 3 "rank 2: $source/tests/launch/parting.lua:15: $gone" 10 -- error
try exit 3 "$gone" 10 -- exit
try ends 3 "$gone" 10 -- ends
try killed 3 "$gone" 10 -- KILL
try terminated 3 "$gone" 10 -- TERM
try stopped 3 "timed out after 2 s on rank 0" 20 MOONHALO_TIMEOUT_S=2 -- STOP
try absent 3 "launch: rank 2 of 3 has not come within 2 s" 20 MOONHALO_TIMEOUT_S=2 START=2 -- none
exit $failed
