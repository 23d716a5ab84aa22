# SPDX-License-Identifier: Apache-2.0
"""Files with named datasets, read and written block by block, and checkpoints that any number of ranks loads."""

import json as _json

import torch as _torch

from ._moonhalo import Selection, _LuaObject, _load_checkpoint, _save_checkpoint, _scatter_selection
from ._moonhalo import scatter_tensor as _scatter_plain

# ---- Selections ------------------------------------------------------------------------------------------------------


def _slice_text(index):
    """The engine's text of one index: "3", "0:100:2", ":", "..."."""
    if index is Ellipsis:
        return "..."
    if isinstance(index, slice):
        text = ":".join("" if one is None else str(int(one)) for one in (index.start, index.stop))
        return text if index.step is None else f"{text}:{int(index.step)}"
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(f'a selection takes integers and slices\n  have  {index!r}\n  fix   file["t"][0:100, :, ::2]')
    return str(index.__index__())


def _select(self, index):
    """selection[0:100, :, ::2], or a string "0:100, :, ::2": a part of a selection, not yet read."""
    if isinstance(index, str):
        return self._select(index)
    return self._select(", ".join(_slice_text(one) for one in (index if isinstance(index, tuple) else (index,))))


def _selection_text(self):
    return f"Selection({self.name} of {self.path}, shape={self.shape}, dims={self.dims})"


Selection.__getitem__ = _select
Selection.__repr__ = _selection_text
Selection.__len__ = lambda self: self.shape[0]


def scatter_tensor(source, mesh, placements, src=0, *, dtype=None, decode=False):
    """Distributes a tensor of mesh rank `src` (the other ranks pass None), whose gradient returns to it; or reads a
    dataset of an open file (a Selection, the same on all ranks), of which each rank reads its block alone. Returns a
    ShardTensor. Collective over the mesh.

    dtype    the dtype of the result, for a dataset
    decode   apply scale_factor, add_offset and missing values of a dataset."""
    if isinstance(source, Selection):
        return _scatter_selection(source, mesh, placements, dtype, decode)
    if dtype is not None or decode:
        raise ValueError(
            "scatter_tensor: dtype and decode are for datasets, and the source is a tensor\n  fix  "
            " scatter_tensor(t.to(dtype), ...)"
        )
    return _scatter_plain(source, mesh, placements, src)


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def _tensors_of(where, module):
    """The module's state_dict as a list; what is not a tensor in it is an error."""
    tensors = list(module.state_dict(keep_vars=True).items())
    for name, one in tensors:
        if not isinstance(one, _torch.Tensor):
            raise TypeError(
                f"{where}: '{name}' of the module's state is not a tensor\n  have  {type(one).__name__}\n"
                "  fix   save it as an entry of its own"
            )
    return [(name, one.detach()) for name, one in tensors]


def _names_of(where, optimizer, modules):
    """Names of the optimizer's parameters, in order: those of the modules in the state, else their numbers."""
    known = {}
    for name, module in modules.items():
        for path, parameter in module.named_parameters():
            known.setdefault(id(parameter), f"{name}.{path}")
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return parameters, [known.get(id(one), str(number)) for number, one in enumerate(parameters)]


def _plain_json(where, value):
    try:
        return _json.dumps(value)
    except TypeError as error:
        raise TypeError(
            f"{where}: an option or a state of the optimizer cannot be saved\n  have  {error}\n"
            "  fix   numbers, strings, lists and tensors alone"
        ) from None


