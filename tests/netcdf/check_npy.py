# SPDX-License-Identifier: Apache-2.0
"""Arrays of numpy.save, read by blocks and whole, and what mh.files.write_npy gives numpy.load (X18, S18).

check_npy.py PROGRAM PYTHON SCRIPT"""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

program, python, script = sys.argv[1:4]
enter(python, "numpy")

import numpy as np

DTYPES = ["?", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16"]
SHAPES = [(), (7,), (0, 3), (9, 5), (6, 7, 5), (2, 3, 4, 5)]


def values(shape, dtype):
    numbers = np.random.default_rng(len(dtype) + sum(shape)).integers(-100, 100, shape)
    if dtype == "?":
        return numbers > 0
    if dtype[0] == "u":
        return (numbers + 100).astype(dtype)
    return (numbers * (1 + 2j) if dtype[0] == "c" else numbers).astype(dtype)


def save(path, array, version=(1, 0)):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def make_arrays(folder):
    arrays = {}
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            for order in "CF":
                name = f"{dtype.replace('?', 'b')}_{order}{number}.npy"
                arrays[name] = np.asarray(values(shape, dtype), order=order)
    arrays["big.npy"] = values((6, 7, 5), "f4").astype(">f4")
    arrays["big_fortran.npy"] = np.asfortranarray(values((6, 7, 5), "c16").astype(">c16"))
    arrays["large.npy"] = values((64, 200, 300), "f4")
    arrays["large_fortran.npy"] = np.asfortranarray(values((64, 200, 300), "f4"))
    arrays["sliced.npy"] = values((9, 8, 7), "f8")[::2, 1:, ::3]
    for name, array in arrays.items():
        save(f"{folder}/{name}", array)
    for version in ((2, 0), (3, 0)):
        name = f"version{version[0]}.npy"
        arrays[name] = np.asfortranarray(values((6, 7, 5), "i2"))
        save(f"{folder}/{name}", arrays[name], version)
    return arrays


def make_refused(folder):
    """What the message must say, by file."""
    says = {}

    def refused(name, text, write):
        says[name] = text
        write(f"{folder}/{name}")

    refused(
        "object.npy",
        "elements of type object are not read",
        lambda path: np.save(path, np.array([1, "a"], dtype=object), allow_pickle=True),
    )
    refused(
        "text.npy", "elements of type unicode string are not read", lambda path: np.save(path, np.array(["a", "bc"]))
    )
    refused("bytes.npy", "elements of type string are not read", lambda path: np.save(path, np.array([b"a", b"bc"])))
    refused(
        "columns.npy",
        "elements of type compound are not read",
        lambda path: np.save(path, np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])),
    )
    refused("long.npy", "elements of type <f16 are not read", lambda path: np.save(path, np.zeros(3, np.longdouble)))
    refused("short.npy", "is cut short", lambda path: (np.save(path, np.zeros(300)), os.truncate(path, 1000)))
    refused("head.npy", "is cut short", lambda path: (np.save(path, np.zeros(300)), os.truncate(path, 40)))
    refused(
        "future.npy",
        "unknown version of .npy",
        lambda path: open(path, "wb").write(b"\x93NUMPY\x04\x00\x10\x00" + b" " * 16),
    )
    refused(
        "damaged.npy",
        "damaged .npy head",
        lambda path: open(path, "wb").write(b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': '<f8'}"),
    )
    refused(
        "huge.npy",
        "a shape of more elements than a file can have",
        lambda path: open(path, "wb").write(
            b"\x93NUMPY\x01\x00\x60\x00"
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9999999999)}".ljust(96)
        ),
    )
    refused("packed.npz", "a zip archive", lambda path: np.savez(path, a=np.zeros(3)))
    refused("other.npy", "is not an HDF5 file", lambda path: open(path, "wb").write(b"no array at all"))
    return says


def check_written(what, path, array):
    back = np.load(path)
    check(f"{what}: dtype {back.dtype}", back.dtype == array.dtype.newbyteorder("="))
    check(f"{what}: values", back.shape == array.shape and np.array_equal(back, array))
    check(f"{what}: order", back.flags.c_contiguous)
    with open(path, "rb") as file:
        check(f"{what}: version", np.lib.format.read_magic(file) == (1, 0))
        np.lib.format.read_array_header_1_0(file)
        check(f"{what}: alignment", file.tell() % 64 == 0)


def make_series(folder):
    """Runs in files of their own, a mask beside them, and numpy's times."""
    os.makedirs(f"{folder}/series")
    for run in (2, 10):
        save(
            f"{folder}/series/run_{run}.npy",
            np.asfortranarray(np.arange(4 * 3 * 5, dtype="f4").reshape(4, 3, 5) + 1000 * run),
        )
    save(f"{folder}/series/mask.npy", np.arange(15).reshape(3, 5) % 2 == 0)
    save(f"{folder}/dates.npy", np.array(["2000-01-01", "2001-02-03", "NaT"], "datetime64[D]"))


with tempfile.TemporaryDirectory() as folder:
    arrays, says = make_arrays(folder), make_refused(folder)
    make_series(folder)
    for ranks in (1, 2, 3):
        out = f"{folder}/out{ranks}"
        os.makedirs(out)
        with open(f"{folder}/cases.json", "w") as file:
            json.dump({"arrays": sorted(arrays), "refused": sorted(says)}, file)
        subprocess.run([program, "run", script, "--ranks", str(ranks), "--", folder, out], check=True)
        for name, array in arrays.items():
            check_written(f"{name} on {ranks}", f"{out}/{name}", array)
        with open(f"{out}/messages.json") as file:
            messages = json.load(file)
        for name, text in says.items():
            check(
                f"{name} on {ranks} says {messages[name]!r}",
                text in messages[name] and name in messages[name] and "\n  fix " in messages[name],
            )
finish()
