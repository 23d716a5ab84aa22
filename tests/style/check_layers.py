#!/usr/bin/env python3
"""Checks the tree: which folder may include which, one spelling of includes, no circles of more than three units, a
README in every folder, the width of Markdown, headers that users must not get, and that C++ is formatted. usage:
check_layers.py SOURCE_FOLDER [CLANG_FORMAT FILE]; FILE remembers what was found formatted, so that it is not looked at
again."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from checked import main, problems_in

# Layers from the lowest: a folder may include itself and those of the layers below.
LAYERS = {
    "engine": [
        "base",
        "comm",
        "sharding",
        "exchange",
        "tensor",
        "profile",
        "dispatch",
        "forecast random",
        "deferred launch",
        "model",
        "imported pipeline training",
        "testing",
    ],
    "io": ["base", "codecs", "formats", "shares", "checkpoint fields pytorch"],
    "scripting": ["core", "bind plot", "operators", "program", "embed python"],
}
# Within engine/comm: files of the folder itself (""), then those that find faults, then backends, which do not include
# each other.
COMM_LAYERS = ["", "diagnostics", "threads mpi tcp device fake"]
# Folders of ops/ include support/ and, these two, window/.
WINDOW_USERS = ("fourier", "neighborhood")
# Embedded Lua, no C++.
LUA_ROOM = "scripting/lua"
UMBRELLA = "engine/moonhalo.h"
# Headers that must not be among those that the umbrella includes, which are installed: how the engine holds and
# dispatches tensors.
PRIVATE = re.compile(r".*_impl\.h|engine/dispatch/dispatch\.h|ops/support/.*|scripting/.*")
# Nor headers of libraries that a host may have another build of.
OTHERS_HEADER = re.compile(r"\s*#include <((?:hdf5|H5\w+|lua|lauxlib|lualib|mpi)\.(?:h|hpp))>")
TOP = ("engine", "ops", "io", "scripting")
MAX_CIRCLE = 3
README_LINES, README_WIDTH = 40, 120
INCLUDE = re.compile(r'^\s*#include "([^"]+)"')


def subfolder_of(name):
    """engine/comm/a.h -> ("engine", "comm"); files that lie in no subfolder have the subfolder ""."""
    parts = name.split("/")
    return parts[0], parts[1] if len(parts) > 2 else ""


def may_include(name, other):
    (top, subfolder), (other_top, other_subfolder) = subfolder_of(name), subfolder_of(other)
    if name.startswith("engine/comm/") and other.startswith("engine/comm/"):
        mine, theirs = ("/".join(path.split("/")[2:-1]) for path in (name, other))
        layer_of = {inner: layer for layer, inners in enumerate(COMM_LAYERS) for inner in inners.split() or [""]}
        return mine == theirs or (mine in layer_of and theirs in layer_of and layer_of[theirs] < layer_of[mine])
    if top != other_top or subfolder == other_subfolder:
        return True  # between the folders of the top: check_sources.py
    if top == "ops":
        return other_subfolder == "support" or (other_subfolder == "window" and subfolder in WINDOW_USERS)
    layers = {inner: layer for layer, subfolders in enumerate(LAYERS.get(top, [])) for inner in subfolders.split()}
    return subfolder in layers and other_subfolder in layers and layers[other_subfolder] < layers[subfolder]


def includes_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1]


def check_includes(root, problems):
    graph = {}
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in {".cpp", ".h", ".cu", ".cuh"}:
                continue
            name = path.relative_to(root).as_posix()
            unit = graph.setdefault(name.rsplit(".", 1)[0], set())
            for number, header in includes_of(path):
                if not header.startswith("moonhalo/"):
                    problems.append(f'{name}:{number}: "{header}"; write "moonhalo/FOLDER/SUBFOLDER/FILE.h"')
                    continue
                other = header.removeprefix("moonhalo/")
                if name != UMBRELLA and not may_include(name, other):
                    problems.append(
                        f"{name}:{number}: {name.rpartition('/')[0]} may not include {other.rpartition('/')[0]};"
                        " the order of folders is in LAYERS and COMM_LAYERS of check_layers.py"
                    )
                if name != UMBRELLA:
                    unit.add(other.rsplit(".", 1)[0])
    for circle in circles(graph):
        if len(circle) > MAX_CIRCLE:
            problems.append(
                f"{min(circle)}: a circle of {len(circle)} units that include each other: {', '.join(sorted(circle))}"
            )


def circles(graph):
    """Strongly connected components of two or more units (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in graph:
                continue
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = set()
            while not circle or node not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                found.append(circle)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def check_public(root, problems):
    """The umbrella and all that it includes, directly or not."""
    public, unread = {UMBRELLA}, [UMBRELLA]
    while unread:
        name = unread.pop()
        if not (root / name).is_file():
            continue
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), 1):
            if match := OTHERS_HEADER.match(line):
                problems.append(
                    f"{name}:{number}: {match[1]} would be included by hosts that have another; leave it to the sources"
                )
        for number, header in includes_of(root / name):
            other = header.removeprefix("moonhalo/")
            if PRIVATE.fullmatch(other):
                problems.append(f"{name}:{number}: {other} would be installed; leave it to the sources that need it")
            elif other not in public:
                public.add(other)
                unread.append(other)


