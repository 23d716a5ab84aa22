# SPDX-License-Identifier: Apache-2.0
"""Datasets read block by block, and checkpoints, of which another number of ranks loads what some have written (Y05).
usage: files.py FOLDER_OF_THE_MODULE WORK_FOLDER RANKS load loads what ranks.py has saved there
       files.py FOLDER_OF_THE_MODULE WORK_FOLDER RANKS load_of_lua loads what script_checkpoints.lua has"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
import moonhalo as mh
import torch
import torch.nn.functional as F
from refusals import refused

FULL = torch.arange(5 * 11 * 4, dtype=torch.float64).reshape(5, 11, 4)
ROWS = [5, 0, 6]


def write_zarr(folder):
    """FULL as an array of Zarr 2, in chunks of two steps."""
    folder.mkdir()
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    array = folder / "t"
    array.mkdir()
    (array / ".zarray").write_text(
        json.dumps(
            {
                "zarr_format": 2,
                "shape": [5, 11, 4],
                "chunks": [2, 11, 4],
                "dtype": "<f8",
                "order": "C",
                "compressor": None,
                "filters": None,
                "fill_value": 0,
            }
        )
    )
    padded = torch.cat([FULL, torch.zeros(1, 11, 4, dtype=torch.float64)])
    for chunk in range(3):
        (array / f"{chunk}.0.0").write_bytes(
            bytes(padded[2 * chunk : 2 * chunk + 2].flatten().view(torch.uint8).tolist())
        )


def datasets(world, mesh, expect, work):
    if world.rank == 0:
        write_zarr(work / "t.zarr")
        file = mh.open(str(work / "t.nc"), "w")
        file.write("t", FULL, dims=["time", "y", "x"], attrs={"units": "K", "levels": [1, 2]})
        packed = (FULL / 2).round().to(torch.int16)
        file.write("packed", packed, attrs={"scale_factor": 2.0, "add_offset": 1.0})
        file.close()
    world.barrier()
    for name in ("t.nc", "t.zarr"):
        source = mh.open(str(work / name))["t"]
        expect(
            source.shape == [5, 11, 4] and source.ndim == 3 and len(source) == 5 and source.dtype == torch.float64,
            f"{name}: {source}",
        )
        x = mh.scatter_tensor(source, mesh, [mh.Shard(1, ROWS)])
        expect(x.placements == [mh.Shard(1, ROWS)] and torch.equal(x.full_tensor(), FULL), f"{name}: scatter_tensor")
        part = source[1:5, ::2, -1]
        expect(torch.equal(part.read(), FULL[1:5, ::2, -1]) and part.shape == [4, 6], f"{name}: {part}")
        expect(
            torch.equal(source["1:5, ::2, -1"].read(dtype=torch.float32), FULL[1:5, ::2, -1].float()),
            f"{name}: a string",
        )
        expect(
            torch.equal(source[3].read(), FULL[3]) and torch.equal(source[..., 0].read(), FULL[..., 0]),
            f"{name}: one index",
        )
        cut = mh.scatter_tensor(part, mesh, [mh.Shard(0)], dtype=torch.float32)
        expect(
            cut.dtype == torch.float32 and torch.equal(cut.full_tensor(), FULL[1:5, ::2, -1].float()), f"{name}: a part"
        )
        refused(expect, f"{name}: an index", TypeError, "integers and slices", lambda: source[1.5])
        refused(expect, f"{name}: out of range", (ValueError, IndexError), "9", lambda: source[9])
    file = mh.open(str(work / "t.nc"))
    expect(
        file["t"].units == "K"
        and file["t"].dims == ["time", "y", "x"]
        and file["t"].attrs["levels"] == [1, 2]
        and "t" in file,
        "names of a file",
    )
    expect(
        set(file.datasets()) >= {"/t", "/packed"} or set(file.datasets()) >= {"t", "packed"},
        f"datasets: {file.datasets()}",
    )
    decoded = mh.scatter_tensor(file["packed"], mesh, [mh.Shard(2)], decode=True)
    expect(torch.equal(decoded.full_tensor().double(), (FULL / 2).round() * 2 + 1), "decode")
    refused(expect, "a dataset that is not there", ValueError, '"tt"', lambda: file["tt"])
    refused(
        expect,
        "decode of a tensor",
        ValueError,
        "for datasets",
        lambda: mh.scatter_tensor(FULL, mesh, [mh.Shard(0)], decode=True),
    )
    # All ranks write one file.
    out = mh.open(str(work / "out.h5"), "w")
    out.write("x", mh.distribute_tensor(FULL, mesh, [mh.Shard(1, ROWS)]).requires_grad_())
    out.close()
    world.barrier()
    expect(torch.equal(mh.open(str(work / "out.h5"))["x"].read(), FULL), "a ShardTensor written")


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def net():
    made = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(
                torch.arange(parameter.numel(), dtype=torch.float64).add(number).sin().reshape(parameter.shape)
            )
    return made


KINDS = {
    "Adam": lambda one: torch.optim.Adam(one.parameters(), lr=0.05, amsgrad=True),
    "AdamW": lambda one: torch.optim.AdamW(
        one.parameters(), lr=0.03, weight_decay=0.1, betas=(0.8, 0.99), foreach=True
    ),
    "RAdam": lambda one: torch.optim.RAdam(one.parameters(), lr=0.02),
    "SGD": lambda one: torch.optim.SGD(
        [{"params": one[0].parameters(), "lr": 0.02}, {"params": one[1:].parameters()}], lr=0.1, momentum=0.5
    ),
}


def step(made, optimizer, x):
    optimizer.zero_grad()
    loss = F.mse_loss(made(x), x)
    loss.backward()
    optimizer.step()
    return loss


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, mh.ShardTensor) else tensor


def made_of(mesh):
    """On one rank plain; on more its parameters are stored in blocks."""
    made = net()
    return made if mesh.size() == 1 else mh.fully_shard(made, mesh=mesh, min_numel=1, input=False)


def expected(kind):
    made = net()
    optimizer = KINDS[kind](made)
    x = FULL[0]
    for _ in range(4):
        step(made, optimizer, x)
    return [one.detach() for one in made.state_dict().values()]


def save(world, mesh, expect, work):
    for kind, make in KINDS.items():
        made = made_of(mesh)
        optimizer = make(made)
        x = mh.distribute_tensor(FULL[0], mesh, [mh.Shard(0)])
        for _ in range(2):
            step(made, optimizer, x)
        field = mh.distribute_tensor(FULL, mesh, [mh.Shard(1)])
        state = {
            "net": made,
            "optimizer": optimizer,
            "step": 2,
            "loss": 0.25,
            "name": kind,
            "on": True,
            "field": field,
            "x": FULL[0],
            "extra": {"a.b": field[0], "c": torch.ones(3)},
        }
        saving = mh.save_checkpoint(world, work / kind, state, is_async=kind == "SGD")
        path = saving if kind != "SGD" else saving.wait()
        expect(path == str(work / kind), f"{kind}: save_checkpoint: {path}")
    refused(
        expect, "a set", TypeError, "cannot be saved", lambda: mh.save_checkpoint(world, work / "no", {"a": {1, 2}})
    )


def load(world, mesh, expect, work):
    for kind, make in KINDS.items():
        made = made_of(mesh)
        optimizer = make(made)
        field = mh.distribute_tensor(0 * FULL, mesh, [mh.Shard(2)])
        extra = {"a.b": torch.zeros(11, 4, dtype=torch.float64), "c": torch.zeros(3)}
        for group in optimizer.param_groups:
            group["lr"] = 77
        found = mh.load_checkpoint(
            world,
            work / kind,
            {
                "net": made,
                "optimizer": optimizer,
                "step": 0,
                "loss": 0.0,
                "name": "",
                "on": False,
                "field": field,
                "extra": extra,
            },
        )
        expect(
            (found["step"], found["loss"], found["name"], found["on"]) == (2, 0.25, kind, True)
            and found["net"] is made,
            f"{kind}: {found}",
        )
        expect(
            torch.equal(whole(field), FULL)
            and torch.equal(extra["a.b"], FULL[0])
            and torch.equal(extra["c"], torch.ones(3)),
            f"{kind}: tensors",
        )
        x = mh.distribute_tensor(FULL[0], mesh, [mh.Shard(0)])
        for _ in range(2):
            step(made, optimizer, x)
        for mine, plain in zip(made.state_dict().values(), expected(kind)):
            expect(torch.allclose(whole(mine).detach(), plain, rtol=1e-9), f"{kind}: goes on as one run")
    load_what_does_not_fit(world, expect, work, made)


def load_what_does_not_fit(world, expect, work, made):
    other = KINDS["SGD"](made)
    before = [whole(one).detach().clone() for one in made.parameters()]
    refused(
        expect,
        "another optimizer",
        ValueError,
        "another optimizer",
        lambda: mh.load_checkpoint(world, work / "Adam", {"net": made, "optimizer": other}),
    )
    same = all(torch.equal(whole(one), old) for one, old in zip(made.parameters(), before))
    expect(same, "what is refused changes nothing")
    refused(
        expect,
        "an entry that is not there",
        ValueError,
        "absent",
        lambda: mh.load_checkpoint(world, work / "Adam", {"absent": made}),
    )
    refused(
        expect,
        "another model",
        ValueError,
        "net",
        lambda: mh.load_checkpoint(world, work / "Adam", {"net": torch.nn.Linear(2, 2)}),
    )


def load_of_lua(world, mesh, expect, work):
    """Two steps here, one in Lua, and one here again."""
    for kind, make in KINDS.items():
        made = made_of(mesh)
        optimizer = make(made)
        for group in optimizer.param_groups:
            group["lr"] = 77
        found = mh.load_checkpoint(world, work / f"{kind}_lua", {"net": made, "optimizer": optimizer, "step": 0})
        expect(found["step"] == 3, f"{kind} of Lua: {found}")
        step(made, optimizer, mh.distribute_tensor(FULL[0], mesh, [mh.Shard(0)]))
        for mine, plain in zip(made.state_dict().values(), expected(kind)):
            expect(torch.allclose(whole(mine).detach(), plain, rtol=1e-9), f"{kind}: one run of Python, Lua and Python")


def rank(world, mesh, expect, work):
    datasets(world, mesh, expect, work)
    save(world, mesh, expect, work)
    world.barrier()
    load(world, mesh, expect, work)


if __name__ == "__main__":
    failures = []

    def run(world):
        (load_of_lua if sys.argv[4] == "load_of_lua" else load)(
            world,
            mh.init_device_mesh(world, "cpu", [world.size]),
            lambda good, text: good or failures.append(text),
            Path(sys.argv[2]),
        )

    mh.run_ranks(int(sys.argv[3]), run)
    print("\n".join(f"FAILED: {one}" for one in failures) or "all well")
    sys.exit(len(failures) > 0)
