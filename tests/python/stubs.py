# SPDX-License-Identifier: Apache-2.0
"""The types of the compiled module (_moonhalo.pyi) have its names and arguments, every public name has a docstring
(Y05). usage: stubs.py FOLDER_OF_THE_MODULE"""

import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
import moonhalo
import reference_python
from moonhalo import _moonhalo

problems = []


def arguments_of(node):
    return [one.arg for one in node.args.posonlyargs + node.args.args + node.args.kwonlyargs if one.arg != "self"]


def arguments_in(function):
    """Those of pybind11's signature, the first line of the docstring."""
    line = (function.__doc__ or "").split("\n", 1)[0]
    return [name for name in re.findall(r"(\w+): ", line[line.find("(") :].rsplit("->", 1)[0]) if name != "self"]


def check(where, node, function):
    ours, theirs = arguments_of(node), arguments_in(function)
    if (
        "overload" not in [getattr(one, "id", "") for one in node.decorator_list]
        and not node.name.startswith("__")
        and ours != theirs
    ):
        problems.append(f"{where}: the stub has {ours}, the module {theirs}")


tree = ast.parse((Path(moonhalo.__file__).with_name("_moonhalo.pyi")).read_text())
stubs = {
    node.name: node
    for node in tree.body
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
}
here = {name for name in dir(_moonhalo) if not name.startswith("_")}
problems += [f"{name}: not in both" for name in here ^ set(stubs)]
for name in here & set(stubs):
    node, value = stubs[name], getattr(_moonhalo, name)
    if isinstance(node, ast.FunctionDef):
        check(name, node, value)
    elif name != "CommError":
        members = {one.name if isinstance(one, ast.FunctionDef) else one.target.id: one for one in node.body}
        own = {one for one in vars(value) if not one.startswith("_")}
        problems += [f"{name}.{one}: not in both" for one in own ^ {one for one in members if not one.startswith("_")}]
        for one in own & set(members):
            if isinstance(members[one], ast.FunctionDef):
                check(f"{name}.{one}", members[one], getattr(value, one))
problems += [f"moonhalo.{name} is not there" for name in moonhalo.__all__ if not hasattr(moonhalo, name)]
problems += reference_python.problems(moonhalo)
print("\n".join(problems) or "all well")
sys.exit(len(problems) > 0)
