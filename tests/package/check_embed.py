#!/usr/bin/env python3
"""Installs Moonhalo into a new folder, builds the solvers of examples/embed and a project in C against it, and runs these under
mpirun: their numbers must agree to 12 digits over numbers of ranks and languages (X15).
usage: check_embed.py CMAKE BUILD_FOLDER SOURCE_FOLDER MPIEXEC"""

import math
import shutil
import subprocess
import sys
from pathlib import Path

DIGITS = 1e-12
RANKS = (1, 2, 3, 4)
LEAPS = 100


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nstatus {done.returncode} from {' '.join(map(str, command))}")
    return done.stdout


def numbers(output):
    """The last word of every line that ends in a number with an exponent."""
    words = [line.split()[-1] for line in output.splitlines() if line.strip()]
    return [float(word) for word in words if "e" in word.lower() and word[0].isdigit()]


def build(cmake, source, folder, prefix):
    run(cmake, "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run(cmake, "--build", folder)


def check_fortran(cmake, source, work, prefix, mpiexec):
    build(cmake, source / "tests/package/fortran", work / "fortran", prefix)
    program = [work / "fortran/fortran_consumer", source / "tests/embed/host.lua"]
    for ranks in (1, 3):
        run(mpiexec, "-n", ranks, *program)
    failed = subprocess.run([mpiexec, "-n", "2", *map(str, program), "fail"], capture_output=True, text=True)
    if failed.returncode == 0 or "ERROR STOP moonhalo: " not in failed.stderr or "the pressure is negative" not in failed.stderr:
        sys.exit(f"an error without stat= ended with status {failed.returncode} and:\n{failed.stderr}")


def main(cmake, build_folder, source, mpiexec):
    work = Path(build_folder).resolve() / "embed_test"
    shutil.rmtree(work, ignore_errors=True)
    prefix = work / "prefix"
    run(cmake, "--install", build_folder, "--prefix", prefix)
    build(cmake, Path(source) / "tests/package/c", work / "c", prefix)
    print(run(work / "c/c_consumer").strip())

    build(cmake, Path(source) / "examples/embed", work / "examples", prefix)
    script = Path(source) / "examples/embed/surrogate.lua"
    languages = [name for name in ("heat_c", "heat_fortran") if (work / "examples" / name).exists()]
    if "heat_fortran" in languages:
        check_fortran(cmake, Path(source), work, prefix, mpiexec)
    else:
        print("skipped: Fortran, because there is no compiler for it (Debian: gfortran)")
    expected = None
    for language in languages:
        for ranks in RANKS:
            found = numbers(run(mpiexec, "-n", ranks, work / "examples" / language, script, LEAPS))
            print(f"{language} on {ranks} ranks: " + " ".join(f"{number:.12e}" for number in found), flush=True)
            expected = expected or found
            if len(found) != 3 or not all(math.isclose(a, b, rel_tol=DIGITS) for a, b in zip(found, expected)):
                sys.exit("these differ from the first")
    if expected[2] > 0.5 * expected[1]:
        sys.exit("the network learned nothing")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
