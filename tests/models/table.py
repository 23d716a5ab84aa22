# SPDX-License-Identifier: Apache-2.0
"""What a row of a table of models is made of. A row names packages by text, so a table is read without them.

Model("resnet18", make("torchvision.models.resnet18", num_classes=7), image(1, 3, 33, 40), cuts=(2, 3))"""

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
    input, or {place or name: dim} for several; each is tried on 2 and on 3 ranks."""

    name: str
    build: Any
    inputs: Any
    cuts: tuple
    train: bool = True  # False: eval mode under no_grad, outputs alone
    double: bool = False  # the model casts to float32 inside; here these casts keep float64
    ranks: tuple = (2, 3)
    method: str = "__call__"  # called instead of the module: "encode", ...
    family: str = field(default="", init=False)


def same(name):
    """The object of that name itself, as an argument."""
    return _found(name)
