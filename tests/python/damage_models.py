#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes damaged copies of the .pt2 files in a folder: JSON with a changed, missing or moved part, shorter tensors, and
changed bytes of the zip file. The first ones are the same in every run. usage: damage_models.py FOLDER COUNT SEED"""

import copy
import itertools
import json
import random
import sys
import zipfile
from pathlib import Path

VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    1.5,
    "",
    "x",
    "torch.ops.aten.add.Tensor",
    "torch.ops..",
    "as_int",
    [],
    {},
    [[]],
    {"as_int": -5},
    {"as_tensor": {"name": "x"}},
    {"as_name": "y"},
]


def places(value, found, path=()):
    found.append(path)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []:
        places(inner, found, (*path, key))


def damage_json(value, draw):
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 3))):
        found = []
        places(value, found)
        if len(found) == 1:
            break
        path, other = draw.choice(found[1:]), draw.choice(found[1:])
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        kind = draw.randrange(4)
        if kind == 0:
            del holder[path[-1]]
        elif kind == 1:
            part = value
            for key in other:
                part = part[key]
            holder[path[-1]] = copy.deepcopy(part)
        else:
            holder[path[-1]] = copy.deepcopy(draw.choice(VALUES))
    return value


def damage(source, target, draw):
    if draw.randrange(4) == 0:
        content = bytearray(source.read_bytes())
        for _ in range(draw.randrange(1, 20)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        target.write_bytes(content[: draw.choice((len(content), draw.randrange(len(content))))])
        return
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        chosen = draw.choice([name for name in old.namelist() if name.endswith(".json") or "weight_" in name])
        for name in old.namelist():
            content = old.read(name)
            if name == chosen:
                content = (
                    json.dumps(damage_json(json.loads(content), draw)).encode()
                    if name.endswith(".json")
                    else content[: len(content) // 2]
                )
            new.writestr(name, content)


def certain_damage(program, number):
    """Changes of the program that every run makes, one for each number; later numbers have none."""
    graph = program["graph_module"]
    call = graph["module_call_graph"][0]["signature"]
    leaf = {"type": None, "context": None, "children_spec": []}
    trees = [
        {**leaf, "type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]},
        {**leaf, "type": "builtins.dict", "context": '["a", "b"]', "children_spec": [leaf]},
        {**leaf, "children_spec": 3},
        leaf,
    ]
    changes = [
        (graph["signature"]["input_specs"], 0, {}),
        (graph["signature"]["output_specs"], 0, {}),
        (graph["graph"]["outputs"], 0, {}),
        (graph["graph"]["nodes"][0]["outputs"], 0, {}),
        (graph["graph"]["nodes"][0]["inputs"][0], "arg", {"as_float": "many"}),
        (graph["module_call_graph"][0], "fqn", "other"),
        *((call, "in_spec", text) for text in ("linear_1", "[1]", *(json.dumps([1, tree]) for tree in trees))),
        *((call, "out_spec", text) for text in ("", "{}", *(json.dumps([1, tree]) for tree in trees[:3]))),
    ]
    if number >= len(changes):
        return False
    holder, key, value = changes[number]
    holder[key] = value
    return True


def write_certain(source, folder):
    """Returns how many."""
    for number in itertools.count():
        with zipfile.ZipFile(source) as old:
            contents = {name: old.read(name) for name in old.namelist()}
        name = next(name for name in contents if name.endswith("models/model.json"))
        program = json.loads(contents[name])
        if not certain_damage(program, number):
            return number
        contents[name] = json.dumps(program).encode()
        with zipfile.ZipFile(folder / f"{number}.pt2", "w") as new:
            for name, content in contents.items():
                new.writestr(name, content)


folder, count, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
sources = sorted(folder.glob("*.pt2"))
(folder / "damaged").mkdir(exist_ok=True)
for number in range(write_certain(folder / "mlp.static.pt2", folder / "damaged"), count):
    damage(draw.choice(sources), folder / "damaged" / f"{number}.pt2", draw)
