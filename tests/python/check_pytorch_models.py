#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that Python saves (make_models.py), on blocks in Lua: over threads and under mpirun. A drawn part of the
matrix of script_models.lua, or with MOONHALO_ALL_MODELS=1 the whole. usage: check_pytorch_models.py PYTHON PROGRAM
SOURCE_FOLDER missing=WHAT mpiexec=MPIEXEC"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from own_python import check, finish, lacking

python, moonhalo, source = sys.argv[1:4]
missing, mpiexec = (word.split("=", 1)[1] for word in sys.argv[4:])  # either may be empty
if missing:
    lacking(missing)
scripts = Path(source) / "tests/python"
folder = Path(tempfile.mkdtemp(prefix="pytorch_models_"))
whole = bool(os.environ.get("MOONHALO_ALL_MODELS"))


def run(what, *command):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3000 if whole else 250,
    )
    check(f"{what}: status {done.returncode}\n{done.stdout}", done.returncode == 0)
    return done.stdout


def run_lua(script, ranks, *arguments, mpi=False):
    command = [mpiexec, "-n", ranks, moonhalo, "run"] if mpi else [moonhalo, "run", "--ranks", ranks]
    return run(
        f"{script} on {ranks} {'processes' if mpi else 'threads'}", *command, scripts / script, "--", folder, *arguments
    )


run("make_models.py", python, scripts / "make_models.py", folder)
parts = 1 if whole else 29  # 29 divides no number of ways, so that all of them have their turn
for ranks in (1, 2, 3, 4):
    said = run_lua("script_models.lua", ranks, parts, ranks % parts)
    check(f"cases on {ranks} ranks: {said}", "cases" in said)
run_lua("script_features.lua", 3)
run("read_models.py", python, scripts / "read_models.py", folder)
run_lua("script_features.lua", 2, "save")
run_lua("script_features.lua", 3, "resume")
if mpiexec:
    run_lua("script_models.lua", 2, parts, 5 % parts, mpi=True)
damaged = 20000 if whole else 300
run("damage_models.py", sys.executable, scripts / "damage_models.py", folder, damaged, 5)
run_lua("script_features.lua", 1, "damaged", damaged)
finish()
