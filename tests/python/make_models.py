#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small PyTorch models as TorchScript and as exported programs, with what Python computes with them: output,
gradients, and five steps of AdamW. Tensors lie beside them as buffers of a TorchScript module, NAME.reference.pt.
usage: make_models.py FOLDER [kept]     kept: only those of tests/python/programs (README.md)"""

import json
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)


class UNet(nn.Module):
    def __init__(self, c: int = 4):
        super().__init__()
        self.a = nn.Conv2d(2, c, 3, padding=1)
        self.n1 = nn.GroupNorm(2, c)
        self.down = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.n2 = nn.BatchNorm2d(2 * c)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1, padding_mode="circular")
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Conv2d(2 * c, 1, 1)

    def forward(self, x):
        a = F.gelu(self.n1(self.a(x)))
        b = F.relu(self.n2(self.down(a)))
        b = b + F.silu(self.mid(b))
        u = self.up(b)
        u = F.interpolate(u, size=[int(a.shape[2]), int(a.shape[3])], mode="bilinear", align_corners=False)
        return self.out(torch.cat([u, a], 1))


class Spectral(nn.Module):
    def __init__(self, c: int, m: int):
        super().__init__()
        self.m = m
        self.w = nn.Parameter(torch.randn(c, c, m, m, dtype=torch.complex128) / c)

    def forward(self, x):
        f = torch.fft.rfft2(x)
        out = torch.zeros_like(f)
        out[:, :, : self.m, : self.m] = torch.einsum("bixy,ioxy->boxy", f[:, :, : self.m, : self.m], self.w)
        return torch.fft.irfft2(out, s=(x.shape[-2], x.shape[-1]))


class FNO(nn.Module):
    def __init__(self, c: int = 4, m: int = 3):
        super().__init__()
        self.lift = nn.Conv2d(2, c, 1)
        self.spectral = Spectral(c, m)
        self.skip = nn.Conv2d(c, c, 1)
        self.project = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        h = self.lift(x)
        return self.project(F.gelu(self.spectral(h) + self.skip(h)))


class Attention(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, h):
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        q = q.unflatten(-1, (2, 4)).transpose(1, 2)
        k = k.unflatten(-1, (2, 4)).transpose(1, 2)
        v = v.unflatten(-1, (2, 4)).transpose(1, 2)
        return h + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViT(nn.Module):
    def __init__(self, d: int = 8, p: int = 4):
        super().__init__()
        self.patches = nn.Conv2d(2, d, p, stride=p)
        self.attention = Attention(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, p * p)
        self.p = p

    def forward(self, x):
        h = self.patches(x)
        rows, columns = h.shape[2], h.shape[3]
        h = self.attention(h.flatten(2).transpose(1, 2))
        h = h + self.mlp(h)
        return F.pixel_shuffle(self.head(h).transpose(1, 2).unflatten(-1, (rows, columns)), self.p)


class Control(nn.Module):
    """Loops and branches; one convolution under two names, called three times."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.again = self.conv
        self.out = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x):
        for _ in range(2):
            x = torch.tanh(self.conv(x)) + x
        x = self.again(x)
        if x.size(2) > 8:
            x = F.avg_pool2d(x, 2)
        return self.out(x)


class Counted(nn.Module):
    """Buffers that forward replaces, a mean that forgets, and batch statistics."""

    steps: Tensor
    mean: Tensor

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Conv2d(4, 1, 1, bias=False)
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        h = self.norm(self.conv(x))
        if self.training:
            self.steps = self.steps + 1
            self.mean = self.mean * 0.9 + h.detach().mean(dim=[0, 2, 3]) * 0.1
        return self.out(F.relu(h) + self.mean[None, :, None, None] * self.steps)


