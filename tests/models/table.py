# SPDX-License-Identifier: Apache-2.0
"""What a row of a table of models is made of. A row names packages by text, so a table is read without them.

Model("resnet18", make("torchvision.models.resnet18", num_classes=7), image(1, 3, 33, 40), cuts=(2, 3))"""

import contextlib
import importlib
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Make:
    """A call that is made later: `name` is a path with dots, arguments may be Make themselves."""

    name: str
    args: tuple
    kwargs: dict

    def __call__(self):
        return _found(self.name)(*map(made, self.args), **{key: made(value) for key, value in self.kwargs.items()})


def make(name, *args, **kwargs):
    return Make(name, args, kwargs)


def _found(name):
    """The object of a path with dots: a module's, a class's or a function's."""
    words = name.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = ".".join(words[:end])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise  # a package that the module itself needs
            continue
        for word in words[end:]:
            found = getattr(found, word)
        return found
    raise ModuleNotFoundError(f"no module for {name}")


def import_names(models):
    """Imports all that the rows name. What cannot be imported is left out: the row fails where it is run, and says
    why."""
    waiting = [value for model in models for value in (model.build, model.inputs)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Make):
            with contextlib.suppress(Exception):
                _found(value.name)
            value = [*value.args, *value.kwargs.values()]
        elif isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            continue
        waiting.extend(value)


def made(value):
    """The value with all Make in it called; inputs become tensors."""
    if isinstance(value, (Make, Field, Integers)):
        return value()
    if isinstance(value, (list, tuple)):
        return type(value)(map(made, value))
    if isinstance(value, dict):
        return {key: made(one) for key, one in value.items()}
    return value


@dataclass
class Field:
    """Normal numbers; seeded by the shape, so that they are the same in each process."""

    shape: tuple
    scale: float = 1.0
    shift: float = 0.0
    positive: bool = False

    def __call__(self):
        generator = torch.Generator().manual_seed(sum(size * 31**k for k, size in enumerate(self.shape)))
        drawn = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        return (drawn.abs() if self.positive else drawn) * self.scale + self.shift


@dataclass
class Integers:
    """Integers below `high`."""

    shape: tuple
    high: int

    def __call__(self):
        generator = torch.Generator().manual_seed(self.high)
        return torch.randint(self.high, self.shape, generator=generator)


def image(*shape):
    return Field(shape)


def tokens(batch, length, high=50):
    return Integers((batch, length), high)


@dataclass
class Model:
    """A row. `inputs`: one value, a list (arguments by place) or a dict (by name). `cuts`: each is a dim of the first
    input, or {place or name: dim} for several; grid_of() makes the cut of two dims of these."""

    name: str
    build: Any
    inputs: Any
    cuts: tuple
    train: bool = True  # False: eval mode under no_grad, outputs alone
    double: bool = False  # the model casts to float32 inside; here these casts keep float64
    ranks: tuple = (2, 3)  # of `./dev models --all`; shorter for large models
    method: str = "__call__"  # called instead of the module: "encode", ...
    family: str = field(default="", init=False)


# Of Model, beside the arguments of its call.
OPTIONS = ("train", "double", "ranks", "method")


def model(label, name, inputs, cuts, **rest):
    """A row whose model is the call of `name`. `rest` are options of Model, and arguments of the call."""
    options = {key: rest.pop(key) for key in OPTIONS if key in rest}
    return Model(label, make(name, **rest), inputs, cuts, **options)


def _other_dim(dim, dims):
    """Beside this dim of a tensor of so many: another one of the field (the last two or three), or the batch."""
    if dims >= 4 and dim >= 2:
        return dim + 1 if dim + 1 < dims else dim - 1
    return 0 if dim else None


def grid_of(cuts, shapes):
    """{input: its dim for each of the two dims of a mesh, None for copies}: the first cut, and the next one of other
    dims. If there is no other: several inputs cut by rows are cut along one dim of the mesh each, all else along
    another dim too."""
    first = cuts[0]
    other = next((cut for cut in cuts[1:] if all(first.get(key) != dim for key, dim in cut.items())), None)
    if other is not None:
        return {key: (first.get(key), other.get(key)) for key in {**first, **other}}
    if len(first) > 1 and not any(first.values()):
        return {key: (None, 0) if place else (0, None) for place, key in enumerate(first)}
    return {key: (dim, _other_dim(dim, len(shapes[key]))) for key, dim in first.items()}


def same(name):
    """The object of that name itself, as an argument."""
    return _found(name)
