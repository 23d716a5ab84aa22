#!/usr/bin/env bash
# X14: where some ranks read or write parts of files for others, a plan of many ranks finds the kinds of ranks: all ranks
# that are drawn do as their kind.
# usage: plan_shares.sh PROGRAM
set -euo pipefail
program=$1
script=tests/scripting/support/plan_shares.lua
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$program" run "$script" --ranks 2 -- "$folder" save
failed=0
for does in plain bands tiles copies frames written written_bands written_tiles load save background; do
  report=$("$program" plan "$script" --ranks 200 --drawn 40 -- "$folder" "$does" 2>&1) || failed=1
  if ! grep -q "of them drawn to compare$" <<< "$report"; then
    echo "$does:"
    echo "$report"
    failed=1
  fi
done
exit $failed
