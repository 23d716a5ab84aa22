#!/usr/bin/env python3
"""Checks that programs and libraries look for others in absolute folders, or in some beside themselves, and never in
the current one. usage: check_library_paths.py FILE ..."""

import re
import subprocess
import sys


def paths_of(dump):
    """The folders in what `readelf -d` prints."""
    return [path for text in re.findall(r"\((?:RPATH|RUNPATH)\)[^\[]*\[(.*)\]", dump) for path in text.split(":")]


def is_fixed(path):
    return path.startswith(("/", "$ORIGIN"))


assert [is_fixed(p) for p in paths_of(" 0x1d (RUNPATH)  Library runpath: [/a:$ORIGIN/../lib::lib:]")] == [
    True,
    True,
    False,
    False,
    False,
]
failed = 0
for file in sys.argv[1:]:
    found = paths_of(subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout)
    loose = [path for path in found if not is_fixed(path)]
    if loose or not found:
        failed += 1
        print(f"{file}: looks for libraries in {loose or 'no folder of its own'}, of {found}")
sys.exit(failed > 0 or len(sys.argv) < 2)
