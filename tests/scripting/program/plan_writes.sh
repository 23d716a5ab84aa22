#!/usr/bin/env bash
# X14: steps that write files send and hold what is planned, and dry runs write none.
# usage: plan_writes.sh PROGRAM [LAUNCHER...]
# Without a launcher (mpirun -n 2) ranks are threads.
set -euo pipefail
program=$1
shift
script=tests/scripting/support/plan_writes.lua
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
launcher=("$@")
source "$(dirname "$0")/plan_steps.sh"

"$program" run "$script" -- "$folder" source

if [ ${#launcher[@]} -gt 0 ]; then
  for writes in columns chunks rounds checkpoint plain_model background \
    "rows uneven empty copies sums chunk_rows chunk_uneven chunk_empty chunk_copies compressed" \
    "appended several copied" "per_rank per_rank_background kept kept_own files waited parts"; do
    check 2 $writes
  done
  MOONHALO_ONE_WRITER=1 check 2 columns chunks
  exit $failed
fi

# The folders that dry runs name need not be there, and what is there stays as it is.
before=$(ls -R "$folder")
"$program" plan "$script" --ranks 3 -- "$folder" rows chunks appended several checkpoint background per_rank kept \
  parts > "$folder.report"
"$program" plan "$script" --ranks 3 -- /no/such/folder rows chunks checkpoint background per_rank > "$folder.report"
rm "$folder.report"
if [ "$(ls -R "$folder")" != "$before" ]; then
  echo "dry runs have changed the folder:"
  ls -R "$folder"
  failed=1
fi

for writes in rows columns chunks rounds checkpoint plain_model background per_rank \
  "uneven empty copies sums wide bytes nothing number" "chunk_rows chunk_uneven chunk_empty chunk_copies compressed" \
  "appended several copied" "per_rank_background kept kept_own files waited parts"; do
  check 2,3 $writes
done
check 4,8 grid part columns chunks checkpoint per_rank appended
MOONHALO_ONE_WRITER=1 check 3 columns chunks
exit $failed
