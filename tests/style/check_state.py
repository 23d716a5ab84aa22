#!/usr/bin/env python3
"""Checks that state which calls do not receive as arguments is listed in rank_state.txt, with a reason: at
most 12 RankLocal objects (engine/base/rank_context.h) of the product, and thread_local variables. The list may only
become shorter. Registries of Lua are in one file.  usage: check_state.py SOURCE_FOLDER"""

import re

from checked import main, problems_in

LIST = "tests/style/rank_state.txt"
FOLDERS = ("engine", "io", "ops", "scripting")
SUFFIXES = {".cpp", ".h", ".c", ".cu", ".cuh"}
MAX_RANK_LOCALS = 12
# A table of Lua that outlives calls, keyed by objects.
LUA_REGISTRIES = "scripting/lua/internal/registries.lua"
LUA_REGISTRY = re.compile(r"local \w+ = setmetatable\(.*\b__mode\b")
# The definition of an object, not the template's own text and no comment.
KINDS = {"RankLocal": re.compile(r"\bRankLocal<.*[>\s]\w+(?:[;{(]|$)"), "thread_local": re.compile(r"\bthread_local\b")}


def listed(root, problems):
    """{(kind, file): number} of the list."""
    known = {}
    for number, line in enumerate((root / LIST).read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"(RankLocal|thread_local) (\d+) (\S+): (\S.*)", line)
        if match is None:
            problems.append(f"{LIST}:{number}: a line is 'RankLocal|thread_local COUNT FILE: REASON'")
            continue
        known[match[1], match[3]] = int(match[2])
    return known


def found_in(root):
    """{(kind, file): number} of the sources."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            for line in path.read_text(encoding="utf-8").splitlines():
                code = line.split("//")[0]
                for kind, pattern in KINDS.items():
                    if pattern.search(code):
                        found[kind, name] = found.get((kind, name), 0) + 1
    return found


def check(root):
    problems = []
    known, found = listed(root, problems), found_in(root)
    for (kind, name), count in sorted(found.items()):
        allowed = known.get((kind, name), 0)
        if count > allowed:
            where = f"{count} {kind}, {allowed} in {LIST}"
            problems.append(f"{name}: {where}; pass it, or add a field to the context of the folder")
    for (kind, name), count in sorted(known.items()):
        if found.get((kind, name), 0) < count:
            problems.append(f"{LIST}: {name} has less than {count} {kind}; correct its line")
    for path in sorted((root / "scripting" / "lua").rglob("*.lua")):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LUA_REGISTRY.match(line) and name != LUA_REGISTRIES:
                problems.append(f"{name}:{number}: a registry; add it to {LUA_REGISTRIES}")
    total = sum(count for (kind, _), count in found.items() if kind == "RankLocal")
    if total > MAX_RANK_LOCALS:
        problems.append(f"{LIST}: {total} RankLocal objects, more than {MAX_RANK_LOCALS}")
    return problems


def self_test():
    """Every kind of problem is found in a tree that has one of each."""
    files = {
        LIST: "# comment\nRankLocal 1 engine/a.h: all of it\nthread_local 2 io/b.cpp: HDF5's\nRankLocal x\n",
        "engine/a.h": "inline const RankLocal<AContext> a_context;\n",
        "engine/c.cpp": (
            "const RankLocal<std::map<int, int>> more;\n// const RankLocal<int> none;\n"
            "  static const RankLocal<int> x{7};\n"
        ),
        "engine/d.h": (
            "template <typename T>\nclass RankLocal {\n  friend class RankLocal;\n"
            "  RankLocal(const RankLocal&) = delete;\n};\n"
        ),
        "engine/e.cpp": "".join(f"const RankLocal<int> n{i};\n" for i in range(12)),
        "io/b.cpp": "thread_local int x;\n",
        "scripting/lua/a.lua": "local t = setmetatable({}, meta)\nlocal known = setmetatable({}, {__mode = 'k'})\n",
        LUA_REGISTRIES: "local known = setmetatable({}, {__mode = 'k'})\n",
        "ops/f.cpp": "static thread_local int y;  // thread_local\n",
    }
    places = [LIST + ":4", "engine/c.cpp", "engine/e.cpp", "ops/f.cpp", LIST, "scripting/lua/a.lua:2", LIST]
    assert problems_in(files, check) == places, problems_in(files, check)


if __name__ == "__main__":
    main(check, self_test, "all state of ranks and threads is listed")