def check_readmes(root, problems):
    subfolders = [folder for top in TOP for folder in sorted((root / top).glob("*")) if folder.is_dir()]
    folders = [root / top for top in (*TOP, "tests", "examples") if (root / top).is_dir()] + subfolders
    for readme in [root / "README.md"] + [folder / "README.md" for folder in folders]:
        if not readme.is_file():
            problems.append(f"{readme.relative_to(root).as_posix()}: missing; say the one job and where to start")
        elif readme.parent != root and len(readme.read_text(encoding="utf-8").splitlines()) > README_LINES:
            problems.append(f"{readme.relative_to(root).as_posix()}: more than {README_LINES} lines")
    texts = sorted(root.glob("*.md")) + [
        path for top in (*TOP, "configs", "examples", "tests") for path in sorted((root / top).rglob("*.md"))
    ]
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > README_WIDTH and not line.startswith("|"):
                problems.append(
                    f"{path.relative_to(root).as_posix()}:{number}: {len(line)} characters, more than {README_WIDTH}"
                )


def check_format(root, clang_format, found_formatted, problems):
    """clang-format takes 7 s for all files; those that it has seen, by digests of them and of their style, are left
    out."""
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in (*TOP, "tests", "examples", "cmake")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in {".cpp", ".h", ".cu", ".cuh"}
    }
    style = (root / ".clang-format").read_bytes() + subprocess.run(
        [clang_format, "--version"], capture_output=True, check=True
    ).stdout
    digests = {name: hashlib.sha256(style + text).hexdigest() for name, text in files.items()}
    seen = set(found_formatted.read_text().split()) if found_formatted.is_file() else set()
    unseen = [name for name in files if digests[name] not in seen]
    said = (
        subprocess.run([clang_format, "--dry-run", "-Werror", *unseen], cwd=root, capture_output=True, text=True)
        if unseen
        else None
    )
    unformatted = (
        sorted({line.split(":")[0] for line in said.stderr.splitlines() if ": error:" in line}) if said else []
    )
    problems += [f"{name}: not formatted; ./dev format" for name in unformatted]
    if said and said.returncode != 0 and not unformatted:
        problems.append(f"{clang_format}: {said.stderr.strip()[:300]}")
        return
    found_formatted.write_text("\n".join(digests[name] for name in files if name not in unformatted))


def check_python_format(root, ruff, problems):
    found = subprocess.run([ruff, "format", "--check", "--no-cache", "."], cwd=root, capture_output=True, text=True)
    unformatted = [line.split(": ")[1] for line in found.stdout.splitlines() if line.startswith("Would reformat: ")]
    problems += [f"{name}: not formatted; ./dev format" for name in unformatted]
    if found.returncode != 0 and not unformatted:
        problems.append(f"{ruff}: {found.stderr.strip()[:300]}")


def check(root, clang_format=None, found_formatted=None, ruff=None):
    problems = []
    check_includes(root, problems)
    check_public(root, problems)
    check_readmes(root, problems)
    if clang_format:
        check_format(root, clang_format, Path(found_formatted), problems)
    if ruff:
        check_python_format(root, ruff, problems)
    return problems


def self_test():
    """Every kind of problem is found in a tree that has one of each."""
    files = {
        "engine/moonhalo.h": '#include "moonhalo/engine/model/a.h"\n',
        "engine/model/a.h": '#include "moonhalo/engine/tensor/a.h"\n#include "moonhalo/engine/tensor/a_impl.h"\n',
        "engine/model/README.md": "",
        "engine/README.md": "x" * 121 + "\n| " + "x" * 121 + "\n",
        "engine/base/README.md": "\n" * 41,
        "engine/base/a.h": '#include "engine/base/b.h"\n#include "moonhalo/engine/base/b.h"\n#include <vector>\n',
        "engine/base/b.h": '#include "moonhalo/engine/base/c.h"\n',
        "engine/base/c.cpp": '#include "moonhalo/engine/base/d.h"\n#include "moonhalo/engine/comm/x.h"\n',
        "engine/base/d.h": '#include "moonhalo/engine/base/a.h"\n',
        "engine/comm/mpi/a.cpp": (
            '#include "moonhalo/engine/comm/a.h"\n#include "moonhalo/engine/comm/diagnostics/a.h"\n#include'
            ' "moonhalo/engine/comm/tcp/a.h"\n'
        ),
        "engine/comm/diagnostics/a.h": '#include "moonhalo/engine/comm/a.h"\n#include "moonhalo/engine/comm/mpi/a.h"\n',
        "engine/comm/README.md": "",
        "engine/launch/a.cpp": '#include "moonhalo/engine/deferred/a.h"\n#include "moonhalo/engine/random/a.h"\n',
        "ops/fourier/a.cpp": '#include "moonhalo/ops/window/a.h"\n#include "moonhalo/ops/support/a.h"\n',
        "ops/norm/a.cpp": '#include "moonhalo/ops/window/a.h"\n#include "moonhalo/engine/model/a.h"\n',
    }
    found = problems_in(files, check)
    wanted = ["engine/base/a.h:1", "engine/base/c.cpp:2", "engine/comm/diagnostics/a.h:2", "engine/comm/mpi/a.cpp:3"]
    wanted += ["engine/launch/a.cpp:1", "ops/norm/a.cpp:1", "engine/base/a"]
    wanted += ["engine/model/a.h:2", "README.md", "ops/README.md", "engine/base/README.md", "engine/launch/README.md"]
    wanted += ["ops/fourier/README.md", "ops/norm/README.md", "engine/README.md:1"]
    assert found == wanted, f"self-test: found {found}"


if __name__ == "__main__":
    main(
        check,
        self_test,
        "layers, READMEs and format are in order" + ("" if len(sys.argv) > 2 else "; format not checked"),
    )
