#!/usr/bin/env python3
"""Runs programs of examples/ as one of 8 ranks that do not exist, and checks that they end well and write no file.
usage: check_dry_runs.py PROGRAM SOURCE_FOLDER [--all]; without --all a few of them, each as another rank."""

import os
import subprocess
import sys
import tempfile

RANKS = 8
# Script, its settings, and whether it writes files otherwise.
CASES = [
    ("examples/channel/train.lua", "steps=2 trains=2 pictures=16 batch=4 width=4", False),
    ("examples/climate/train.lua", "steps=2 batch=8 width=4", True),
    ("examples/climate/diffusion.lua", "steps=2 batch=8 dim=8 depth=1 members=2 years=2 levels=2", True),
    ("examples/graph/train.lua", "steps=2 layers=1 width=4", False),
    ("examples/sst/train.lua", "epochs=1 batch=24 width=4", True),
    ("examples/train_at_scale/train.lua", "steps=4 dim=16 depth=1", True),
    ("examples/train_at_scale/train.lua", "steps=4 dim=16 depth=1 policy=data", True),
    ("examples/train_at_scale/train.lua", "steps=4 dim=16 depth=1 policy=tp", True),
    ("examples/train_at_scale/train.lua", "steps=4 dim=16 depth=1 policy=autodist", True),
]
DRAWN = [(1, 0), (4, 7), (5, 3)]


def dry_run(program, source, case, rank):
    """What went wrong, or ""."""
    script, settings, writes = case
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "output")
        command = [program, "run", os.path.join(source, script), "--quiet", "--backend", "fake", "--ranks", str(RANKS)]
        command += ["--fake-rank", str(rank)]
        for setting in settings.split() + ([f"output={output}"] if writes else []):
            command += ["--set", setting]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ended.returncode != 0:
            return f"status {ended.returncode}\n{ended.stdout[-500:]}{ended.stderr[-2000:]}"
        found = os.listdir(folder)
        if found:
            return f"wrote {found}"
        if writes and rank == 0 and "a dry run writes no files" not in ended.stderr:
            return f"no report of files that were left out: {ended.stderr!r}"
    return ""


def main():
    program, source = sys.argv[1:3]
    runs = [(case, rank) for case in CASES for rank in (0, 3, RANKS - 1)]
    if "--all" not in sys.argv:
        runs = [(CASES[i], rank) for i, rank in DRAWN]
    failed = 0
    for case, rank in runs:
        problem = dry_run(program, source, case, rank)
        failed += problem != ""
        print(f"{'FAILED' if problem else 'ok    '} {case[0]} {case[1]}, rank {rank} {problem}".rstrip())
    print(f"{len(runs)} dry runs, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
