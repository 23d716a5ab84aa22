#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Lua blocks of the pages that run, and examples/small, on one rank and on three (support/run_pages.lua).

run_pages.py PROGRAM REFERENCE [NAME ...]: with names only pages whose path contains one of them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "docs/tools"))

import pages

SCRIPT = SOURCE / "tests/scripting/support/run_pages.lua"
SINGLE_PAGES = ("docs/faq.md", "docs/from_dtensor.md")


def main():
    program, reference, *names = sys.argv[1:]
    program, reference = Path(program).resolve(), Path(reference).resolve()
    paths = sorted((SOURCE / "docs/guide").glob("*.md")) + [SOURCE / name for name in SINGLE_PAGES]
    paths += sorted((SOURCE / "examples/small").glob("*.lua"))
    chosen = [path for path in paths if path.exists() and (not names or any(name in path.name for name in names))]
    read = [path for path in chosen if path.suffix == ".md"]
    without = [path for path in read if not any(block[0] == "lua" for block in pages.blocks(path))]
    assert chosen and not without, f"pages without Lua: {without}"
    status = 0
    for ranks in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LUA_PATH_5_4": f"{SOURCE}/tests/scripting/?.lua;;"}
            command = [program, "run", "--ranks", str(ranks), SCRIPT, "--", *chosen]
            status |= subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if not names:  # blocks of other pages do not run
        others = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
        command = [program, "run", SOURCE / "tests/scripting/support/check_page_names.lua", "--", *others]
        environment["MOONHALO_REFERENCE"] = str(reference)
        status |= subprocess.run(command, env=environment, check=False).returncode
    sys.exit(status != 0)


if __name__ == "__main__":
    main()
