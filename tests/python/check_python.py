#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ranks.py with the module of the build folder, over threads and under mpirun; then installs the package from that
build into a new folder and runs it from there. Then the ways in which its ranks wait, and how its processes are
launched. usage: check_python.py PYTHON BUILD_FOLDER SOURCE_FOLDER missing=WHAT mpiexec=MPIEXEC"""

import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
import own_python
from own_python import check, finish, lacking
from pages import first_block


def run_step(launched):
    """Two processes as a step of Slurm without PMI starts them; the port that they meet at follows from the number of
    the job. Each has a TMPDIR of its own, as on two hosts: Open MPI makes a folder there, and fails where another
    process makes it in the same moment."""
    job = str(random.randrange(10**6, 10**9))
    folders = [tempfile.mkdtemp(prefix="rank_") for _ in range(2)]
    step = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    ranks = [
        subprocess.Popen(
            [python, launched, module, "tcp"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **kept_code, **step, "SLURM_PROCID": str(rank), "TMPDIR": folders[rank]},
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        said = process.communicate(timeout=own_python.LIMIT_S)[0]
        check(
            f"Slurm, rank {rank}: status {process.returncode}\n{said}",
            process.returncode == 0 and f"rank {rank}: [" in said,
        )


python, build, source = sys.argv[1:4]
missing, mpiexec = (word.split("=", 1)[1] for word in sys.argv[4:])  # either may be empty
if missing:
    lacking(missing)
program = Path(source) / "tests/python/ranks.py"
# PyTorch is compiled once, not by each of eight processes, also where the environment is not written to.
kept_code = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(build) / "python_code")}
run = functools.partial(own_python.run, **kept_code)
module = Path(build) / "python"
run("stubs", python, program.with_name("stubs.py"), module)
work = Path(tempfile.mkdtemp(prefix="python_test_", dir=build))  # of this run alone
run("threads", python, program, module)
torchrun = Path(python).with_name("torchrun")
every = program.with_name("every_launch.py")
launches = {
    "threads": [python],
    "tcp": [torchrun, "--standalone", "--nproc-per-node", 3],
    **({"mpi": [mpiexec, "-n", 3, python]} if mpiexec else {}),
}
for launch, command in launches.items():
    said = run(f"ranks by {launch}", *command, every, module, launch)
    check(f"all ranks by {launch}: {said}", said.count("all well") == (1 if launch == "threads" else 3))
if mpiexec:
    run("mpi", mpiexec, "-n", 3, python, program, module, "mpi", work)
    for ranks in (2, 1):  # what three processes have saved
        run(f"a checkpoint on {ranks}", python, program.with_name("files.py"), module, work, ranks, "load")
    lua = program.with_name("script_checkpoints.lua")
    run("a checkpoint in Lua", Path(build) / "bin/moonhalo", "run", "--ranks", 2, lua, "--", work)
    run("a checkpoint of Lua", python, program.with_name("files.py"), module, work, 2, "load_of_lua")
# The limit ends a wait that nothing else would end; the longest takes two seconds.
run("late ranks", python, program.with_name("late_rank.py"), module, MOONHALO_TIMEOUT_S="60")
said = run("the interpreter ends", python, program.with_name("interpreter_ends.py"), module, MOONHALO_TIMEOUT_S="1")
check(f"said: {said}", said.endswith("the interpreter ends"))
run("the interpreter ends while ranks run", python, program.with_name("ends_in_python.py"), module)
launched = program.with_name("launched.py")
said = run("torchrun", torchrun, "--standalone", "--nproc-per-node", 2, launched, module, "tcp")
check(f"both ranks of torchrun: {said}", "rank 0: [" in said and "rank 1: [" in said)
run_step(launched)
if mpiexec:
    said = run("the world of mpirun", mpiexec, "-n", 2, python, launched, module, "mpi")
    check(f"both ranks of mpirun: {said}", "rank 0: [" in said and "rank 1: [" in said)
# The program of the page: three ranks print one loss, the first also the shape of its block.
(work / "page.py").write_text(first_block(Path(source) / "docs/python.md", "python"))
said = run("the page", python, "-W", "ignore", work / "page.py", PYTHONPATH=str(module))
losses = [word for word in said.split() if word.startswith("0.") or word.startswith("1.")]
check(f"the page prints\n{said}", len(losses) == 3 and len(set(losses)) == 1 and "torch.Size([1, 3, 22, 64])" in said)
run(
    "pip install",
    python,
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--no-deps",
    "--no-index",
    "--target",
    work / "installed",
    source,
    MOONHALO_BUILD=build,
)
run("installed", python, program, work / "installed")
# In an environment of its own, with the PyTorch of this one; nothing of the build is used.
run("an environment", python, "-m", "venv", "--without-pip", work / "environment")
site = next((work / "environment/lib").glob("python3*/site-packages"))
(work / "installed/moonhalo").rename(site / "moonhalo")
said = run("PyTorch", python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)")
(site / "torch").symlink_to(Path(said.strip()).parent)
(site / "others.pth").write_text(str(Path((site / "torch").resolve()).parent))
own = work / "environment/bin/python"
for library in [*(site / "moonhalo").glob("*.so*"), site / "moonhalo/bin/moonhalo"]:
    said = run("its libraries", "readelf", "-d", library)
    paths = re.findall(r"\((?:RPATH|RUNPATH)\)[^\[]*\[(.*)\]", said)
    check(
        f"{library.name} looks in {paths}", all(path[0] == "$" or path[:5] == "/usr/" for path in paths[0].split(":"))
    )
said = run("the program", site / "moonhalo/bin/moonhalo", "info")
check(f"the program says\n{said}", "backends   threads tcp" in said)
said = run("the page from an environment", own, "-W", "ignore", work / "page.py")
check(f"the page prints\n{said}", "torch.Size([1, 3, 22, 64])" in said)
if mpiexec:
    said = run("mpirun with an environment", mpiexec, "-n", 2, own, launched, site, "mpi")
    check(f"both ranks of mpirun: {said}", "rank 0: [" in said and "rank 1: [" in said)
(site / "moonhalo/_built_for.py").write_text('TORCH = "1.2.3"\n')
other = subprocess.run([own, "-c", "import moonhalo"], capture_output=True, text=True, env={**os.environ, **kept_code})
check(
    f"another PyTorch: {other.stderr}",
    "built for PyTorch 1.2.3" in other.stderr and "pip install torch==1.2.3" in other.stderr,
)
shutil.rmtree(work, ignore_errors=True)
finish()
