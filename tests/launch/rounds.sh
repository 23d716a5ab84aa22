#!/usr/bin/env bash
# Ranks over TCP, of which one is killed in the middle of rounds of messages: all others end, each with an error that names a
# lost rank. rounds.sh PROGRAM SOURCE RANKS...
set -uo pipefail
program=$1 source=$2
shift 2
failed=0
for ranks in "$@"; do
  said=$(timeout -k 1 300 "$source/tests/launch/start_ranks.sh" variables "$ranks" "$program" run \
    "$source/tests/launch/rounds.lua" -- 0.5 2>&1)
  status=$?
  # A rank may see only one that has ended because of another.
  lost='rank [0-9]+ (ended without joining (all_reduce|reduce_scatter|all_gather)|has ended or was lost)'
  wrong=""
  ((status == 3)) || wrong="status $status"
  [[ $said =~ (rank 1 (ended without joining|has ended or was lost)) ]] || wrong+=", no error names rank 1"
  for ((rank = 0; rank < ranks; ++rank)); do
    ((rank == 1)) || grep -qE "^ranks? [0-9, -]*\b$rank\b.*: .*$lost" <<<"$said" || wrong+=", rank $rank says nothing"
  done
  [[ -z $wrong ]] || { printf '%s ranks: %s\n%s\n' "$ranks" "$wrong" "$said" && failed=1; }
done
exit $failed
