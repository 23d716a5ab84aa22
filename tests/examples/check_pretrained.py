#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/pretrained: a model that PyTorch exports is trained on 3 ranks in Lua and on 2 in Python with the same
losses, and PyTorch loads what comes back. usage: check_pretrained.py PYTHON PROGRAM SOURCE_FOLDER
MODULE_FOLDER missing=WHAT"""

import functools
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import own_python
from own_python import check, finish, lacking

python, moonhalo, source, module, missing = sys.argv[1:]
if missing != "missing=":
    lacking(missing.split("=", 1)[1])
example = Path(source) / "examples/pretrained"
work = Path(tempfile.mkdtemp(prefix="pretrained é "))
run = functools.partial(own_python.run, PYTHONPATH=module, limit_s=1500)


def train(name, *command):
    """The lines with numbers; in float64 they are the same on any number of ranks."""
    said = run(name, *command)
    lines = re.findall(r"^(?:epoch|RMSE).*$", said, re.MULTILINE)
    check(f"{name} prints a line for its epoch, and one for the test:\n{said}", len(lines) == 2)
    return lines


in_python = (python, "-W", "ignore")
run("export", *in_python, example / "model.py", "export", work / "net.pt2", "float64")
settings = (f"model={work}/net.pt2", "dtype=float64", "epochs=1", "stop=4", f"output={work}/lua")
settings = [word for setting in settings for word in ("--set", setting)]
in_lua = train("train.lua", moonhalo, "run", "--ranks", 3, example / "train.lua", *settings)
options = ("--epochs", 1, "--stop", 4, "--dtype", "float64", "--output", work / "python")
in_module = train("train.py", *in_python, example / "train.py", "--ranks", 2, *options)
check(f"3 ranks in Lua and 2 in Python differ: {in_lua} {in_module}", in_lua == in_module)
said = run("check", *in_python, example / "model.py", "check", work / "lua", work / "python")
check(f"PyTorch says {said}", said.count("outputs of PyTorch differ by") == 2)
finish()
