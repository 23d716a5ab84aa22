#!/usr/bin/env python3
"""Writes torch_values.lua beside it: what PyTorch's modules, functions and distributions give for waves. Tensors of
more than 7 elements are their sums with two waves.
usage: python torch_values.py"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn
from torch.nn.utils import parametrizations

torch.set_default_dtype(torch.float64)


def wave(shape, phase):
    return (torch.arange(math.prod(shape), dtype=torch.float64) * 0.7 + phase).sin().reshape(shape)


def fill(module):
    """Every parameter and buffer of floating-point numbers becomes a wave, in the order of names."""
    with torch.no_grad():
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for i, name in enumerate(sorted(tensors)):
            tensors[name].copy_(wave(tensors[name].shape, i + 1.0))
    return module


def with_gradient(run, *inputs):
    """The result and the gradients of the inputs, of the sum of the results' waves."""
    inputs = [one.clone().requires_grad_() for one in inputs]
    result = run(*inputs)
    (result * wave(result.shape, 0.3)).sum().backward()
    return [result, *(one.grad for one in inputs)]


def losses():
    x, y = wave((7, 5), 0.1), wave((7, 5), 2.0)
    classes = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    labels = torch.tensor([[1, 3, -1, 0, 0]] * 3 + [[0, -1, 1, 1, 1]] * 2 + [[4, 2, 0, -1, 1]] * 2)
    weight = wave((5,), 1.0).abs()
    times, targets = torch.tensor([6, 5, 6]), torch.tensor([[1, 2, 2], [3, 1, 0], [2, 0, 0]])
    logits, lengths = wave((6, 3, 4), 0.5), torch.tensor([3, 2, 1])
    return {
        "MultiMarginLoss": with_gradient(lambda a: nn.MultiMarginLoss(2, 0.7, weight)(a, classes), x),
        "MultiLabelMarginLoss": with_gradient(lambda a: nn.MultiLabelMarginLoss(reduction="none")(a, labels), x),
        "MultiLabelSoftMarginLoss": with_gradient(
            lambda a: F.multilabel_soft_margin_loss(a, y.gt(0).double(), weight), x
        ),
        "CTCLoss": with_gradient(
            lambda a: nn.CTCLoss(zero_infinity=True)(a.log_softmax(-1), targets, times, lengths), logits
        ),
        "TripletMarginWithDistanceLoss": with_gradient(
            lambda a, p, n: nn.TripletMarginWithDistanceLoss(swap=True, reduction="sum")(a, p, n), x, y, x * y + 1
        ),
        "TripletOfSums": with_gradient(
            lambda a, p, n: nn.TripletMarginWithDistanceLoss(
                distance_function=lambda u, v: (u - v).abs().sum(-1), margin=2.0
            )(a, p, n),
            x,
            y,
            x * y + 1,
        ),
    }


def layers():
    x = wave((2, 4, 7, 3), 0.1)
    adaptive = fill(nn.AdaptiveLogSoftmaxWithLoss(6, 9, [2, 5], div_value=2.0, head_bias=True))
    rows, classes = wave((7, 6), 0.4), torch.tensor([0, 8, 3, 4, 5, 1, 2])
    bags, offsets = torch.tensor([[1, 2, 0], [3, 3, 2]]), torch.tensor([0, 2, 2])
    bag = {
        mode: fill(nn.EmbeddingBag(5, 3, mode=mode, padding_idx=0, include_last_offset=False))
        for mode in ("sum", "mean", "max")
    }
    table = fill(nn.EmbeddingBag(5, 3, mode="sum"))
    return {
        "Softmax2d": with_gradient(nn.Softmax2d(), x),
        "RReLU": with_gradient(nn.RReLU().eval(), x),
        "CrossMapLRN2d_3": with_gradient(lambda a: F.local_response_norm(a, 3, 0.5, 0.6, 2.0), x),
        "AdaptiveLogProb": with_gradient(adaptive.log_prob, rows),
        "AdaptiveLoss": with_gradient(lambda a: adaptive(a, classes).loss, rows),
        "AdaptiveOutput": [adaptive(rows, classes).output],
        "BagSum": [bag["sum"](bags)],
        "BagMean": [bag["mean"](bags)],
        "BagMax": [bag["max"](bags)],
        "BagOffsets": [table(torch.tensor([1, 2, 4, 0]), offsets, wave((4,), 0.2))],
        "affine_grid": [F.affine_grid(wave((2, 2, 3), 0.0), [2, 1, 3, 4], align_corners=True)],
        "softmin": [F.softmin(x, dim=1)],
        "tanhshrink": [F.tanhshrink(x)],
        "logsigmoid": [F.logsigmoid(x)],
        "upsample_bilinear": [F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)],
        "adaptive_max_pool2d_with_indices": list(F.adaptive_max_pool2d_with_indices(x, (3, 2))),
    }


