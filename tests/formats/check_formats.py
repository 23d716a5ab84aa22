# SPDX-License-Identifier: Apache-2.0
"""Files that netCDF4 and zarr wrote, read by Moonhalo on several ranks, threads and processes, equal bit by bit.

check_formats.py PROGRAM PYTHON SCRIPT MPIEXEC: PYTHON is that of the environment that `./dev test` makes; without it the
test is skipped (status 77). Without an MPIEXEC there are no processes."""
import os
import subprocess
import sys
import tempfile

program, python, script = sys.argv[1:4]
if not os.path.exists(python):
    print(f"skipped: there is no {python}; `./dev test` makes it")
    sys.exit(77)
if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(python))):
    sys.exit(subprocess.run([python, __file__, *sys.argv[1:]]).returncode)

import h5py
import numpy as np

sys.dont_write_bytecode = True
import classic

failures = 0


def check(what, good):
    global failures
    if not good:
        failures += 1
        print("FAILED:", what)


def same(ours, theirs):
    """Equal in type, shape and every bit."""
    theirs = np.asarray(theirs)
    native = theirs.dtype.newbyteorder("=")
    return ours.dtype == native and ours.shape == theirs.shape and ours.tobytes() == theirs.astype(native).tobytes()


def every_second(values):
    return values[tuple(slice(1, None) if size > 2 and dim % 2 == 0 else slice(None, None, 2) if size > 2 else slice(None)
                        for dim, size in enumerate(values.shape))]


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def decoded(values, attrs):
    scale, offset = attrs.get("scale_factor", 1), attrs.get("add_offset", 0)
    result = values.astype("f8") * float(scale) + float(offset)
    missing = [attrs[name] for name in ("_FillValue", "missing_value") if name in attrs]
    for value in missing:
        result[values == value] = np.nan
    return result


def check_array(what, group, values, attrs):
    for how, ours in group.items():
        theirs = {"slice": every_second, "index": lambda x: x[-1], "decoded": lambda x: decoded(x, attrs)}.get(how, lambda x: x)(values)
        if how == "decoded" and not (attrs.keys() & {"scale_factor", "add_offset", "_FillValue", "missing_value"}):
            theirs = values
        elif how == "decoded":
            theirs = theirs.astype(ours.dtype)
        good = np.array_equal(ours[()], theirs, equal_nan=True) if how == "decoded" and values.dtype.kind != "c" else same(ours[()], theirs)
        check(f"{what} {how}", good)
    check(f"{what}: all ways", len(group) >= 3 + values.ndim + 2 * (values.ndim > 0) - (values.dtype == bool))


def check_file(path, expected, ranks):
    with h5py.File(path + ".out.h5") as out:
        check(f"{path}: names", {name for name, *_ in expected} >= set(out))
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
    if len(sys.argv) > 4:
        for ranks in (2, 3):
            yield f"{ranks} processes", [sys.argv[4], "-n", str(ranks), program, "run", script]


with tempfile.TemporaryDirectory() as folder:
    files = classic.make(folder)
    for ranks, command in runs():
        subprocess.run([*command, folder, *files], check=True)
        for name, expected in files.items():
            check_file(folder + "/" + name, expected, ranks)
print("failed" if failures else "all well")
sys.exit(failures > 0)
