# SPDX-License-Identifier: Apache-2.0
"""HDF5 files as h5py writes them, with what h5py reads from them: name, values, dims, attributes."""

import h5py
import numpy as np


def add_filtered(file, values):
    tiles = {"data": values, "chunks": (5, 8, 16)}
    for name, how in {
        "gzip": {"compression": "gzip", "compression_opts": 9},
        "gzip_shuffle_sum": {"compression": "gzip", "shuffle": True, "fletcher32": True},
        "sum": {"fletcher32": True},
        "shuffle": {"shuffle": True},
        "lzf": {"compression": "lzf"},
        "lzf_shuffle_sum": {"compression": "lzf", "shuffle": True, "fletcher32": True},
        "digits": {"scaleoffset": 3},
        "unlimited": {"maxshape": (None, 20, None)},
        "turned": {"dtype": ">f4", "compression": "gzip", "shuffle": True},
    }.items():
        file.create_dataset(name, **tiles, **how)
    if h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        file.create_dataset("szip", **tiles, compression="szip")
    file.create_dataset("integers", data=(values * 1000).astype("i4"), chunks=(5, 8, 16), scaleoffset=0)
    sparse = file.create_dataset(
        "sparse", shape=values.shape, chunks=(5, 8, 16), compression="gzip", dtype="f4", fillvalue=7.5
    )
    sparse[0:5, 0:8, 0:16] = 1
    mixed = file.create_dataset("mixed", shape=(8, 64), chunks=(4, 64), compression="gzip", shuffle=True, dtype="f4")
    mixed[4:] = values.reshape(-1)[:256].reshape(4, 64)
    mixed.id.write_direct_chunk((0, 0), values.reshape(-1)[256:512].tobytes(), filter_mask=3)


def add_types(file, values):
    for kind in ("i1", "u1", "i2", ">i4", "i8", "f2", ">f4", "f8", "c8", "c16"):
        file["x" + kind.strip(">")] = (values * 100).astype(kind)
    file["flags"] = values > 0
    file["number"] = np.float64(2.5)
    file["nothing"] = np.zeros((0, 4), "f4")
    file.create_dataset(
        "no_steps", shape=(0, 4, 4), maxshape=(None, 4, 4), chunks=(1, 4, 4), dtype="f4", compression="gzip"
    )
    file.create_dataset("unwritten", shape=(6, 5), dtype="f4", fillvalue=3.0)
    packed = file.create_dataset("packed", data=np.round(values * 1000).astype("i2"), chunks=(5, 8, 16))
    packed.attrs["scale_factor"] = 0.001
    packed.attrs["add_offset"] = 2.0
    file["group/deep"] = values
    file["soft"] = h5py.SoftLink("/group/deep")


def add_parts(path, folder, values):
    layout = h5py.VirtualLayout(shape=values.shape, dtype="f4")
    for part in range(3):
        with h5py.File(f"{folder}/part{part}.h5", "w") as file:
            file["x"] = values[4 * part : 4 * part + 4]
        layout[4 * part : 4 * part + 4] = h5py.VirtualSource(f"part{part}.h5", "x", shape=(4, *values.shape[1:]))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-1)


def contents(path):
    """Names, and what h5py reads."""
    names = ["soft"] if path.endswith("types.h5") else []  # a link, which h5py does not visit
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        return [(name, np.asarray(file[name][()]), [""] * file[name].ndim, dict(file[name].attrs)) for name in names]


def make(folder):
    values = np.random.default_rng(3).standard_normal((12, 20, 30), dtype="f4")
    files = {"filters.h5": ({}, add_filtered), "types.h5": ({}, add_types)}
    for name, how in {"v110": {"libver": ("earliest", "v110")}, "userblock": {"userblock_size": 512}}.items():
        files[name + ".h5"] = (
            how,
            lambda file, x: file.create_dataset("x", data=x, chunks=(5, 8, 16), compression="gzip"),
        )
    for name, (how, add) in files.items():
        with h5py.File(f"{folder}/{name}", "w", **how) as file:
            add(file, values)
    add_parts(folder + "/parts.h5", folder, values)
    return {name: contents(f"{folder}/{name}") for name in [*files, "parts.h5"]}
