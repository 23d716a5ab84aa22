#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Lua blocks of the pages that run, and examples/small, on one rank and on three (support/run_pages.lua).

run_pages.py PROGRAM REFERENCE [NAME ...]: with names only pages whose path contains one of them."""

import os
import re
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


# In blocks, code spans and indented lines: moonhalo COMMAND options.
COMMAND = re.compile(r"(?<![\w-])moonhalo ([a-z]+)\b([^#`\n]*)")


def wrong_options(program, paths):
    """Lines of pages with options that the program does not have."""
    overview = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+) ", overview, re.MULTILINE))
    texts, wrong = {}, []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for command, words in COMMAND.findall(line):
                options = re.findall(r"(?<!\S)--[a-z][\w-]*", words.partition(" -- ")[0]) if command in commands else []
                for option in options:
                    if command not in texts:
                        ended = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True)
                        texts[command] = ended.stdout
                    if not re.search(rf"(?<![\w-]){option}(?![\w-])", texts[command]):
                        wrong.append(f"{path.relative_to(SOURCE)}:{number}: moonhalo {command} has no option {option}")
    assert len(texts) > 3, "the pages show no command lines"
    return wrong


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
        shown = [path for path in others if path.name != "errors.md"] + sorted((SOURCE / "docs/guide").glob("*.md"))
        wrong = wrong_options(program, shown)
        print("\n".join(wrong) if wrong else "options of command lines exist")
        status |= bool(wrong)
    sys.exit(status != 0)


if __name__ == "__main__":
    main()