def _pack_optimizer(where, optimizer, modules):
    """(about, tensors): options, numbers and the names of tensors as JSON, and the tensors under them. Tensors in
    param_groups, as a learning rate, are numbers."""
    parameters, names = _names_of(where, optimizer, modules)
    groups = [
        {
            key: value.item() if isinstance(value, _torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        | {"params": len(group["params"])}
        for group in optimizer.param_groups
    ]
    states, tensors = {}, []
    for parameter, name in zip(parameters, names):
        if parameter not in optimizer.state:
            continue
        states[name] = {}
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, _torch.Tensor):
                states[name][key] = {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
                tensors.append((f"{name}.{key}", value.detach()))
            else:
                states[name][key] = value
    about = {"kind": type(optimizer).__name__, "names": names, "groups": groups, "states": states}
    return _plain_json(where, about), tensors


def _like(parameter, about):
    """Memory for a saved state of a parameter: placed as the parameter is, if it has its shape."""
    dtype = getattr(_torch, about["tensor"])
    if about["shape"] == list(parameter.shape) and about["shape"]:
        return _torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    return _torch.zeros(about["shape"], dtype=dtype)


def _entries_of(who, state):
    """The engine's entries. An optimizer has two: what is known of it, and its tensors."""
    modules = {name: one for name, one in state.items() if isinstance(one, _torch.nn.Module)}
    for name, one in state.items():
        if isinstance(one, _torch.nn.Module):
            yield name, one, _tensors_of(f"{who}: '{name}'", one)
        elif isinstance(one, (bool, int, float, str, _torch.Tensor)):
            yield name, one, one.detach() if isinstance(one, _torch.Tensor) else one
        elif isinstance(one, dict) and one and all(isinstance(value, _torch.Tensor) for value in one.values()):
            yield name, one, [(key, value.detach()) for key, value in one.items()]
        elif isinstance(one, _torch.optim.Optimizer):
            yield name, one, modules
        elif isinstance(one, _LuaObject) and hasattr(one, "load_state_dict"):
            yield name, one, _json.dumps(one.state_dict())
        else:
            raise TypeError(
                f"{who}: '{name}' cannot be saved\n  have  {type(one).__name__}\n"
                "  fix   modules, optimizers, loaders, tensors, dicts of tensors, numbers and strings"
            )


def save_checkpoint(world, path, state, *, is_async=False):
    """Writes a checkpoint: a folder with unsharded tensors in safetensors files, which any number of ranks loads with
    any placements, and Lua, too (modules, tensors and numbers). An earlier one at `path` is replaced in one step.

    state      {"net": net, "optimizer": optimizer, "step": 3}: modules, optimizers of torch.optim, loaders of
               moonhalo.data, tensors, dicts of tensors, numbers, strings. Of plain values those of rank 0 are written
    is_async   copies the tensors and returns a CheckpointSaving, whose wait() comes before the next save

    Collective over `world`. Returns the path, or a CheckpointSaving."""
    entries = []
    for name, one, packed in _entries_of("save_checkpoint", state):
        if isinstance(one, _torch.optim.Optimizer):
            about, tensors = _pack_optimizer(f"save_checkpoint: '{name}'", one, packed)
            entries.append((f"{name}-about", about))
            if tensors:
                entries.append((f"{name}-tensors", tensors))
        else:
            entries.append((name, packed))
    saving = _save_checkpoint(world, str(path), entries, is_async)
    return saving if is_async else saving.wait()


def _unpack_optimizer(where, optimizer, modules, about, load):
    parameters, names = _names_of(where, optimizer, modules)
    about = _json.loads(about)
    shapes = [len(group["params"]) for group in optimizer.param_groups]
    if (
        about["kind"] != type(optimizer).__name__
        or about["names"] != names
        or [group["params"] for group in about["groups"]] != shapes
    ):
        raise ValueError(
            f"{where}: the checkpoint has another optimizer\n  have  {about['kind']} of {about['names']}, here"
            f" {type(optimizer).__name__} of {names}\n  fix   make the optimizer of the same parameters in the same"
            " order"
        )
    states, tensors = [], []
    for parameter, name in zip(parameters, names):
        states.append(None)
        if name in about["states"]:
            states[-1] = {
                key: _like(parameter, value) if isinstance(value, dict) else value
                for key, value in about["states"][name].items()
            }
            tensors += [
                (f"{name}.{key}", value) for key, value in states[-1].items() if isinstance(value, _torch.Tensor)
            ]
    if tensors:
        load(tensors)
    for parameter, state in zip(parameters, states):
        optimizer.state.pop(parameter, None)
        if state is not None:
            optimizer.state[parameter] = state
    for group, saved in zip(optimizer.param_groups, about["groups"]):
        for key, value in saved.items():
            if key == "params":
                continue
            if isinstance(group.get(key), _torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value


def load_checkpoint(world, path, state):
    """Loads the entries of `state`: modules, optimizers and tensors in place, with the placements that they have.
    Returns a dict of all entries, with the numbers and strings of the checkpoint. Names, shapes, dtypes and checksums
    are checked before anything changes. Collective over `world`. ValueError on every rank that names the entry."""
    entries, optimizers = [], []
    for name, one, packed in _entries_of("load_checkpoint", state):
        if isinstance(one, _torch.optim.Optimizer):
            entries.append((f"{name}-about", ""))
            optimizers.append((name, one, packed))
        else:
            entries.append((name, packed))
    with _torch.no_grad():
        found = dict(_load_checkpoint(world, str(path), entries))
        for name, one, modules in optimizers:
            _unpack_optimizer(
                f"load_checkpoint: '{name}'",
                one,
                modules,
                found[f"{name}-about"],
                lambda tensors: _load_checkpoint(world, str(path), [(f"{name}-tensors", tensors)]),
            )
    for name, one in state.items():
        if isinstance(one, _LuaObject):
            one.load_state_dict(_json.loads(found[name]))
    return {name: found[name] if isinstance(one, (bool, int, float, str)) else one for name, one in state.items()}
