# SPDX-License-Identifier: Apache-2.0
"""examples/well on the files that it makes: the losses of one rank on any number, and predictions better than that
nothing changes (X18, X19, X21).

check_well.py PROGRAM PYTHON SOURCE: the moonhalo program, the python that has h5py, the repository."""

import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import enter

program, python, source = sys.argv[1:4]
enter(python, "h5py")

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([python, source + "/examples/well/make.py", folder], check=True)
    for data in ("well", "stirred.hdf5"):
        logs = []
        for ranks in (1, 3, 4):
            logs.append(f"{folder}/{data}_{ranks}.jsonl")
            settings = ["dtype=float64", "width=4", "epochs=3", f"data={folder}/{data}"]
            said = subprocess.run(
                [
                    program,
                    "run",
                    source + "/examples/well/train.lua",
                    "--ranks",
                    str(ranks),
                    "--quiet",
                    "--log",
                    logs[-1],
                ]
                + [word for setting in settings for word in ("--set", setting)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        unchanged, network = (
            float(re.search(name + r" +([\d.]+)\n", said)[1]) for name in ("nothing changes", "network")
        )
        if network > 0.7 * unchanged:
            sys.exit(f"predictions are worse than they should be:\n{said}")
        with open(logs[0]) as log:
            steps = str(len(log.readlines()) - 1)
        subprocess.run(
            [program, "run", source + "/tests/examples/compare_losses.lua", "--", steps, "1e-10", *logs], check=True
        )
