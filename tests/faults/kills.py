"""N kills at random moments of a loop that saves HDF5, a checkpoint and a log. The loop begins by reading what the kill
before left: each final name must load, its parts must be of one version, and no version may go back."""

import collections
import concurrent.futures
import os
import random
import shutil

import disk
import running

NAMES = ("field.h5", "ck", "log.jsonl")
# The names are there from version 1 on.
LOOP = """
local s = dofile("../support.lua")
local at_least, read = math.tointeger(arg[1]), {}
for _, name in ipairs{"field.h5", "ck", "log.jsonl"} do
  local version = math.tointeger(s.version[name](name))
  if version < at_least then error(name .. " went back to version " .. version .. " from " .. at_least) end
  read[#read + 1] = version
end
local oldest, newest = math.min(table.unpack(read)), math.max(table.unpack(read))
if s.rank == 0 then
  local file = assert(io.open("../read", "w"))
  assert(file:write(oldest, " ", newest))
  assert(file:close())
end
s.ready()
local version = oldest
repeat
  version = version + 1
  s.save_h5(version, {packed = true})
  s.save_ck(version)
  s.mh.log{version = version}
until arg[2] == "once"
"""
# Among how many ranks of which kind, who is killed. MPI takes longer to start, and comes less often.
VICTIMS = (
    [("threads", 1, "all")] * 3 + [("threads", 3, "all")] * 5 + [("mpi", 3, who) for who in ("0", "1", "all", "mpirun")]
)
KILL_WITHIN_S = 0.6


def one_kill(faults, folder, at_least, draw):
    """(kind of kill, versions read, why it is wrong)"""
    how, ranks, victim = draw.choice([one for one in VICTIMS if one[0] != "mpi" or faults.mpiexec])
    for path in folder.glob("*"):
        if path.name.split(".")[0] in ("ready", "go", "read", "stdout", "stderr"):
            path.unlink()
    (folder / "script.lua").write_text(LOOP)
    run = running.Run(
        faults.command(how, ranks, ["../script.lua", "--log", "log.jsonl", "--", str(at_least)]), folder, ranks
    )
    kind = f"{how} {ranks}, {victim}"
    try:
        if not run.wait_ready(ranks):
            return kind, None, f"does not load (status {run.process.poll()}): {run.said()}"
        oldest, newest = (int(word) for word in (folder / "read").read_text().split())
        moment = draw.uniform(0, KILL_WITHIN_S)
        run.wait_until(lambda: False, moment)
        if run.process.poll() is not None:
            return kind, newest, "ended by itself: " + run.said()
        run.act(f"KILL {victim}")
        if run.end(running.START_LIMIT_S) is None:
            return kind, newest, "still there after the kill"
        # The three are saved in turn.
        return kind, newest, "" if newest - oldest <= 1 else f"versions {oldest} to {newest} side by side"
    finally:
        run.kill()


def one_loop(faults, folder, count, seed):
    """(kills of each kind, what is wrong)"""
    draw, kinds, version = random.Random(seed), collections.Counter(), disk.OLD
    work = folder / "work"
    work.mkdir(parents=True)
    shutil.copy(faults.base / "support.lua", folder)
    disk.put_old(faults.old, work, NAMES)
    for number in range(1, count + 1):
        kind, newest, wrong = one_kill(faults, folder, version - 1, draw)
        if wrong:
            return kinds, f"kill {number} of seed {seed}, {kind}: {wrong}\n  names  {sorted(os.listdir(work))}"
        version, kinds[kind] = newest, kinds[kind] + 1
        if number % 25 == 0:
            print(f"seed {seed}: {number} kills, version {version}", flush=True)
    faults.moonhalo(LOOP, work, ["--log", "log.jsonl", "--", str(version - 1), "once"])
    left = disk.left_over(work, NAMES, False)
    return kinds, f"seed {seed}: left by the writers: {left}" if left else ""


def soak(faults, base, count, seed):
    """Two loops at a time, each with half of the kills."""
    print(f"{count} kills, seed {seed}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        loops = [pool.submit(one_loop, faults, base / f"kills{i}", (count + i) // 2, seed + i) for i in (0, 1)]
    kinds = sum((loop.result()[0] for loop in loops), collections.Counter())
    wrong = [loop.result()[1] for loop in loops if loop.result()[1]]
    print(
        "".join(f"{kinds[kind]:5}  {kind}\n" for kind in sorted(kinds))
        + "\n".join(wrong or ["all loaded and complete"])
    )
    return 1 if wrong else 0
