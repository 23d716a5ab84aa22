#!/usr/bin/env python3
"""Installs Moonhalo into a new folder, and builds and runs against it a project in C, one in Fortran, one without CMake
and the programs of docs/embedding*.md (X15). usage: check_embed.py CMAKE BUILD_FOLDER SOURCE_FOLDER MPIEXEC"""

import math
import os
import shutil
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
from pages import first_block

DIGITS = 1e-12


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="surrogateescape",
        **options,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nstatus {done.returncode} from {' '.join(map(str, command))}")
    return done.stdout


def numbers(output):
    """The last word of every line that ends in a number with an exponent."""
    words = [line.split()[-1] for line in output.splitlines() if line.strip()]
    return [float(word) for word in words if "e" in word.lower() and word[0].isdigit()]


def build(cmake, source, folder, prefix, *flags, targets=("all",)):
    run(cmake, "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release", *flags)
    run(cmake, "--build", folder, "--target", *targets)


def check_fortran(cmake, source, work, prefix, mpiexec):
    build(cmake, source / "tests/package/fortran", work / "fortran", prefix)
    program = [work / "fortran/fortran_consumer", source / "tests/embed/host.lua"]
    for ranks in (1, 3):
        run(mpiexec, "-n", ranks, *program)
        run(mpiexec, "-n", ranks, work / "fortran/fortran_f08", program[1])
    own = [run(mpiexec, "-n", ranks, work / "fortran/fortran_transport", program[1]).strip() for ranks in (1, 2, 3)]
    print("messages by functions in Fortran: " + "; ".join(own), flush=True)
    losses = [numbers(line)[0] for line in own]
    if not all(math.isclose(loss, losses[0], rel_tol=DIGITS) for loss in losses):
        sys.exit("these losses differ")
    failed = subprocess.run([mpiexec, "-n", "2", *map(str, program), "fail"], capture_output=True, text=True)
    if (
        failed.returncode == 0
        or "ERROR STOP moonhalo: " not in failed.stderr
        or "the pressure is negative" not in failed.stderr
    ):
        sys.exit(f"an error without stat= ended with status {failed.returncode} and:\n{failed.stderr}")
    if failed.stderr.count("ERROR STOP moonhalo: ") != 1:
        sys.exit(f"an error that both ranks have must be printed once:\n{failed.stderr}")


def flags_from(folder):
    """Those of pkg-config, which escapes spaces and letters that are not ASCII."""
    return shlex.split(
        run("pkg-config", "--cflags", "--libs", "moonhalo", env={**os.environ, "PKG_CONFIG_PATH": str(folder)})
    )


def check_pkg_config(source, work, prefix):
    """A C project without CMake, and an install that has moved."""
    moved = work / "moved"
    prefix.rename(moved)
    found = list(moved.glob("**/pkgconfig/moonhalo.pc"))
    if len(found) != 1:
        sys.exit(f"moonhalo.pc is installed {len(found)} times")
    run(
        "cc",
        "-std=c99",
        "-Wall",
        "-Werror",
        source / "tests/package/c/main.c",
        "-o",
        work / "pc_consumer",
        *flags_from(found[0].parent),
    )
    print("pkg-config: " + run(work / "pc_consumer").splitlines()[0])
    moved.rename(prefix)


def check_pages(cmake, source, work, prefix, mpiexec):
    """The programs of docs/embedding*.md, as they stand there: all three train the same network on the same field."""
    folder = work / "pages"
    folder.mkdir()
    docs = source / "docs"
    (folder / "script.lua").write_text(first_block(docs / "embedding.md", "lua"))
    (folder / "solver.c").write_text(first_block(docs / "embedding.md", "c"))
    (folder / "solver.cpp").write_text(first_block(docs / "embedding_cpp.md", "cpp"))
    (folder / "solver.f90").write_text(first_block(docs / "embedding_fortran.md", "fortran"))
    flags = flags_from(next(prefix.glob("**/pkgconfig")))
    run("mpicc", folder / "solver.c", *flags, "-o", folder / "solver_c")
    run("mpicxx", "-std=c++11", folder / "solver.cpp", *flags, "-o", folder / "solver_cpp")
    programs = ["solver_c", "solver_cpp"]
    if shutil.which("gfortran"):
        (folder / "CMakeLists.txt").write_text(first_block(docs / "embedding_fortran.md", "cmake"))
        build(cmake, folder, folder / "build", prefix)
        programs.append("build/solver")
    lines = [run(mpiexec, "-n", 3, folder / name, folder / "script.lua").splitlines()[0] for name in programs]
    print("\n".join(lines))
    losses = [[float(word.strip(",")) for word in line.split() if "e-" in word.lower()] for line in lines]
    if (
        any(not math.isclose(a, b, rel_tol=1e-5) for loss in losses for a, b in zip(loss, losses[0]))
        or len(losses[0]) != 2
    ):
        sys.exit("the programs of the pages differ")


def main(cmake, build_folder, source, mpiexec):
    work = Path(tempfile.mkdtemp(prefix="embed test é ", dir=Path(build_folder).resolve()))
    prefix = work / "prefix"
    run(cmake, "--install", build_folder, "--prefix", prefix)
    build(cmake, Path(source) / "tests/package/c", work / "c", prefix)
    print(run(work / "c/c_consumer").strip())
    check_pkg_config(Path(source), work, prefix)
    check_pages(cmake, Path(source), work, prefix, mpiexec)

    if shutil.which("gfortran"):
        check_fortran(cmake, Path(source), work, prefix, mpiexec)
    else:
        print("skipped: Fortran, because there is no compiler for it (Debian: gfortran)")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