class Cell(nn.Module):
    def __init__(self, c: int):
        super().__init__()
        self.gates = nn.Conv2d(1 + c, 4 * c, 3, padding=1)

    def forward(self, x, state: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
        i, f, o, g = torch.chunk(self.gates(torch.cat([x, state[0]], 1)), 4, 1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvLSTM(nn.Module):
    def __init__(self, c: int = 3):
        super().__init__()
        self.cell = Cell(c)
        self.out = nn.Conv2d(c, 1, 1)
        self.c = c

    def forward(self, x):
        h = x.new_zeros([x.size(0), self.c, x.size(2), x.size(3)])
        c = torch.zeros_like(h)
        frames: List[Tensor] = []
        for t in range(2):
            h, c = self.cell(x[:, t : t + 1], (h, c))
            frames.append(self.out(h))
        return torch.cat(frames, 1)


class MLP(nn.Module):
    """On the channels of every point, as tensor parallel plans divide it."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 9)
        self.fc2 = nn.Linear(9, 2)

    def forward(self, x):
        h = x.permute(0, 2, 3, 1)
        return (h + self.fc2(F.gelu(self.fc1(h)))).permute(0, 3, 1, 2)


class Classifier(nn.Module):
    """One vector for each sample, from fields of channels last, a norm over channels and a mean of the whole field."""

    def __init__(self, c: int = 6):
        super().__init__()
        self.patches = nn.Conv2d(2, c, 5, stride=3, padding=2)
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.wide = nn.Linear(c, 2 * c)
        self.narrow = nn.Linear(2 * c, c)
        self.scale = nn.Parameter(torch.full((c,), 0.5))
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        h = self.patches(x)
        d = self.norm(self.depthwise(h).permute(0, 2, 3, 1))
        h = h + (self.scale * self.narrow(F.gelu(self.wide(d)))).permute(0, 3, 1, 2)
        pooled = F.adaptive_avg_pool2d(F.max_pool2d(h, 2), 1).flatten(1)
        return torch.log_softmax(self.head(pooled), 1)


class Recurrent(nn.Module):
    """torch.nn.LSTM computes with a list of its parameters."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Several(nn.Module):
    """Not part of the matrix: tuples, dicts, arguments by name, methods, and an error."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(
        self, fields: Dict[str, Tensor], pair: Tuple[Tensor, int], scale: float = 1.0
    ) -> Tuple[Tensor, Dict[str, Tensor]]:
        y = fields["u"] * scale + pair[0] * pair[1]
        return y, {"v": fields["v"] + 1, "y": self.inner(y)}

    @torch.jit.export
    def twice(self, x: Tensor) -> List[Tensor]:
        return [x, x * 2]


class Inner(nn.Module):
    def forward(self, x):
        return x.view(-1) * 3.0 if x.size(0) == 1 else x.view(7, 77)


MODELS = {
    "unet": UNet,
    "fno": FNO,
    "vit": ViT,
    "control": Control,
    "counted": Counted,
    "convlstm": ConvLSTM,
    "mlp": MLP,
    "classifier": Classifier,
}
IN_TRAINING = {"counted"}


def keep(folder, name, tensors):
    holder = nn.Module()
    for key, tensor in tensors.items():
        holder.register_buffer(key.replace(".", "__"), tensor.detach().clone())
    torch.jit.script(holder).save(str(folder / f"{name}.reference.pt"))


def write(folder, name):
    torch.manual_seed(3)
    net = MODELS[name]().train(name in IN_TRAINING)
    x = torch.randn(2, 2, 24, 20)
    torch.jit.script(net).save(str(folder / f"{name}.script.pt"))
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    torch.jit.trace(net, x, check_trace=False).save(str(folder / f"{name}.trace.pt"))
    net.load_state_dict(state)  # tracing runs forward, and so changes buffers
    torch.export.save(torch.export.export(net, (x,)), str(folder / f"{name}.static.pt2"))
    shapes = {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}}
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), str(folder / f"{name}.dynamic.pt2"))
    kept = {"x": x}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        given = x.clone().requires_grad_()
        y = net(given)
        loss = y.square().mean()
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            kept.update({"y": y, "gx": given.grad, **{"grad." + key: p.grad for key, p in net.named_parameters()}})
        optimizer.step()
    kept["losses"] = torch.stack(losses)
    kept.update({"end." + key: tensor for key, tensor in net.state_dict().items()})
    keep(folder, name, kept)


class Exported(nn.Module):
    """For torch.export: nested arguments and results, a branch on a value, constants, no_grad, a buffer that is
    written."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.table = torch.arange(6.0)

    def forward(self, fields, pair, scale=1.0, *, shift):
        self.calls.add_(1)
        with torch.no_grad():
            mean = fields["v"].mean() * self.scratch
        y = torch.cond(mean.sum() > 0, lambda h: h * 2, lambda h: h - 1, (self.fc(fields["u"]),))
        return y * scale + self.table + shift, {"v": fields["v"] * mean, "list": [pair[0], pair[1] + y.shape[0]]}


def copy_archive(source, target, change):
    """Copies a model's file, each entry with the content that change(name, content) gives."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, change(entry, old.read(entry)))


def write_other_schemas(path):
    """The program as later versions of PyTorch may write it: with fields that are not known, or in another schema."""
    for name, version in {"newer_minor": {"major": 8, "minor": 99}, "newer_major": {"major": 9, "minor": 1}}.items():

        def changed(entry, content, version=version):
            if not entry.endswith("models/model.json"):
                return content
            program = {**json.loads(content), "schema_version": version, "later": {"field": [1]}}
            for node in program["graph_module"]["graph"]["nodes"]:
                node["later"] = None
            return json.dumps(program).encode()

        copy_archive(path, path.with_name(f"{name}.pt2"), changed)


def write_nested(folder):
    torch.manual_seed(4)
    net, rows = Exported(), torch.export.Dim("rows", min=2, max=64)
    u, v = torch.randn(4, 6), torch.randn(4, 6)
    arguments = ({"u": u, "v": v}, (u.clone(), v.clone()), 3.0)  # torch.export joins arguments that are one tensor
    shapes = {"fields": {"u": {0: rows}, "v": {0: rows}}, "pair": ({0: rows}, {0: rows}), "scale": None, "shift": None}
    program = torch.export.export(net, arguments, {"shift": torch.ones(6)}, dynamic_shapes=shapes)
    torch.export.save(program, str(folder / "exported.pt2"))
    for number, sign in enumerate((1, -1)):
        u, v = torch.randn(5, 6), sign * torch.rand(5, 6)
        y, rest = net({"u": u, "v": v}, (u, v), 3.0, shift=torch.ones(6))
        keep(folder, f"exported{number}", {"u": u, "v": v, "y": y, "rest_v": rest["v"], "second": rest["list"][1]})


def write_exported(folder):
    write_nested(folder)
    write_other_schemas(folder / "exported.pt2")
    decomposed = torch.export.export(UNet().train(), (torch.randn(2, 2, 24, 20),)).run_decompositions()
    torch.export.save(decomposed, str(folder / "decomposed.pt2"))
    torch.export.save(torch.export.export(Scanned(), (torch.randn(4, 3),)), str(folder / "scanned.pt2"))


def write_kept(folder):
    """Small programs, as one version of PyTorch writes them."""
    write_nested(folder)
    torch.manual_seed(5)
    net, x, other = Control(), torch.randn(2, 2, 12, 10), torch.randn(3, 2, 11, 9)
    shapes = {"x": {dim: torch.export.Dim.AUTO for dim in (0, 2, 3)}}
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), str(folder / "control.pt2"))
    keep(folder, "control", {"x": x, "y": net(x), "other": other, "other_y": net(other)})


class Scanned(nn.Module):
    def forward(self, x):
        from torch._higher_order_ops.map import map as over_rows

        return over_rows(lambda row: row * 2, x)


class Forked(nn.Module):
    def forward(self, x):
        return torch.jit.wait(torch.jit.fork(torch.relu, x))


def write_unknown_operator(source, target):
    """A program as a later PyTorch may write it, with an operator that this one does not have."""
    copy_archive(source, target, lambda _, content: content.replace(b"torch.tanh(", b"torch.tanh_of_later("))


def write_all(folder):
    for name in MODELS:
        write(folder, name)
    torch.jit.script(Several()).save(str(folder / "several.pt"))
    torch.jit.script(Recurrent().double()).save(str(folder / "recurrent.pt"))
    torch.jit.script(Forked()).save(str(folder / "forked.pt"))
    write_unknown_operator(folder / "control.script.pt", folder / "later.pt")
    write_exported(folder)
    torch.save(MLP().state_dict(), folder / "state.pt")


(write_kept if sys.argv[2:] == ["kept"] else write_all)(Path(sys.argv[1]))
