# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch beside plain PyTorch on one, two and three ranks, all in time or the first or the last one late,
however the ranks were started: as threads, by mpirun (mpi) or by torchrun (tcp) (Y05).
usage: every_launch.py FOLDER_OF_THE_MODULE threads|mpi|tcp"""

import sys
import time

sys.path.insert(0, sys.argv[1])
import hooks
import loops
import moonhalo as mh
import tensors

PROGRAMS = {
    "hooks": hooks.programs,
    "deepcopy": tensors.copies,
    "indexing": loops.indices,
    "optimizers": lambda mesh, expect: loops.optimizers(mesh, expect, ["AdamW", "LBFGS"]),
    "AMP": loops.mixed,
    "DataLoader": loops.loaders,
}
LATE_S = 0.05
failures, ran = [], set()


def rank(world):
    mesh = mh.init_device_mesh(world, "cpu", [world.size])
    for late in (None, 0, world.size - 1) if world.size > 1 else (None,):
        for name, program in PROGRAMS.items():
            what = f"{name} on {world.size} ranks, late {late}"
            world.barrier()
            if world.rank == late:
                time.sleep(LATE_S)
            program(mesh, lambda good, text, what=what: good or failures.append(f"{what}: {text}"))
            ran.add((name, world.size, late))


launch = sys.argv[2]
if launch == "threads":
    for ranks in (1, 2, 3):
        mh.run_ranks(ranks, rank)
else:
    everyone = mh.world(launch)
    if everyone.size != 3 or everyone.backend != launch:
        sys.exit(f"FAILED: {everyone.size} ranks over {everyone.backend}")
    # All three, two and one, each alone. A process is in one group at a time.
    for group in (0, everyone.rank // 2, everyone.rank):
        rank(everyone.split(group))
for failure in failures:
    print("FAILED:", failure)
print("failed" if failures else f"all well: {len(ran)} cases")
sys.exit(len(failures) > 0)
