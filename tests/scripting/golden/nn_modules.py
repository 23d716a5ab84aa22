#!/usr/bin/env python3
"""Writes nn_modules.lua beside it: results and gradients of torch.nn's modules whose parameters are sines.
usage: python nn_modules.py"""

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


# How Lua makes the module, the same in Python, shapes of the inputs.
CASES = [
    ("LSTM(2, 3)", nn.LSTM(2, 3), [(4, 3, 2)]),
    ("LSTM(2, 3, 2, {bidirectional = true, batch_first = true})", nn.LSTM(2, 3, 2, bidirectional=True, batch_first=True), [(3, 4, 2)]),
    ("LSTM(2, 3, {bias = false})", nn.LSTM(2, 3, bias=False), [(4, 2)]),
    ("GRU(2, 3, 2)", nn.GRU(2, 3, 2), [(4, 3, 2)]),
    ("GRU(2, 3, {bidirectional = true})", nn.GRU(2, 3, bidirectional=True), [(4, 3, 2)]),
    ("RNN(2, 3, 2)", nn.RNN(2, 3, 2), [(4, 3, 2)]),
    ('RNN(2, 3, {nonlinearity = "relu", batch_first = true})', nn.RNN(2, 3, nonlinearity="relu", batch_first=True), [(3, 4, 2)]),
    ("LSTMCell(2, 3)", nn.LSTMCell(2, 3), [(3, 2)]),
    ("GRUCell(2, 3)", nn.GRUCell(2, 3), [(3, 2)]),
    ('RNNCell(2, 3, {bias = false, nonlinearity = "relu"})', nn.RNNCell(2, 3, bias=False, nonlinearity="relu"), [(2,)]),
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


def main():
    text = ["-- SPDX-License-Identifier: Apache-2.0",
            "-- Written by nn_modules.py with PyTorch " + torch.__version__.split("+")[0] + ".",
            "-- The maker, shapes of inputs, all results joined, the gradient of the first input and of all parameters.", "return {"]
    for call, net, shapes in CASES:
        fill(net)
        inputs = [sines(shape, 10 + i).requires_grad_(True) for i, shape in enumerate(shapes)]
        results = torch.cat([one.flatten() for one in tensors(net(*inputs))])
        (results * torch.cos(torch.arange(len(results)))).sum().backward()
        gradients = sum(p.grad.square().sum() for p in net.parameters()).item()
        shape_text = ", ".join("{" + ", ".join(map(str, shape)) + "}" for shape in shapes)
        text += [f"  {{function(nn) return nn.{call} end, {{{shape_text}}},", row(results.tolist(), "    ") + ",",
                 row(inputs[0].grad.flatten().tolist(), "    ") + f", {gradients:.15g}}},"]
    text += ["}"]
    Path(__file__).with_suffix(".lua").write_text("\n".join(text) + "\n", encoding="utf-8")


main()
