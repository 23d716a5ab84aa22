#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package, in parts that run beside each other: `ranks`, ranks.py under mpirun and the checkpoints that it
leaves; `launches`, how its processes are launched; `ends`, the ways in which its ranks wait, and its types;
`installed`, the package installed from that build into a new folder, and ranks.py over threads from there; the others
take the module of the build folder.
usage: check_python.py PART PYTHON BUILD_FOLDER SOURCE_FOLDER missing=WHAT mpiexec=MPIEXEC"""

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
from own_python import check, finish, lacking, run
from pages import first_block

part, python, build, source = sys.argv[1:5]
missing, mpiexec = (word.split("=", 1)[1] for word in sys.argv[5:])  # either may be empty
scripts = Path(source) / "tests/python"
module = Path(build) / "python"
torchrun = Path(python).with_name("torchrun")
kept_code = os.environ.get("PYTHONPYCACHEPREFIX", "")  # what Python compiles lies there, by the names of files


def run_ranks(work):
    run("mpi", mpiexec, "-n", 3, python, scripts / "ranks.py", module, "mpi", work)
    for ranks in (2, 1):  # what three processes have saved
        run(f"a checkpoint on {ranks}", python, scripts / "files.py", module, work, ranks, "load")
    lua = scripts / "script_checkpoints.lua"
    run("a checkpoint in Lua", Path(build) / "bin/moonhalo", "run", "--ranks", 2, lua, "--", work)
    run("a checkpoint of Lua", python, scripts / "files.py", module, work, 2, "load_of_lua")


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
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "TMPDIR": folders[rank]},
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        said = process.communicate(timeout=own_python.LIMIT_S)[0]
        check(
            f"Slurm, rank {rank}: status {process.returncode}\n{said}",
            process.returncode == 0 and f"rank {rank}: [" in said,
        )


def run_launches(work):
    every, launched = scripts / "every_launch.py", scripts / "launched.py"
    launches = {
        "threads": [python],
        "tcp": [torchrun, "--standalone", "--nproc-per-node", 3],
        **({"mpi": [mpiexec, "-n", 3, python]} if mpiexec else {}),
    }
    for launch, command in launches.items():
        said = run(f"ranks by {launch}", *command, every, module, launch)
        check(f"all ranks by {launch}: {said}", said.count("all well") == (1 if launch == "threads" else 3))
    said = run("torchrun", torchrun, "--standalone", "--nproc-per-node", 2, launched, module, "tcp")
    check(f"both ranks of torchrun: {said}", "rank 0: [" in said and "rank 1: [" in said)
    run_step(launched)
    if mpiexec:
        said = run("the world of mpirun", mpiexec, "-n", 2, python, launched, module, "mpi")
        check(f"both ranks of mpirun: {said}", "rank 0: [" in said and "rank 1: [" in said)


def run_ends(work):
    run("stubs", python, scripts / "stubs.py", module)
    # The limit ends a wait that nothing else would end; the longest takes two seconds.
    run("late ranks", python, scripts / "late_rank.py", module, MOONHALO_TIMEOUT_S="60")
    said = run("the interpreter ends", python, scripts / "interpreter_ends.py", module, MOONHALO_TIMEOUT_S="1")
    check(f"said: {said}", said.endswith("the interpreter ends"))
    run("the interpreter ends while ranks run", python, scripts / "ends_in_python.py", module)


def install(work):
    """By pip, then into an environment of its own with the PyTorch of this one. Returns that, and where its packages
    are."""
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--target", work / "installed"]
    run("pip install", *pip, *options, source, MOONHALO_BUILD=build)
    run("installed", python, scripts / "ranks.py", work / "installed")
    run("an environment", python, "-m", "venv", "--without-pip", work / "environment")
    site = next((work / "environment/lib").glob("python3*/site-packages"))
    (work / "installed/moonhalo").rename(site / "moonhalo")
    said = run("PyTorch", python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)")
    torch = Path(said.strip()).parent
    (site / "torch").symlink_to(torch)
    if kept_code:
        Path(kept_code + str(site)).mkdir(parents=True, exist_ok=True)
        Path(f"{kept_code}{site}/torch").symlink_to(f"{kept_code}{torch}")
    (site / "others.pth").write_text(str(Path((site / "torch").resolve()).parent))
    return work / "environment/bin/python", site


def run_installed(work):
    own, site = install(work)
    for library in [*(site / "moonhalo").glob("*.so*"), site / "moonhalo/bin/moonhalo"]:
        said = run("its libraries", "readelf", "-d", library)
        paths = re.findall(r"\((?:RPATH|RUNPATH)\)[^\[]*\[(.*)\]", said)
        check(
            f"{library.name} looks in {paths}",
            all(path[0] == "$" or path[:5] == "/usr/" for path in paths[0].split(":")),
        )
    said = run("the program", site / "moonhalo/bin/moonhalo", "info")
    check(f"the program says\n{said}", "backends   threads tcp" in said)
    # The program of the page: three ranks print one loss, the first also the shape of its block.
    (work / "page.py").write_text(first_block(Path(source) / "docs/python.md", "python"))
    said = run("the page", own, "-W", "ignore", work / "page.py")
    losses = [word for word in said.split() if word.startswith("0.") or word.startswith("1.")]
    check(f"the page prints\n{said}", len(losses) == 3 and len(set(losses)) == 1)
    check(f"the page prints\n{said}", "torch.Size([1, 3, 22, 64])" in said)
    if mpiexec:
        said = run("mpirun with an environment", mpiexec, "-n", 2, own, scripts / "launched.py", site, "mpi")
        check(f"both ranks of mpirun: {said}", "rank 0: [" in said and "rank 1: [" in said)
    (site / "moonhalo/_built_for.py").write_text('TORCH = "1.2.3"\n')
    other = subprocess.run([own, "-c", "import moonhalo"], capture_output=True, text=True)
    check(
        f"another PyTorch: {other.stderr}",
        "built for PyTorch 1.2.3" in other.stderr and "pip install torch==1.2.3" in other.stderr,
    )


parts = {"ranks": run_ranks, "launches": run_launches, "ends": run_ends, "installed": run_installed}
if missing:
    lacking(missing)
folder = Path(tempfile.mkdtemp(prefix="python_test_", dir=build))  # of this run alone
parts[part](folder)
for made in (folder, *([Path(kept_code + str(folder))] if kept_code else [])):
    shutil.rmtree(made, ignore_errors=True)
finish()
