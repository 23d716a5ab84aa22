#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every script of tests/scripting/mistakes, each as a program of its own, and compares all that it says with the
text at the script's end. A script makes one mistake of a newcomer; its text is the message: what, the line, the module,
the remedy.

    check_mistakes.py PROGRAM [--mpiexec MPIEXEC] [--bless] [NAME ...]

A script may begin with lines of directives:
    -- ranks: 1 3        thread ranks to run on (this is the default)
    -- mpi: 3            also under MPIEXEC with so many ranks, where every rank may print the text
    -- options: --set width=8
    -- status: 1         of the program (this is the default)
A script writes files into os.getenv("SCRATCH"), an empty folder of each run, which the text names SCRATCH; the tree is
ROOT there."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent / "mistakes"
ROOT = FOLDER.parents[2]
BEGIN, END = "--[==[\n", "]==]\n"
DIRECTIVE = re.compile(r"^-- (?:ranks|mpi|options|status): .*\n", re.MULTILINE)
RANKS = re.compile(r"^ranks? [0-9, -]+: ", re.MULTILINE)
LIMIT_S = 300


class Mistake:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()
        self.script, _, golden = self.text.partition(BEGIN)
        self.expected = golden[: -len(END)] if golden.endswith(END) else None
        self.ranks = [int(n) for n in self.directive("ranks", "1 3").split()]
        self.mpi = int(self.directive("mpi", "0"))
        self.options = shlex.split(self.directive("options", ""))
        self.status = int(self.directive("status", "1"))

    def code(self):
        """The script without its directives."""
        return DIRECTIVE.sub("", self.script).strip("\n")

    def directive(self, name, default):
        found = re.search(rf"^-- {name}: (.*)$", self.script, re.MULTILINE)
        return found.group(1) if found else default

    def said(self, command, ranks=1):
        """Status and all that a run says, without the names of ranks: all must say the same."""
        command = command + ["run", self.path.name] + self.options + (["--ranks", str(ranks)] if ranks > 1 else [])
        with tempfile.TemporaryDirectory() as scratch:
            try:
                done = subprocess.run(
                    command,
                    cwd=FOLDER,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "SCRATCH": scratch},
                )
            except subprocess.TimeoutExpired:
                return None, f"nothing within {LIMIT_S} s\n"
        text = (done.stdout + done.stderr).replace(scratch, "SCRATCH").replace(str(ROOT), "ROOT")
        return done.returncode, RANKS.sub("", text).expandtabs(4)

    def bless(self, program):
        text = self.said([program], self.ranks[0])[1]
        self.path.write_text(self.script.rstrip("\n") + "\n" + BEGIN + text + END)

    def problems(self, program, mpiexec):
        if self.expected is None:
            return [f"{self.path.name}: no text in {BEGIN.strip()} ... {END.strip()} at the end"]
        found = []

        def judge(how, status, text, same):
            if status != self.status or not same:
                found.append(
                    f"{self.path.name}, {how}: status {status}, expected {self.status}\n--- said\n{text}--- expected\n"
                    f"{self.expected}---"
                )

        for ranks in self.ranks:
            status, text = self.said([program], ranks)
            judge(f"{ranks} ranks", status, text, text == self.expected)
        if self.mpi and mpiexec:
            status, text = self.said([mpiexec, "-n", str(self.mpi), program])
            judge(f"mpiexec -n {self.mpi}", status, text, self.expected in text)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--mpiexec", default="")
    parser.add_argument(
        "--bless", action="store_true", help="write what is said now into the scripts; read it before you keep it"
    )
    parser.add_argument("names", nargs="*")
    given = parser.parse_intermixed_args()
    program = str(pathlib.Path(given.program).resolve())
    mistakes = [Mistake(path) for path in sorted(FOLDER.glob("*.lua")) if not given.names or path.stem in given.names]
    if given.bless:
        for mistake in mistakes:
            mistake.bless(program)
        return subprocess.run([sys.executable, "-B", ROOT / "docs/tools/errors.py"], check=False).returncode
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        lists = two.map(lambda mistake: mistake.problems(program, given.mpiexec), mistakes)
        found = [problem for problems in lists for problem in problems]
    for problem in found:
        print(problem)
    print(f"{len(mistakes)} mistakes, {len(found)} unlike their text")
    return 1 if found or not mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