def computed():
    found = {}
    for name, layer, dim, shape in [
        ("linear", lambda: nn.Linear(5, 4), 0, (7, 5)),
        ("conv", lambda: nn.Conv2d(2, 3, 3, padding=1), 1, (2, 2, 7, 4)),
        ("transposed", lambda: nn.ConvTranspose2d(2, 3, 3), 0, (2, 2, 7, 4)),
    ]:
        x = wave(shape, 0.2)
        normed = parametrizations.weight_norm(fill(layer()), dim=dim)
        with torch.no_grad():
            normed.parametrizations.weight.original0.mul_(1.5)
        found["weight_norm_" + name] = with_gradient(normed, x)
        spectral = parametrizations.spectral_norm(fill(layer()), n_power_iterations=2)
        place = spectral.parametrizations.weight[0]
        place._u.copy_(F.normalize(wave(place._u.shape, 0.6), dim=0))
        place._v.copy_(F.normalize(wave(place._v.shape, 0.7), dim=0))
        spectral(x)
        results = with_gradient(spectral, x)
        found["spectral_norm_" + name] = [*results, spectral.parametrizations.weight.original.grad, place._u, place._v]
    return found


def of_distributions():
    loc, scale = wave((7,), 0.1), wave((7,), 0.5).abs() + 0.2
    x, p = wave((7,), 0.9), wave((7,), 0.2).square()
    q = wave((7,), 1.2).square()
    rows, other = wave((7, 4), 0.3), wave((7, 4), 1.3)
    root = wave((3, 3), 0.4).tril() + 2 * torch.eye(3)
    means, values = wave((7, 3), 0.8), wave((7, 3), 2.2)
    multi = D.MultivariateNormal(means, root @ root.T)
    second = D.MultivariateNormal(wave((3,), 1.0), scale_tril=root.abs() + torch.eye(3))
    normal, bernoulli, categorical = D.Normal(loc, scale), D.Bernoulli(probs=p), D.Categorical(logits=rows)
    uniform = D.Uniform(loc - 1, loc + scale, validate_args=False)
    picks = torch.tensor([0, 3, 1, 2, 2, 0, 1])
    return {
        "Normal": [normal.log_prob(x), normal.cdf(x), normal.icdf(p), normal.entropy()],
        "Uniform": [uniform.log_prob(x), uniform.cdf(x), uniform.entropy(), uniform.variance],
        "Bernoulli": [bernoulli.log_prob(x.gt(0).double()), bernoulli.entropy(), bernoulli.variance],
        "Categorical": [categorical.log_prob(picks), categorical.entropy(), categorical.probs],
        "CategoricalOfProbs": [D.Categorical(probs=rows.abs()).log_prob(picks)],
        "MultivariateNormal": [multi.log_prob(values), multi.entropy(), multi.variance],
        "kl_normal": [D.kl_divergence(normal, D.Normal(x, scale * 2))],
        "kl_uniform": [D.kl_divergence(uniform, D.Uniform(loc - 2, loc + 1.3))],
        "kl_bernoulli": [D.kl_divergence(bernoulli, D.Bernoulli(probs=q))],
        "kl_categorical": [D.kl_divergence(categorical, D.Categorical(logits=other))],
        "kl_multi": [D.kl_divergence(multi, second)],
    }


def shown(tensor):
    """All elements of a small tensor, of others their sums with two waves."""
    flat = tensor.reshape(-1)
    if flat.numel() > 7:
        flat = torch.stack([(flat * wave(flat.shape, phase)).sum() for phase in (0.9, 2.1)])
    return flat.tolist()


def text(value):
    if isinstance(value, list):
        return "{" + ", ".join(text(one) for one in value) + "}"
    if value == math.inf or value == -math.inf:
        return "math.huge" if value > 0 else "-math.huge"
    return repr(value)


def main():
    lines = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by torch_values.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "return {",
    ]
    for name, tensors in {**losses(), **layers(), **computed(), **of_distributions()}.items():
        lines.append(f"  {name} = {{")
        for tensor in tensors:
            row = [text(one) for one in shown(tensor.detach())]
            line = f"    {{shape = {text(list(tensor.shape))},"
            for one in row:
                if len(line) + len(one) > 116:
                    lines.append(line)
                    line = "     "
                line += " " + one + ","
            lines.append(line + "},")
        lines.append("  },")
    Path(__file__).with_suffix(".lua").write_text("\n".join([*lines, "}"]) + "\n", encoding="utf-8")


main()
