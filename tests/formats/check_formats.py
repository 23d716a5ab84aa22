# SPDX-License-Identifier: Apache-2.0
"""Files that h5py, netCDF4 and zarr wrote, read by Moonhalo on several ranks, threads and processes, equal bit by bit.

check_formats.py KIND PROGRAM PYTHON SCRIPT MPIEXEC: KIND is classic, archives or filters. PYTHON is that of the
environment that `./dev test` makes; without it the test is skipped (status 77). Without an MPIEXEC there are no
processes."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

kind, program, python, script = sys.argv[1:5]
enter(python, "h5py", "netCDF4", "xarray", "zarr")

import h5py
import numpy as np

import archives
import classic
import filters


def same(ours, theirs):
    """Equal in type, shape and every bit."""
    theirs = np.asarray(theirs)
    native = theirs.dtype.newbyteorder("=")
    return ours.dtype == native and ours.shape == theirs.shape and ours.tobytes() == theirs.astype(native).tobytes()


def every_second(values):
    return values[
        tuple(
            slice(1, None) if size > 2 and dim % 2 == 0 else slice(None, None, 2) if size > 2 else slice(None)
            for dim, size in enumerate(values.shape)
        )
    ]


def text(value):
    return value.decode() if isinstance(value, bytes) else value


PACKING = {"scale_factor", "add_offset", "_FillValue", "missing_value"}


def decoded(values, attrs):
    """float64; values themselves where no attribute says more."""
    if values.dtype.kind == "c" or not attrs.keys() & PACKING:
        return values
    result = np.array(values.astype("f8") * float(attrs.get("scale_factor", 1)) + float(attrs.get("add_offset", 0)))
    for name in ("_FillValue", "missing_value"):
        if name in attrs:
            result[values == values.dtype.type(attrs[name])] = np.nan
    return result


def check_array(what, group, values, attrs):
    ways = {"slice": every_second, "index": lambda x: x[-1], "decoded": lambda x: decoded(x, attrs)}
    for how, ours in group.items():
        theirs = ways.get(how, lambda x: x)(values)
        if how == "decoded":
            theirs = theirs.astype(ours.dtype)
            check(f"{what} {how}", np.array_equal(ours[()], theirs, equal_nan=theirs.dtype.kind in "fc"))
        else:
            check(f"{what} {how}", same(ours[()], theirs))
    ways = 3 + values.ndim + (values.ndim > 0) + (values.ndim > 0 and len(values) > 0) - (values.dtype == bool)
    check(f"{what}: all ways", len(group) == ways)


def check_file(path, expected, ranks):
    with h5py.File(path + ".out.h5") as out:
        check(f"{path}: names", {name.split("/")[0] for name, *_ in expected} >= set(out))
        for name, values, dims, attrs in expected:
            what = f"{os.path.basename(path)} {name} on {ranks}"
            if values.dtype.kind in "SU":
                texts = [text(x) for x in values.reshape(-1)]
                check(what, text(out.attrs["strings:" + name]) == "|".join(texts))
                continue
            check_array(what, out[name], values, attrs)
            check(what + " dims", text(out.attrs[name + "#dims"]) == " ".join(dims))
            for key, value in attrs.items():
                ours = text(out.attrs[name + "@" + key])
                check(f"{what} @{key}", np.array_equal(ours, value, equal_nan=np.asarray(value).dtype.kind == "f"))


def runs():
    for ranks in (1, 3, 4):
        yield f"{ranks} threads", [program, "run", script, "--ranks", str(ranks)]
    if len(sys.argv) > 5:
        for ranks in (2, 3):
            yield f"{ranks} processes", [sys.argv[5], "-n", str(ranks), program, "run", script]


with tempfile.TemporaryDirectory() as folder:
    files = {"classic": classic, "archives": archives, "filters": filters}[kind].make(folder)
    for ranks, command in runs():
        subprocess.run([*command, "--", folder, *files], check=True)
        for name, expected in files.items():
            check_file(folder + "/" + name, expected, ranks)
    for name in ("xarray2.zarr", "no-suffix") if kind == "archives" else ():
        with h5py.File(f"{folder}/{name}.out.h5") as out:
            theirs = archives.decoded_by_xarray(f"{folder}/{name}")
            check(
                name + " as xarray decodes it",
                np.array_equal(out["t2m/decoded"][()].astype(theirs.dtype), theirs, equal_nan=True),
            )
finish()
