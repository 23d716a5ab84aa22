# SPDX-License-Identifier: Apache-2.0
"""Attributes and numbers between h5py and mh.h5: text reaches h5py as str, and both kinds of h5py's text are read
(X17).

check_attributes.py PROGRAM PYTHON SCRIPT"""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

program, python, script = sys.argv[1:4]
enter(python, "h5py", "netCDF4")

import h5py
import netCDF4
import numpy as np


def make_theirs(path):
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", data=np.arange(3.0))
        for target in (file, x, file.create_group("g")):
            target.attrs["str"] = "Höhe"
            target.attrs["empty"] = ""
            target.attrs["fixed"] = np.bytes_("plain text")
            target.attrs.create("fixed_utf8", "Höhe".encode(), dtype=h5py.string_dtype("utf-8", 12))
            target.attrs.create("variable_ascii", "text", dtype=h5py.string_dtype("ascii"))
            target.attrs["list"] = ["a", "längst"]
            target.attrs["fixed_list"] = np.array([b"a", b"bcd"])
            target.attrs["one"] = ["alone"]
            target.attrs["int"], target.attrs["float"], target.attrs["bool"] = 3, 2.5, True
            target.attrs["ints"], target.attrs["floats"], target.attrs["bools"] = [1, 2], [0.5, 2.0], [True, False]
            target.attrs["nothing"] = h5py.Empty("f8")
        file["n"], file["flag"] = 7, np.bool_(True)


def same(what, got, wanted):
    kind = type(got) is type(wanted) or isinstance(got, type(wanted))
    check(f"{what}: {got!r}, expected {wanted!r}", kind and np.array_equal(got, wanted))


def check_ours(ranks, path):
    with h5py.File(path) as file:
        for name in ("/", "x", "g/y"):
            attrs, what = file[name].attrs, f"{name} on {ranks}"
            for key, wanted in (
                ("text", "Höhe"),
                ("empty", ""),
                ("list", np.array(["a", "längst"], object)),
                ("int", np.int64(3)),
                ("float", np.float64(2.5)),
                ("bool", np.bool_(True)),
                ("ints", np.array([1, 2])),
                ("mixed", np.array([1.0, 2.5])),
            ):
                same(f"{what}: {key}", attrs[key], wanted)
            check(f"{what}: strings in the list", all(type(text) is str for text in attrs["list"]))
        for name, wanted in (
            ("n", np.int64(3)),
            ("large", np.int64(2**53 + 1)),
            ("r", np.float64(0.1)),
            ("flag", np.bool_(False)),
            ("many", np.array([[1, 2], [3, 4]])),
            ("reals", np.array([1.0, 0.1])),
            ("grown", np.array([1.5, 2.5])),
        ):
            same(f"{name} on {ranks}", file[name][()], wanted)


def check_netcdf(ranks, path):
    """Readers of NetCDF in C and Fortran want text of one length, in whatever order the file was written."""
    with h5py.File(path) as file:
        for target, name in ((file, "title"), (file, "later"), (file["t"], "units")):
            check(f"{name} on {ranks} has one length", not target.attrs.get_id(name).get_type().is_variable_str())
    with netCDF4.Dataset(path) as data:
        check(f"netCDF4 on {ranks}", (data.title, data.later, data["t"].units) == ("Höhe", "text", "K"))


with tempfile.TemporaryDirectory() as folder:
    make_theirs(f"{folder}/theirs.h5")
    for ranks in (1, 3):
        subprocess.run([program, "run", script, "--ranks", str(ranks), "--", folder, str(ranks)], check=True)
        check_ours(ranks, f"{folder}/ours{ranks}.h5")
        check_netcdf(ranks, f"{folder}/ours{ranks}.nc")
finish()
