#!/usr/bin/env bash
# X14: the remedies that `moonhalo plan` prints for uneven blocks remove what it complains of.
# usage: uneven_remedies.sh PROGRAM
# Two scripts are planned: in one the last rank gets all rows of a padding, in the other its block of the field is long.
# The call that a remedy names is put into the script as it is printed, and the script is planned again.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > padded.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
mh.set_output_cut("keep")
local Waves = nn.Module:extend("Waves")
function Waves:init(channels, modes)
  self.weight = nn.Parameter(mh.randn{channels, channels, modes, modes, 2} / channels)
  self.modes = modes
end
function Waves:forward(x)
  local spectrum = mh.fft_rfft2(x)
  local waves = (":, :, 0:%d, 0:%d"):format(self.modes, self.modes)
  local mixed = mh.zeros_like(spectrum)
  mixed[waves] = mh.einsum("bixy,ioxy->boxy", {spectrum[waves], mh.view_as_complex(self.weight)})
  return mh.fft_irfft2(mixed, {x.shape[3], x.shape[4]})
end
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local enter, waves, leave = nn.Conv2d(3, 16, 1), Waves(16, 4), nn.Conv2d(16, 1, 1)
local net = nn.ModuleList{enter, waves, leave}
mh.distribute_module(net, mesh)
local x = mh.from_local(mh.zeros{1, 3, 16, 256}, mesh, {mh.Shard(2)})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
-- before the model runs
for _ = 1, 3 do
  optimizer:zero_grad()
  local y = nn.functional.pad(enter(x), {0, 0, 0, x.shape[3]})
  leave(waves(y:gelu())):square():mean():backward()
  optimizer:step()
end
LUA

cat > inputs.lua <<'LUA'
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local net = nn.Sequential(nn.Conv2d(3, 16, 3, {padding = 1}), nn.GELU(), nn.Conv2d(16, 1, 1))
mh.distribute_module(net, mesh)
local sizes = {}
for i = 1, mh.world_size() do sizes[i] = i < mh.world_size() and 16 or 144 end
local x = mh.from_local(mh.zeros{1, 3, sizes[mh.rank() + 1], 256}, mesh, {mh.Shard(2, sizes)})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
-- before the model runs
for _ = 1, 3 do
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
LUA

fail() {
  echo "$1"
  cat report.txt
  exit 1
}
plan() { "$program" plan "$1" --ranks 8 --machine epyc > report.txt; }
# The remedy behind the line of the report that has these words.
remedy() { sed -n "/$1/{n;s/^ *fix *//p;}" report.txt; }
memory='memory first   rank 7 holds .* this rank has 144' time='rank 7 of 8: .* more computing than the mean'

check() {
  local script=$1 call=$2 line=$3
  plan "$script"
  for complaint in "$memory" "$time"; do
    [[ $(remedy "$complaint") == *"$call"* ]] || fail "$script: no remedy '$call' for '$complaint'"
  done
  sed "s/^-- before the model runs/$line/" "$script" > "remedied_$script"
  plan "remedied_$script"
  for complaint in "$memory" "$time"; do
    ! grep -q "$complaint" report.txt || fail "$script: '$call' does not remove '$complaint'"
  done
}

check padded.lua 'set_output_cut("rebalance")' 'mh.set_output_cut("rebalance")'
check inputs.lua 'rebalance(x)' 'x = mh.rebalance(x)'
