#!/usr/bin/env python3
"""Writes nn_modules.lua (recurrent layers) and nn_layers.lua (losses, transformers) beside it: results and gradients of
torch.nn's modules whose parameters are sines. usage: python nn_modules.py"""

from pathlib import Path

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def sines(shape, start):
    count = torch.Size(shape).numel()
    return (torch.sin(torch.arange(count) * 0.7 + start) * 0.4).reshape(shape)


def fill(net):
    for i, p in enumerate(net.parameters()):
        with torch.no_grad():
            p.copy_(sines(p.shape, i))
    return net.eval()


class Sign(tuple):
    """The shape of a tensor of 1 and -1."""


class Positive(tuple):
    """The shape of a tensor between 0.1 and 0.9."""


def made(shape, start):
    if isinstance(shape, Sign):
        return torch.sign(sines(shape, start) + 0.01)
    return sines(shape, start) + 0.5 if isinstance(shape, Positive) else sines(shape, start)


# How Lua makes the module, the same in Python, shapes of the inputs.
CASES = [
    ("LSTM(2, 3)", nn.LSTM(2, 3), [(4, 3, 2)]),
    (
        "LSTM(2, 3, 2, {bidirectional = true, batch_first = true})",
        nn.LSTM(2, 3, 2, bidirectional=True, batch_first=True),
        [(3, 4, 2)],
    ),
    ("LSTM(2, 3, {bias = false})", nn.LSTM(2, 3, bias=False), [(4, 2)]),
    ("GRU(2, 3, 2)", nn.GRU(2, 3, 2), [(4, 3, 2)]),
    ("GRU(2, 3, {bidirectional = true})", nn.GRU(2, 3, bidirectional=True), [(4, 3, 2)]),
    ("RNN(2, 3, 2)", nn.RNN(2, 3, 2), [(4, 3, 2)]),
    (
        'RNN(2, 3, {nonlinearity = "relu", batch_first = true})',
        nn.RNN(2, 3, nonlinearity="relu", batch_first=True),
        [(3, 4, 2)],
    ),
    ("LSTMCell(2, 3)", nn.LSTMCell(2, 3), [(3, 2)]),
    ("GRUCell(2, 3)", nn.GRUCell(2, 3), [(3, 2)]),
    ('RNNCell(2, 3, {bias = false, nonlinearity = "relu"})', nn.RNNCell(2, 3, bias=False, nonlinearity="relu"), [(2,)]),
]


LAYERS = [
    ("CosineSimilarity()", nn.CosineSimilarity(), [(4, 3), (4, 3)]),
    ("PairwiseDistance{p = 3.0, keepdim = true}", nn.PairwiseDistance(p=3.0, keepdim=True), [(4, 3), (4, 3)]),
    ("CosineEmbeddingLoss(0.2)", nn.CosineEmbeddingLoss(0.2), [(4, 3), (4, 3), Sign((4,))]),
    ("MarginRankingLoss(0.3)", nn.MarginRankingLoss(0.3), [(4,), (4,), Sign((4,))]),
    ("HingeEmbeddingLoss(0.6)", nn.HingeEmbeddingLoss(0.6), [(4, 3), Sign((4, 3))]),
    ("SoftMarginLoss()", nn.SoftMarginLoss(), [(4, 3), Sign((4, 3))]),
    (
        'PoissonNLLLoss{full = true, reduction = "sum"}',
        nn.PoissonNLLLoss(full=True, reduction="sum"),
        [(4, 3), Positive((4, 3))],
    ),
    ("GaussianNLLLoss{full = true}", nn.GaussianNLLLoss(full=True), [(4, 3), (4, 3), Positive((4, 3))]),
    (
        "TripletMarginLoss{swap = true, margin = 0.7}",
        nn.TripletMarginLoss(swap=True, margin=0.7),
        [(4, 3), (4, 3), (4, 3)],
    ),
    (
        'MultiLabelSoftMarginLoss{reduction = "none"}',
        nn.MultiLabelSoftMarginLoss(reduction="none"),
        [(4, 3), Positive((4, 3))],
    ),
    ("TransformerEncoderLayer(4, 2, {dim_feedforward = 6})", nn.TransformerEncoderLayer(4, 2, 6), [(5, 3, 4)]),
    (
        (
            'TransformerEncoderLayer(4, 2, {dim_feedforward = 6, activation = "gelu", norm_first = true, batch_first ='
            " true})"
        ),
        nn.TransformerEncoderLayer(4, 2, 6, activation="gelu", norm_first=True, batch_first=True),
        [(3, 5, 4)],
    ),
    (
        "TransformerDecoderLayer(4, 2, {dim_feedforward = 6})",
        nn.TransformerDecoderLayer(4, 2, 6),
        [(5, 3, 4), (4, 3, 4)],
    ),
    ("Transformer(4, 2, 1, 2, {dim_feedforward = 6})", nn.Transformer(4, 2, 1, 2, 6), [(5, 3, 4), (4, 3, 4)]),
]


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in tensors(part)]


def row(numbers, indent):
    lines, line = [], indent + "{"
    for i, number in enumerate(numbers):
        word = f"{number:.15g}" + ("," if i < len(numbers) - 1 else "}")
        if len(line) + len(word) > 116:
            lines.append(line)
            line = indent + " " + word
        else:
            line += ("" if line.endswith("{") else " ") + word
    return "\n".join(lines + [line])


def write(name, cases):
    text = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by nn_modules.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "-- The maker, shapes of inputs, all results joined, the gradient of the first input and of all parameters.",
        "return {",
    ]
    for call, net, shapes in cases:
        fill(net)
        inputs = [made(shape, 10 + i).requires_grad_(i == 0) for i, shape in enumerate(shapes)]
        results = torch.cat([one.flatten() for one in tensors(net(*inputs))])
        (results * torch.cos(torch.arange(len(results)))).sum().backward()
        gradients = float(sum(p.grad.square().sum() for p in net.parameters()))
        kinds = [f', kind = "{type(shape).__name__.lower()}"' if type(shape) is not tuple else "" for shape in shapes]
        shape_text = ", ".join("{" + ", ".join(map(str, shape)) + kind + "}" for shape, kind in zip(shapes, kinds))
        text += [
            f"  {{function(nn) return nn.{call} end, {{{shape_text}}},",
            row(results.tolist(), "    ") + ",",
            row(inputs[0].grad.flatten().tolist(), "    ") + f", {gradients:.15g}}},",
        ]
    text += ["}"]
    Path(__file__).with_name(name).write_text("\n".join(text) + "\n", encoding="utf-8")


write("nn_modules.lua", CASES)
write("nn_layers.lua", LAYERS)
