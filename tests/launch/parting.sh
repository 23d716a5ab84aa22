#!/usr/bin/env bash
# Ranks over TCP of which one fails, ends, is killed or stopped, or never comes: the others end, say why, and with a status that
# tells. parting.sh PROGRAM SOURCE
set -uo pipefail
program=$1 source=$2
failed=0

# try NAME STATUS TEXT [VARIABLE=VALUE...] -- ARGUMENT
try() {
  local name=$1 status=$2 text=$3 variables=() got said
  shift 3
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  said=$(env "${variables[@]}" timeout -k 1 300 "$source/tests/launch/start_ranks.sh" variables 3 \
    "$program" run "$source/tests/launch/parting.lua" -- "$2" 2>&1)
  got=$?
  if ((got != status)) || ! [[ $said =~ $text ]] || [[ $said == *"went on"* ]]; then
    printf '%s: status %s, not as it should be\n%s\n' "$name" "$got" "$said"
    return 1
  fi
}

# By its note, or because its connections have closed.
gone="rank 1 (ended without joining all_reduce|has ended or was lost)"
try error 3 "rank 1: $source/tests/launch/parting.lua:11: the pressure is negative" -- error || failed=1
# Of ranks 0 and 2 one names rank 1. The other may see only that the first has ended.
try error_seen 3 "rank [02]: $source/tests/launch/parting.lua:16: $gone" -- error || failed=1
try exit 3 "$gone" -- exit || failed=1
try ends 3 "$gone" -- ends || failed=1
try killed 3 "$gone" -- KILL || failed=1
try terminated 3 "$gone" -- TERM || failed=1
try stopped 3 "timed out after 2 s on rank 0" -- STOP || failed=1
# Its limit is also that of ranks 0 and 1, for which a busy machine may need longer.
for limit in 2 20; do
  try absent 3 "launch: rank 2 of 3 has not come within $limit s" MOONHALO_TIMEOUT_S=$limit START=2 -- none && break
  [[ $limit == 20 ]] && failed=1
done
exit $failed
