# SPDX-License-Identifier: Apache-2.0
"""Equivariant layers, cut over points."""

from table import Field, Model, image, make


def product(name, *words, width, other=None, **rest):
    inputs = [image(23, width)] if other is None else [image(23, width), image(23, other)]
    return Model(name, make("e3nn.o3." + name, *words, **rest), inputs, (dict.fromkeys(range(len(inputs)), 0),))


MODELS = [
    product("Linear", "4x0e + 3x1o + 2x2e", "5x0e + 2x1o + 1x2e", width=4 + 9 + 10),
    product("FullyConnectedTensorProduct", "4x0e + 3x1o", "1x0e + 1x1o", "3x0e + 2x1o + 1x2e", width=13, other=4),
    product("FullTensorProduct", "2x0e + 1x1o", "1x0e + 1x1o", width=5, other=4),
    product("ElementwiseTensorProduct", "2x0e + 2x1o", "4x0e", width=8, other=4),
    product("TensorSquare", "2x0e + 2x1o", "3x0e + 1x2e", width=8),
    product("Norm", "2x0e + 2x1o", width=8),
    product("SphericalHarmonics", [0, 1, 2, 3], True, width=3),
    Model(
        "Gate",
        make(
            "e3nn.nn.Gate",
            "3x0e",
            [make("table.same", "torch.tanh")],
            "2x0e",
            [make("table.same", "torch.sigmoid")],
            "2x1o",
        ),
        image(23, 11),
        (0,),
    ),
    Model("BatchNorm", make("e3nn.nn.BatchNorm", "4x0e + 3x1o"), image(23, 13), (0,)),
    Model(
        "NormActivation",
        make("e3nn.nn.NormActivation", "4x0e + 3x1o", make("table.same", "torch.tanh")),
        image(23, 13),
        (0,),
    ),
    Model(
        "FullyConnectedNet",
        make("e3nn.nn.FullyConnectedNet", [5, 16, 4], make("table.same", "torch.tanh")),
        Field((23, 5)),
        (0,),
    ),
]
