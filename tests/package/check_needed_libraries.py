#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that programs and libraries need no bindings of MPI for C++, which Open MPI 5 no longer has, and MPICH not
everywhere. usage: check_needed_libraries.py FILE ..."""

import re
import subprocess
import sys

BINDINGS = re.compile(r"lib(mpi_cxx|mpicxx|mpichcxx|mpi\+\+)\.")


def needed(dump):
    """The names in what `readelf -d` prints."""
    return re.findall(r"\(NEEDED\)[^\[]*\[(.*)\]", dump)


SAMPLE = (
    " 0x1 (NEEDED)  Shared library: [libmpi_cxx.so.40]\n 0x1 (NEEDED)  Shared library: [libmpi.so.40]\n 0xe (SONAME) "
    " [libmpicxx.so]\n"
)
assert [bool(BINDINGS.match(name)) for name in needed(SAMPLE)] == [True, False]
failed = 0
for file in sys.argv[1:]:
    names = needed(subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout)
    bindings = [name for name in names if BINDINGS.match(name)]
    if bindings or not names:
        failed += 1
        print(f"{file}: needs {bindings or 'no library'}, of {names}")
sys.exit(failed > 0 or len(sys.argv) < 2)
