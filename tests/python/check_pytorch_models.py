#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that Python saves (make_models.py), on blocks in Lua: over threads and under mpirun. A drawn part of the
matrix of script_models.lua, or with MOONHALO_ALL_MODELS=1 the whole; 300 damaged .pt2 files, or as many as
MOONHALO_DAMAGED_MODELS says. usage: check_pytorch_models.py PYTHON PROGRAM
SOURCE_FOLDER missing=WHAT mpiexec=MPIEXEC"""

import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import own_python
from own_python import check, finish, lacking

python, moonhalo, source = sys.argv[1:4]
missing, mpiexec = (word.split("=", 1)[1] for word in sys.argv[4:])  # either may be empty
if missing:
    lacking(missing)
scripts = Path(source) / "tests/python"
folder = Path(tempfile.mkdtemp(prefix="pytorch_models_"))
whole = bool(os.environ.get("MOONHALO_ALL_MODELS"))
run = functools.partial(own_python.run, limit_s=3000 if whole else own_python.LIMIT_S)


def run_lua(script, ranks, *arguments, mpi=False):
    command = [mpiexec, "-n", ranks, moonhalo, "run"] if mpi else [moonhalo, "run", "--ranks", ranks]
    return run(
        f"{script} on {ranks} {'processes' if mpi else 'threads'}", *command, scripts / script, "--", folder, *arguments
    )


def run_matrix(mpi):
    """On 1 to 4 ranks, and from checkpoints of 2 ranks on 3. 11 divides no number of ways, so all have their turn."""
    parts = 1 if whole else 11
    counts = (2, 3, 4) if whole else (2,)
    runs = [(ranks, ()) for ranks in (counts if mpi else (1, 2, 3, 4))]
    if whole or not mpi:
        runs += [(2, ("save",)), (3, ("resume",))]
    for number, (ranks, mode) in enumerate(runs):
        part = 6 if mode else number + 4 * mpi
        said = run_lua("script_models.lua", ranks, parts, part % parts, *mode, mpi=mpi)
        check(f"cases on {ranks} ranks: {said}", " cases" in said)
        print(f"{' '.join(mode) or 'train'} on {ranks} {'processes' if mpi else 'threads'}: {said.strip()}")


def read_damaged(count):
    """In portions, each written over the former one."""
    portion = 5000
    for first in range(0, count, portion):
        size = min(portion, count - first)
        run("damage_models.py", sys.executable, scripts / "damage_models.py", folder, size, 5 + first)
        run_lua("script_features.lua", 1, "damaged", size)


run("make_models.py", python, scripts / "make_models.py", folder)
shutil.copytree(scripts / "programs", folder / "newest")
run_matrix(mpi=False)
run_lua("script_features.lua", 3)
run("read_models.py", python, scripts / "read_models.py", folder)
if mpiexec:
    run_matrix(mpi=True)
read_damaged(int(os.environ.get("MOONHALO_DAMAGED_MODELS", "300")))
finish()
