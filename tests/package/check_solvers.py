#!/usr/bin/env python3
"""Installs Moonhalo into a new folder, builds the solvers of examples/embed against it, over its own MPI and over
MPICH, and runs them under mpirun: their numbers must agree to 13 digits over numbers of ranks, languages and libraries
of MPI (X15), and with an exported model to 10 digits with PyTorch's. usage: check_solvers.py CMAKE BUILD_FOLDER
SOURCE_FOLDER MPIEXEC PYTHON missing=WHAT"""

import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

from check_embed import build, numbers, run

DIGITS = 5e-14
RANKS = (1, 2, 3, 4)  # the first program on all of them; the others too with MOONHALO_TEST_ALL=1
LEAPS = 100
SETS = 20


def libraries_of_mpi(mpiexec):
    """The one that Moonhalo was built with, and MPICH, of which Moonhalo has but the functions that the program gives
    it."""
    yield "own", [], mpiexec
    wrappers = {"C": "mpicc.mpich", "CXX": "mpicxx.mpich", "Fortran": "mpifort.mpich"}
    if shutil.which("mpicc.mpich") and shutil.which("mpiexec.mpich"):
        yield (
            "mpich",
            [f"-DMPI_{language}_COMPILER={shutil.which(name)}" for language, name in wrappers.items()],
            "mpiexec.mpich",
        )
    elif os.environ.get("MOONHALO_REQUIRE_TEST_PACKAGES"):
        sys.exit("MPICH is not installed (Debian: mpich, libmpich-dev)")
    else:
        print("skipped: MPICH, because it is not installed (Debian: mpich, libmpich-dev)")


def uses(program, library):
    """Whether this library of MPI comes first for the program's own calls."""
    needed = [
        line.split("[")[1].rstrip("]") for line in run("readelf", "-d", program).splitlines() if "(NEEDED)" in line
    ]
    return any(name.startswith(library) for name in needed)


def check_heat(name, launcher, examples, script, fortran, expected):
    """The same solver in all languages, on several numbers of ranks. Returns the numbers, those of the first run if
    none are expected."""
    for language in ("c", "cpp") + (("fortran",) if fortran else ()):
        program = examples / f"heat_{language}"
        if uses(program, "libmpich") != (name == "mpich"):
            sys.exit(f"{program} was linked with another MPI than {name}")
        for ranks in RANKS if not expected or os.environ.get("MOONHALO_TEST_ALL") else (1, 3):
            found = numbers(run(launcher, "-n", ranks, program, script, LEAPS))
            print(
                f"heat_{language}, {name} MPI, {ranks} ranks: " + " ".join(f"{number:.16e}" for number in found),
                flush=True,
            )
            expected = expected or found
            if len(found) != 3 or not all(math.isclose(a, b, rel_tol=DIGITS) for a, b in zip(found, expected)):
                sys.exit("these differ from the first")
    if expected[2] > 0.5 * expected[1]:
        sys.exit("the network learned nothing")
    return expected


def check_in_transit(launcher, examples, script):
    """How many snapshots are learned from depends on the machine, so the figures do too."""
    for ranks, trainers in ((2, 1), (4, 2), (5, 1)):
        output = run(launcher, "-n", ranks, examples / "in_transit", script, trainers, SETS)
        changed, differs = numbers(output)
        print(
            f"in_transit on {ranks} ranks, {trainers} of which train: changed {changed:.6e}, network differs"
            f" {differs:.6e}",
            flush=True,
        )
        if output.count("trained on") != trainers or differs > 0.5 * changed:
            sys.exit(f"the network learned nothing in transit:\n{output}")


def check_pretrained(launcher, programs, source, fortran, work, python):
    """A U-Net that PyTorch exports, in solvers with uneven blocks: the whole field as PyTorch computes it."""
    folder = Path(source) / "examples/embed/pretrained"
    lines = (folder / "solver.f90").read_text().splitlines()
    if len(lines) > 40:
        sys.exit(f"solver.f90 has {len(lines)} lines; its pages say 40")
    run(python, "-W", "ignore", folder / "model.py", "export", work / "unet.pt2")
    script, model, written = folder / "unet.lua", f'model="{work}/unet.pt2"', []
    runs = [("c", [programs / "pretrained_c", script], 2)]
    runs += [("fortran", [programs / "pretrained_fortran", script], ranks) for ranks in (1, 2, 3) if fortran]
    runs += [("cpp", [Path(programs).parent.parent / "bin/embed_pretrained", work / "unet.pt2"], 3)]
    for language, command, ranks in runs:
        written.append(work / f"u_{language}_{ranks}.pt")
        last = written[-1] if language == "cpp" else f'{model} output="{written[-1]}"'
        run(launcher, "-n", ranks, *command, last)
    print(run(python, "-W", "ignore", folder / "model.py", "check", *written), flush=True)


def main(cmake, build_folder, source, mpiexec, python, missing):
    work = Path(tempfile.mkdtemp(prefix="solvers test é ", dir=build_folder))
    run(cmake, "--install", build_folder, "--prefix", work / "prefix")
    examples, script = Path(source) / "examples/embed", Path(source) / "examples/embed/surrogate.lua"
    fortran = shutil.which("gfortran") is not None
    if not fortran:
        print("skipped: Fortran, because there is no compiler for it (Debian: gfortran)")
    programs = ["heat_c", "heat_cpp", "in_transit", "pretrained_c"]
    programs += ["heat_fortran", "pretrained_fortran"] if fortran else []
    expected = None
    for name, flags, launcher in libraries_of_mpi(mpiexec):
        folder = work / name
        build(cmake, examples, folder, work / "prefix", *flags, targets=programs)
        expected = check_heat(name, launcher, folder, script, fortran, expected)
        check_in_transit(launcher, folder, script)
    missing = missing.split("=", 1)[1]
    if not missing:
        check_pretrained(mpiexec, work / "own", source, fortran, work, python)
    elif os.environ.get("MOONHALO_REQUIRE_TEST_PACKAGES"):
        sys.exit(missing)
    else:
        print(f"skipped: a model of PyTorch, because {missing}")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
