#!/usr/bin/env python3
"""Runs the first Lua script that a page shows, or a section of it, on several numbers of ranks, and compares the losses
that it logs. usage: check_page.py MOONHALO SOURCE_FOLDER PAGE "HEADING OF THE SECTION"|- STEPS RANKS..."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
from pages import first_block

TOLERANCE = 1e-5


def losses_of(program, source, script, ranks, log):
    done = subprocess.run(
        [program, "run", script, "--ranks", ranks, "--log", log], cwd=source, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}status {done.returncode} on {ranks} ranks")
    return [json.loads(line)["loss"] for line in Path(log).read_text().splitlines()]


def main(program, source, page, heading, steps, *ranks):
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first.lua"
        script.write_text(first_block(Path(source) / page, "lua", heading if heading != "-" else None))
        losses = {count: losses_of(program, source, script, count, Path(folder) / f"{count}.jsonl") for count in ranks}
    one = losses[ranks[0]]
    if len(one) != int(steps) or not one[-1] < one[0]:
        sys.exit(f"the losses on {ranks[0]} ranks: {one}")
    for count, found in losses.items():
        if len(found) != len(one) or not all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(one, found)):
            sys.exit(f"the losses differ\n{ranks[0]} ranks  {one}\n{count} ranks  {found}")
    print(f"loss {one[0]:.5f} to {one[-1]:.5f}, the same on {', '.join(ranks)} ranks")


if __name__ == "__main__":
    main(*sys.argv[1:])
