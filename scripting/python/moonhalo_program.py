#!python
# SPDX-License-Identifier: Apache-2.0
"""Starts the program `moonhalo` of this environment's package, without importing PyTorch."""

import importlib.util
import os
import re
import runpy
import sys


def folder_of(package):
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"moonhalo: no package {package} here\n  have  {sys.prefix}\n  fix   pip install {package}")
    return os.path.realpath(found.submodule_search_locations[0])


ours, torch = folder_of("moonhalo"), folder_of("torch")
with open(os.path.join(torch, "version.py")) as file:
    version = re.search(r"__version__ = '([^']+)", file.read())[1]
built_for = runpy.run_path(os.path.join(ours, "_built_for.py"))["TORCH"]
try:
    runpy.run_path(os.path.join(ours, "_same_torch.py"))["check"](version, torch, built_for)
except ImportError as error:
    sys.exit(str(error))
if os.path.dirname(ours) != os.path.dirname(torch):  # PyTorch of another environment
    paths = [os.path.join(torch, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
program = os.path.join(ours, "bin/moonhalo")
os.execv(program, [program, *sys.argv[1:]])
