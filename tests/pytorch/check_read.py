# SPDX-License-Identifier: Apache-2.0
"""Files that Python's torch.save wrote, read on one and three ranks (Y03).

check_read.py PROGRAM SCRIPT: makes the files in a folder of its own, with a list of what is in them, and runs SCRIPT
there."""

import argparse
import collections
import datetime
import functools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
import types
import zipfile

import torch

program, script = sys.argv[1:3]
torch.manual_seed(1)
cases = []


def numbers(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    return tensor.to(torch.float64).reshape(-1).tolist()


def expect(file, path, tensor):
    cases.append(
        {
            "file": file,
            "path": path,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "values": numbers(tensor),
        }
    )


class Config:
    pass


class Evil:
    """Runs a command where pickles are carried out."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def network():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 2, 1))
    net.register_buffer("mask", torch.ones(2), persistent=False)
    return net


def save_models():
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    for protocol in (2, 3, 4, 5):
        torch.save(net.state_dict(), f"state{protocol}.pt", pickle_protocol=protocol)
        for name, tensor in net.state_dict().items():
            expect(f"state{protocol}.pt", [name], tensor)
    torch.save(net, "module.pt")
    config = Config()
    config.rate = 1e-3
    torch.save(
        {
            "epoch": 3,
            "state_dict": net.state_dict(),
            "optimizer_states": [optimizer.state_dict()],
            "config": config,
            "hyper_parameters": argparse.Namespace(rate=1e-3, path=pathlib.Path("/a"), when=datetime.timedelta(3)),
            "function": functools.partial(print, 1),
            "scheduler": None,
        },
        "lightning.ckpt",
    )
    for name, tensor in net.state_dict().items():
        expect("lightning.ckpt", ["state_dict", name], tensor)
    for key, state in optimizer.state_dict()["state"].items():
        expect("lightning.ckpt", ["optimizer_states", 1, "state", key, "exp_avg"], state["exp_avg"])
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), "script.pt")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),)), "exported.pt2")
    torch.save(net.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
    for kind in ("zip", "tar"):
        save_mdlus(net, f"{kind}.mdlus", kind)


def save_mdlus(net, path, kind):
    """As the public format is described: model.pt, args.json and metadata.json in one archive."""
    torch.save(net.state_dict(), "model.pt")
    pathlib.Path("args.json").write_text(json.dumps({"__name__": "Net", "__module__": "m", "__args__": {"width": 8}}))
    pathlib.Path("metadata.json").write_text(json.dumps({"mdlus_file_version": "0.1.0"}))
    parts = ("model.pt", "args.json", "metadata.json")
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for part in parts:
                archive.write(part)
    else:
        with tarfile.open(path, "w") as archive:
            for part in parts:
                archive.add(part)
    for name, tensor in net.state_dict().items():
        expect(path, ["state_dict", name], tensor)


def save_tensors():
    base = torch.arange(60.0).reshape(3, 4, 5)
    ints = torch.arange(-3, 9).reshape(3, 4)
    named = {
        "view": base.transpose(0, 2)[1:],
        "steps": base[:, ::2, 1:4:2],
        "expanded": base[:, :1].expand(3, 6, 5),
        "same": base,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "no_dims_view": base[1, 2, 3],
        "parameter": torch.nn.Parameter(base.clone()),
        "complex": torch.complex(base, -base),
        "conj": torch.complex(base, base).conj(),
        "negative": torch.complex(base, base).conj().imag,
        "double_complex": torch.complex(base.double(), base.double()),
    }
    for name in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "float8_e4m3fn", "float8_e5m2"):
        named[name] = ints.to(getattr(torch, name))
    for name in ("uint8", "uint16", "uint32", "uint64", "bool"):
        named[name] = ints.abs().to(getattr(torch, name))
    torch.save(named, "tensors.pt")
    for name, tensor in named.items():
        expect("tensors.pt", [name], tensor)
    torch.save(base.t_() if base.dim() == 2 else base[1], "single.pt")
    expect("single.pt", [], base[1])
    blocks = {
        f"{order}{dims}": torch.randn(11, 7, 5).permute(permutation)
        for dims, (order, permutation) in enumerate([("row", (0, 1, 2)), ("turned", (2, 0, 1)), ("swapped", (1, 0, 2))])
    }
    blocks["gaps"] = torch.randn(11, 14, 5)[:, ::2]
    torch.save(blocks, "blocks.pt")
    for name, tensor in blocks.items():
        expect("blocks.pt", [name], tensor)
    coordinates = torch.tensor([[0, 2], [1, 0]])
    torch.save({"sparse": torch.sparse_coo_tensor(coordinates, torch.tensor([3.0, 4.0]), (3, 3))}, "sparse.pt")


def save_values():
    cycle = [1]
    cycle.append(cycle)
    torch.save(
        {
            "none": None,
            "yes": True,
            "no": False,
            "small": 7,
            "negative": -123456,
            "large": 2**62,
            "huge": 2**100,
            "number": -0.1,
            "text": "ü✓",
            "bytes": b"\x00\xff\x80a",
            "long": "x" * 300,
            "list": [1, None, [2.5, "a"]],
            "tuple": (1, (2, 3)),
            "set": {5},
            "frozen": frozenset([6]),
            "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16,
            "device": torch.device("cuda", 1),
            "ordered": collections.OrderedDict([("z", 1), ("a", 2), ("m", 3)]),
            "default": collections.defaultdict(list, {"k": [1]}),
            "by_number": {0: "zero", 7: "seven", True: "true"},
            "by_pair": {(1, 2): 3},
            "cycle": cycle,
            "class": Config,
            "complex": 1 + 2j,
            "empty": [],
            "range": range(3),
        },
        "values.pt",
    )
    torch.save({"weight": torch.ones(2), "harm": Evil("touch harmed")}, "evil.pt")


def save_numpy():
    """Arrays and scalars of numpy, without numpy: objects whose pickles name its functions."""
    modules = {}
    for name in ("numpy", "numpy.core", "numpy.core.multiarray"):
        modules[name] = sys.modules[name] = types.ModuleType(name)

    def function(module, name):
        def call(*_):
            raise AssertionError("called")

        call.__module__, call.__qualname__, call.__name__ = module, name, name
        setattr(modules[module], name, call)
        return call

    dtype_of = function("numpy", "dtype")
    reconstruct, scalar = (function("numpy.core.multiarray", name) for name in ("_reconstruct", "scalar"))
    array = function("numpy", "ndarray")

    class Reduced:
        def __init__(self, *parts):
            self.parts = parts

        def __reduce__(self):
            return self.parts

    f8 = Reduced(dtype_of, ("f8", False, True), (3, "<", None, None, None, -1, -1, 0))
    objects = Reduced(dtype_of, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63))
    data = torch.arange(6.0, dtype=torch.float64)
    raw = bytes(data.untyped_storage().tolist())
    plain = Reduced(reconstruct, (array, (0,), b"b"), (1, (2, 3), f8, False, raw))
    turned = Reduced(reconstruct, (array, (0,), b"b"), (1, (2, 3), f8, True, raw))
    torch.save(
        {
            "plain": plain,
            "turned": turned,
            "scalar": Reduced(scalar, (f8, raw[8:16])),
            "objects": Reduced(reconstruct, (array, (0,), b"b"), (1, (1,), objects, False, [None])),
        },
        "numpy.pt",
    )
    for name in modules:
        del sys.modules[name]
    expect("numpy.pt", ["plain"], data.reshape(2, 3))
    expect("numpy.pt", ["turned"], data.reshape(3, 2).t())


def save_others():
    with zipfile.ZipFile("packed.pt", "w", zipfile.ZIP_DEFLATED) as packed, zipfile.ZipFile("state2.pt") as plain:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with zipfile.ZipFile("other.zip", "w") as other:
        other.writestr("readme", "no model")
    with zipfile.ZipFile("protocol0.pt", "w") as old:
        old.writestr("x/data.pkl", pickle.dumps([1], protocol=0))
    with zipfile.ZipFile("big_endian.pt", "w") as big, zipfile.ZipFile("state2.pt") as plain:
        for name in plain.namelist():
            big.writestr(name, b"big" if name.endswith("byteorder") else plain.read(name))


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    save_models()
    save_tensors()
    save_values()
    save_numpy()
    save_others()
    pathlib.Path("cases.json").write_text(json.dumps(cases))
    for ranks in ("1", "3"):
        ended = subprocess.run([program, "run", script, "--ranks", ranks, "--", folder], check=False)
        assert ended.returncode == 0, f"{script} on {ranks} ranks ended with {ended.returncode}"
    assert not os.path.exists("harmed"), "a pickle was carried out"
    torch.load("evil.pt", weights_only=False)
    assert os.path.exists("harmed"), "the pickle of this test runs no command"
