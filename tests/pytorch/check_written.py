# SPDX-License-Identifier: Apache-2.0
"""Files of mh.save_pt, opened by torch.load with its default settings (Y04).

check_written.py PROGRAM SCRIPT: SCRIPT writes the files into a folder of its own."""

import collections
import math
import subprocess
import sys
import tempfile
import zipfile

import torch

program, script = sys.argv[1:3]


def check_values(values):
    assert values["none"] == [1, None, 2] and values["yes"] is True and values["no"] is False
    assert (
        values["small"] == -5 and values["large"] == 1 << 62 and values["number"] == 0.1 and values["inf"] == math.inf
    )
    assert values["text"] == "ü✓" and values["bytes"] == b"\xff\0a"
    assert values["list"] == [1, [2, "x"], {"key": 3}] and values["by_number"] == {0: "zero", 7: "seven"}
    tensors, base = values["tensors"], torch.arange(12.0).reshape(3, 4)
    assert torch.equal(tensors["turned"], base.t()) and tensors["turned"].is_contiguous()
    assert tensors["again"][0].data_ptr() == tensors["again"][1].data_ptr()
    assert tensors["scalar"].item() == 2.5 and tensors["empty"].shape == (0, 3)
    assert torch.equal(tensors["complex"], torch.complex(base, -base))
    assert torch.equal(tensors["conj"].resolve_conj(), torch.complex(base, -base))
    for name in (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "uint16",
        "uint32",
        "uint64",
    ):
        dtype = getattr(torch, name)
        assert tensors[name].dtype == dtype and torch.equal(tensors[name].double(), base.to(dtype).double()), name


with tempfile.TemporaryDirectory() as folder:
    ended = subprocess.run([program, "run", script, "--", folder], check=False)
    assert ended.returncode == 0, f"{script} ended with {ended.returncode}"
    state = torch.load(f"{folder}/net.pt")
    assert isinstance(state, collections.OrderedDict)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 2, 1))
    net.load_state_dict(state)
    assert list(state) == list(net.state_dict())
    check_values(torch.load(f"{folder}/values.pt"))
    assert torch.equal(torch.load(f"{folder}/single.pt", mmap=True), torch.arange(12.0).reshape(3, 4))
    for name in ("net.pt", "values.pt"):
        with zipfile.ZipFile(f"{folder}/{name}") as archive:
            assert archive.testzip() is None
