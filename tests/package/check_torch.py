#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs Moonhalo as it is found where the LibTorch that it was built with has gone: find_package says which version
is needed and how to name another folder (or is quiet where it was not REQUIRED), and each of these ways builds programs
that run. usage: check_torch.py CMAKE BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER VERSION"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_embed import run

OPTIONAL = """cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES CXX)
find_package(moonhalo)
if(moonhalo_FOUND)
  message(FATAL_ERROR "moonhalo was found")
endif()
"""


def forget(prefix, torch):
    """Makes the installed files name a folder of the same length that is not there."""
    gone = torch.rstrip("/")[:-4] + "gone"
    changed = set()
    for path in prefix.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if torch.encode() in data:
            path.write_bytes(data.replace(torch.encode(), gone.encode()))
            changed.add(path.name)
    if not {"moonhaloConfig.cmake", "libmoonhalo.so.0.1.0"} <= changed or os.path.exists(gone):
        sys.exit(f"{torch} is named by {changed}")
    return gone


def elsewhere(folder, torch):
    """The same LibTorch at another place, with PyTorch's own package file for Torch_DIR."""
    folder.mkdir()
    for name in ("lib", "include", "share", "version.py", "build-version"):
        if os.path.exists(f"{torch}/{name}"):
            (folder / name).symlink_to(f"{torch}/{name}")
    return folder


def of_version(folder, torch, version):
    elsewhere(folder, torch)
    for name in ("version.py", "build-version"):
        (folder / name).unlink(missing_ok=True)
    (folder / "build-version").write_text(version + "\n")
    return folder


def refused(cmake, source, build, prefix, *flags):
    """What find_package says, without the lines that CMake adds."""
    done = subprocess.run(
        [cmake, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *flags], capture_output=True, text=True
    )
    if done.returncode == 0:
        sys.exit(f"configured with {flags}:\n{done.stdout}")
    return " ".join(done.stderr.split())


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit(f"no {part!r} in:\n{text}")


def check_refusals(cmake, work, prefix, source, gone, version, torch):
    ways = (
        "-DMOONHALO_TORCH=TORCH",
        "-DTorch_DIR=TORCH/share/cmake/Torch",
        "-DCMAKE_PREFIX_PATH=TORCH",
        f"pip install torch=={version}",
    )
    for folder in (source / "c", source):
        said = refused(cmake, folder, work / f"none {folder.name}", prefix)
        expect(said, f"LibTorch {version} is needed", f"have {gone}, which has no lib/libtorch_cpu.so", *ways)
    other = of_version(work / "other", torch, "2.99.1")
    for number, flag in enumerate((f"-DMOONHALO_TORCH={other}", f"-DTorch_DIR={other}/share/cmake/Torch")):
        expect(
            refused(cmake, source / "c", work / f"other {number}", prefix, flag),
            f"LibTorch {version} is needed",
            f"have {other}, which is version 2.99.1",
            *ways,
        )
    said = refused(cmake, source / "c", work / "prefix of others", f"{prefix};{other}")
    expect(said, f"have {other}, which is version 2.99.1", f"have {gone}, which has no lib/libtorch_cpu.so")
    (work / "optional").mkdir()
    (work / "optional/CMakeLists.txt").write_text(OPTIONAL)
    expect(run(cmake, "-S", work / "optional", "-B", work / "optional/build", f"-DCMAKE_PREFIX_PATH={prefix}"), *ways)


def main(cmake, build_folder, source, torch, version):
    work = Path(tempfile.mkdtemp(prefix="torch test é ", dir=Path(build_folder).resolve()))
    prefix = work / "prefix"
    run(cmake, "--install", build_folder, "--prefix", prefix)
    torch = torch.rstrip("/")
    package = Path(source) / "tests/package"
    check_refusals(cmake, work, prefix, package, forget(prefix, torch), version, torch)
    there = elsewhere(work / "there", torch)
    # A program in C needs LibTorch for Moonhalo alone; one in C++ for itself, too.
    ways = [
        ("c", "c_consumer", prefix, [f"-DMOONHALO_TORCH={there}"]),
        ("c", "c_consumer", f"{prefix};{there}", []),
        ("c", "c_consumer", f"{prefix};{there}/share/cmake", []),
        (".", "consumer", prefix, [f"-DTorch_DIR={there}/share/cmake/Torch"]),
    ]
    for number, (folder, program, prefixes, flags) in enumerate(ways):
        build = work / f"way {number}"
        run(cmake, "-S", package / folder, "-B", build, f"-DCMAKE_PREFIX_PATH={prefixes}", *flags)
        run(cmake, "--build", build, "--target", program)
        print(f"{program} {flags}: {run(build / program).splitlines()[0]}", flush=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
