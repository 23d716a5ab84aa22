#!/usr/bin/env bash
# X14: steps that read files send and hold what is planned, and dry runs have the values of small reads.
# usage: plan_reads.sh PROGRAM [LAUNCHER...]
# Without a launcher (mpirun -n 2) ranks are threads.
set -euo pipefail
program=$1
shift
script=tests/scripting/support/plan_reads.lua
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$program" run "$script" --ranks 2 -- "$folder" save

launcher=("$@")
source "$(dirname "$0")/plan_steps.sh"

# The command has the values of small reads.
values() {
  if ! "$@" "$script" "${ranks[@]}" "${more[@]}" -- "$folder" values > "$folder/report.txt" 2>&1; then
    echo "values of $* ${ranks[*]} ${more[*]}:"
    cat "$folder/report.txt"
    failed=1
  fi
}

ranks=()
more=()
if [ ${#launcher[@]} -gt 0 ]; then
  for reads in plain chunks "half uneven empty steps halo copies small npy" checkpoint "own plain" loads plain_loads; do
    check 2 $reads
  done
  values "${launcher[@]}" "$program" run
  more=(--check)
  values "${launcher[@]}" "$program" plan
  exit $failed
fi
for reads in plain wide chunks decoded half halo whole_half npy checkpoint \
  "integers slices steps uneven empty copies rows small whole pt"; do
  check 2,3 $reads
done
check 4 grid
check 2 own plain
check 2,3,4 loads
check 2,3,8 plain_loads

ranks=(--ranks 2)
values "$program" run
more=(--check)
values "$program" plan
more=()
values "$program" plan
more=(--machine h100 --backend threads)
values "$program" plan
for rank in 0 1; do
  more=(--backend fake --fake-rank $rank)
  values "$program" run
  more+=(--fake-tensors)
  values "$program" run
done
exit $failed
