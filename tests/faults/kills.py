"""N kills at random moments of a loop that saves HDF5, a checkpoint and a log. The loop begins by reading what the kill before left:
each final name must load, its parts must be of one version, and no version may go back."""
import os
import random
import shutil

import disk
import running

NAMES = ("field.h5", "ck", "log.jsonl")
# Rank 0 reads; the others hear from which version to go on. The names are there from version 1 on.
LOOP = """
local s = dofile("../support.lua")
local at_least, read = math.tointeger(arg[1]), {}
if s.rank == 0 then
  for _, name in ipairs{"field.h5", "ck", "log.jsonl"} do
    local version = s.version[name](name)
    if version < at_least then error(name .. " went back to version " .. version .. " from " .. at_least) end
    read[#read + 1] = version
  end
  local file = assert(io.open("../read", "w"))
  assert(file:write(math.tointeger(math.min(table.unpack(read))), " ", math.tointeger(math.max(table.unpack(read)))))
  assert(file:close())
end
s.ready()
local _, version = assert(io.open("../read")):read("n", "n")
repeat
  version = version + 1
  s.save_h5(version)
  s.save_ck(version)
  s.mh.log{version = version}
until arg[2] == "once"
"""
# Who is killed, and among how many ranks of which kind.
VICTIMS = [("threads", 1, "all"), ("threads", 3, "all"), ("mpi", 3, "0"), ("mpi", 3, "1"), ("mpi", 3, "all"), ("mpi", 3, "mpirun")]
KILL_WITHIN_S = 0.6


def one_kill(faults, folder, at_least, draw):
    """(kind of kill, versions read, why it is wrong)"""
    how, ranks, victim = draw.choice([one for one in VICTIMS if one[0] != "mpi" or faults.mpiexec])
    for path in folder.glob("*"):
        if path.name.split(".")[0] in ("ready", "go", "read", "stdout", "stderr"):
            path.unlink()
    (folder / "script.lua").write_text(LOOP)
    run = running.Run(faults.command(how, ranks, ["../script.lua", "--log", "log.jsonl", "--", str(at_least)]), folder, ranks)
    kind = f"{how} {ranks}, {victim}"
    try:
        if not run.wait_ready(ranks):
            return kind, None, f"does not load (status {run.process.poll()}): " + running.first_line(run.err.read_text(errors="replace"), folder)
        oldest, newest = (int(word) for word in (folder / "read").read_text().split())
        moment = draw.uniform(0, KILL_WITHIN_S)
        run.wait_until(lambda: False, moment)
        if run.process.poll() is not None:
            return kind, newest, "ended by itself: " + running.first_line(run.err.read_text(errors="replace"), folder)
        run.act(f"KILL {victim}")
        if run.end(5) is None:
            return kind, newest, "still there 5 s after the kill"
        # The three are saved in turn.
        return kind, newest, "" if newest - oldest <= 1 else f"versions {oldest} to {newest} side by side"
    finally:
        run.kill()


def soak(faults, base, count, seed):
    draw = random.Random(seed)
    folder = base / "kills"
    work = folder / "work"
    work.mkdir(parents=True)
    shutil.copy(faults.old.parent / "support.lua", folder)
    disk.put_old(faults.old, work, NAMES)
    print(f"{count} kills, seed {seed}", flush=True)
    version = disk.OLD
    kinds = {}
    for number in range(1, count + 1):
        kind, newest, wrong = one_kill(faults, folder, version - 1, draw)
        if wrong:
            print(f"kill {number}, {kind}: {wrong}\n  names  {sorted(os.listdir(work))}\n  fix    --kills {count} --seed {seed} --keep")
            return 1
        version, kinds[kind] = newest, kinds.get(kind, 0) + 1
        if number % 50 == 0:
            print(f"{number} kills, version {version}", flush=True)
    faults.moonhalo(LOOP, work, ["--log", "log.jsonl", "--", str(version - 1), "once"])
    left = disk.left_over(work, NAMES, False)
    print("".join(f"{kinds[kind]:5}  {kind}\n" for kind in sorted(kinds)) + f"all loaded and complete; the last version is {version}")
    if left:
        print(f"left by the writers: {left}")
    return 1 if left else 0
