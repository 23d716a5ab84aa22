#!/usr/bin/env python3
"""Runs the Lua script that README.md shows on one rank and on three, and compares the losses that it logs.
usage: check_readme.py MOONHALO SOURCE_FOLDER"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, TOLERANCE = 20, 1e-5


def losses_of(program, source, script, ranks, log):
    done = subprocess.run([program, "run", script, "--ranks", str(ranks), "--log", log], cwd=source, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}status {done.returncode} on {ranks} ranks")
    return [json.loads(line)["loss"] for line in Path(log).read_text().splitlines()]


def main(program, source):
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first.lua"
        script.write_text((Path(source) / "README.md").read_text().split("```lua\n", 1)[1].split("```", 1)[0])
        one, three = (losses_of(program, source, script, ranks, Path(folder) / f"{ranks}.jsonl") for ranks in (1, 3))
    if len(one) != STEPS or not one[-1] < one[0]:
        sys.exit(f"the losses on one rank: {one}")
    if len(three) != STEPS or not all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(one, three)):
        sys.exit(f"the losses differ\none rank     {one}\nthree ranks  {three}")
    print(f"loss {one[0]:.4f} to {one[-1]:.4f}, the same on 1 and 3 ranks")


if __name__ == "__main__":
    main(*sys.argv[1:])
