#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that kernels of Moonhalo say what they do (engine/base/work_note.h), because forecasts of moonhalo plan would
leave them out. A file with a loop over the numbers of a block (parallel_for) must call note_work. usage:
check_work_notes.py SOURCE_FOLDER"""

import re

from checked import main, problems_in

FOLDERS = ("engine", "ops")
LOOP, NOTE = re.compile(r"\bparallel_for\("), re.compile(r'\bnote_work\(\s*"(\w+)"')
# Files whose loops are no kernels of operators, and why.
EXCEPT = {
    "engine/base/parallel.cpp": "it is the loop",
    "engine/base/parallel.h": "it is the loop",
    "engine/random/random.h": "its callers in random.cpp say it",
}


def missing_notes(files):
    """`files`: the text of each file by its path. Returns the problems."""
    problems = []
    for path, text in sorted(files.items()):
        if LOOP.search(text) and not NOTE.search(text) and path not in EXCEPT:
            problems.append(f"{path}: it loops over a block without note_work: forecasts leave it out")
    for path in EXCEPT:
        if path in files and not LOOP.search(files[path]):
            problems.append(f"{path}: it is an exception of check_work_notes.py, but has no parallel_for")
    names = {}
    for path, text in sorted(files.items()):
        for name in NOTE.findall(text):
            if names.setdefault(name, path) != path:
                problems.append(f"{path}: note_work of '{name}', which is the name of a kernel of {names[name]}")
    return problems


def check(source):
    files = {}
    for folder in FOLDERS:
        for path in (source / folder).rglob("*"):
            if path.suffix in (".cpp", ".h"):
                files[str(path.relative_to(source))] = path.read_text(encoding="utf-8")
    return missing_notes(files)


def self_test():
    loop = "parallel_for(0, n, 1, f);"
    files = {
        "engine/base/parallel.cpp": "",
        "engine/base/a.cpp": loop,
        "ops/norm/a.cpp": 'note_work("norm", 0, bytes);' + loop,
        "ops/norm/b.cpp": 'note_work("norm", 0, bytes);',
        "ops/norm/c.cpp": "no loop",
        "io/base/a.cpp": loop,
    }
    found = problems_in(files, check)
    assert found == ["engine/base/a.cpp", "engine/base/parallel.cpp", "ops/norm/b.cpp"], f"self-test: found {found}"


if __name__ == "__main__":
    main(check, self_test, "kernels say what they do")
