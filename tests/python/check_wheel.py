#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which build a wheel is made from, where a machine has several versions of Python and PyTorch, and which libraries it
refuses to carry.  usage: check_wheel.py SOURCE_FOLDER"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(Path(sys.argv[1]) / "scripting/python"))
import build_wheel
import wheel_libraries
from own_python import check, finish


def commands_for(version, work):
    """What _build runs for a PyTorch of this version."""
    torch, commands = work / f"torch-{version}", []
    torch.mkdir()
    (torch / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{version}'\n")
    build_wheel._torch = lambda: torch
    build_wheel.subprocess.run = lambda command, check: commands.append([str(word) for word in command])
    folder = build_wheel._build()
    check(
        f"{commands} configures for {torch}", f"-DMOONHALO_TORCH={torch}" in commands[0] and str(folder) in commands[0]
    )
    return folder


def builds_again(folder):
    """Whether anything is built in a folder that has the module."""
    commands = []
    (folder / "python/moonhalo").mkdir(parents=True)
    (folder / "python/moonhalo/_moonhalo.so").write_text("")
    build_wheel.subprocess.run = lambda command, check: commands.append(command)
    os.environ["MOONHALO_BUILD"] = str(folder)
    taken = build_wheel._build()
    del os.environ["MOONHALO_BUILD"]
    check(f"{taken} is {folder}", taken == folder.resolve())
    return commands


def made_library(path, *needs):
    """A library that needs these others."""
    subprocess.run(
        ["cc", "-shared", "-o", path, f"-Wl,-soname,{path.name},-rpath,{path.parent},--no-as-needed", *needs, "-xc"]
        + ["/dev/null"],
        check=True,
    )
    return path


def refused(library, torch):
    """What is said of a wheel with this library; "" where it is made."""
    try:
        wheel_libraries.Bundle({f"moonhalo/{library.name}": library}, torch, Path("libnone.so"))
    except SystemExit as error:
        return str(error)
    return ""


def check_libraries(work):
    folder, torch = work / "libraries", work / "its_torch"
    folder.mkdir()
    (torch / "lib").mkdir(parents=True)
    others = [made_library(folder / name) for name in ("libunknown.so.1", "libsecond.so.2", "libz.so.1")]
    unknown, second, free = others
    ours = made_library(folder / "libours.so", unknown, second)
    said = refused(ours, torch)
    check(f"all are named: {said}", all(f"needs {one.name}, which is not known" in said for one in (unknown, second)))
    (torch / "lib/libunknown.so.1").touch()
    said = refused(ours, torch)
    check(f"PyTorch's are its own: {said}", "libunknown" not in said and "libsecond.so.2" in said)
    ours = made_library(folder / "libours.so", free)
    said = refused(ours, torch)
    check(f"no license: {said}", "libz.so.1, whose license is not found" in said)
    (folder / "libz.so.1.txt").write_text("as you like")
    os.environ["MOONHALO_LICENSES"] = str(folder)
    check("the license is given", refused(ours, torch) == "")
    free.unlink()
    made_library(folder / "libours.so", made_library(free, unknown))
    (torch / "lib/libunknown.so.1").unlink()
    said = refused(ours, torch)
    check(f"also those of others: {said}", "libz.so.1 needs libunknown.so.1, which is not known" in said)
    del os.environ["MOONHALO_LICENSES"]


with tempfile.TemporaryDirectory() as name:
    work = Path(name)
    check_libraries(work)
    build_wheel.SOURCE = work
    again = builds_again(work / "finished")
    check(f"a finished build is taken as it is: {again}", not again)
    folders = [commands_for(version, work) for version in ("2.10.0+cpu", "2.11.0")]
    check(
        f"{folders} differ",
        folders[0] != folders[1]
        and all(f"cp{sys.version_info[0]}{sys.version_info[1]}" in str(one) for one in folders),
    )
    # A module for another Python is not taken.
    (work / "build/python/moonhalo").mkdir(parents=True)
    (work / "build/python/moonhalo/_moonhalo.cpython-27-other.so").write_text("")
    (work / "CMakeLists.txt").write_text("project(moonhalo VERSION 1.0)")
    build_wheel._build = lambda: work / "build"
    try:
        build_wheel.build_wheel(str(work))
        check("a module for another Python is refused", False)
    except SystemExit as refused:
        check(f"said: {refused}", "the build is for another Python" in str(refused))
finish()
