# SPDX-License-Identifier: Apache-2.0
"""Files with named datasets, read and written block by block, and checkpoints that any number of ranks loads."""

import collections as _collections
import json as _json
import math as _math

import torch as _torch
from torch.optim.optimizer import _get_scalar_dtype

from ._moonhalo import Selection, _load_checkpoint, _LuaObject, _save_checkpoint, _scatter_selection
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


def _names_of(optimizer, modules):
    """Names of the optimizer's parameters by position: those in the modules of the state, with their entries' in front
    where parameters of several modules have one; "#3" for a parameter of no module."""
    known = {}
    for entry, module in modules.items():
        for name, parameter in module.named_parameters():
            known.setdefault(id(parameter), (entry, name))
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    places = [known.get(id(one)) for one in parameters]
    users = _collections.Counter(place[1] for place in places if place is not None)
    names = [
        f"#{number}" if place is None else f"{place[0]}/{place[1]}" if users[place[1]] > 1 else place[1]
        for number, place in enumerate(places, 1)
    ]
    return parameters, names


_NUMBERS = {"step", "mu_product", "eta", "mu"}  # of a state; tensors in Python
# Options of PyTorch's that say how a step is computed, not what.
_HOW = {"foreach", "fused", "capturable", "differentiable", "param_names", "initial_lr"}


def _kind_of(optimizer):
    """The optimizer's name, of an Adam with decoupled decay AdamW; and options that the name says."""
    name = type(optimizer).__name__
    if name not in ("Adam", "AdamW"):
        return name, set()
    decoupled = all(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return "AdamW" if decoupled else "Adam", {"decoupled_weight_decay"}


def _number(value):
    """A number, list or text as it is in JSON, which lacks infinite numbers."""
    if isinstance(value, _torch.Tensor):
        value = value.item()
    if isinstance(value, float) and not _math.isfinite(value):
        return {"$number": str(value)}
    return [_number(one) for one in value] if isinstance(value, (list, tuple)) else value


def _plain(value):
    if isinstance(value, dict) and list(value) == ["$number"]:
        return float(value["$number"])
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _plain_json(where, value):
    try:
        return _json.dumps(value)
    except TypeError as error:
        raise TypeError(
            f"{where}: an option or a state of the optimizer cannot be saved\n  have  {error}\n"
            "  fix   numbers, strings, lists and tensors alone"
        ) from None


def _pack_state(parameter, name, state, tensors):
    """A parameter's state; tensors of one element are numbers, as in Lua. Also the names of those that are no tensors
    in Python."""
    fields, numbers = {}, []
    for key, value in state.items():
        is_field = key not in _NUMBERS and isinstance(value, _torch.Tensor)
        if is_field and (value.dim() > 0 or value.shape == parameter.shape):
            tensors.append((f"{key}/{name}", value.detach()))
            fields[key] = {"$tensor": tensors[-1][0]}
        elif value is not None:
            if not isinstance(value, _torch.Tensor):
                numbers.append(key)
            one = _number(value)
            fields[key] = int(one) if key == "step" and one == int(one) else one
    return fields, numbers


def _pack_optimizer(where, optimizer, modules):
    """(JSON, tensors) of a checkpoint's entry, as Lua and C++ have it (io/checkpoint/optimizer_state.h). Under
    "python" is what only PyTorch has."""
    parameters, names = _names_of(optimizer, modules)
    kind, implied = _kind_of(optimizer)
    groups, others, states, numbers, tensors = [], [], {}, set(), []
    left = list(names)
    for group in optimizer.param_groups:
        options = {key: _number(value) for key, value in group.items() if key != "params" and value is not None}
        other = {
            key: value
            for key, value in options.items()
            if key in _HOW or key in implied or (key == "maximize" and not value)
        }
        mine, left = left[: len(group["params"])], left[len(group["params"]) :]
        groups.append({**{key: value for key, value in options.items() if key not in other}, "params": mine})
        others.append(other)
    for parameter, name in zip(parameters, names):
        states[name], plain = _pack_state(parameter, name, optimizer.state.get(parameter, {}), tensors)
        numbers.update(plain)
    about = {"name": kind, "by": "name", "param_groups": groups, "state": states}
    about["python"] = {"param_groups": others, "numbers": sorted(numbers)}
    return _plain_json(where, about), tensors


def _like(parameter, saved):
    """Memory for a saved tensor of a parameter's state: placed as the parameter is, if it has its shape."""
    if saved.shape == parameter.shape and saved.dim() > 0:
        return _torch.zeros_like(parameter, dtype=saved.dtype, requires_grad=False).detach()
    return _torch.zeros(saved.shape, dtype=saved.dtype)


def _entries_of(who, state):
    """The engine's entries; of an optimizer the modules beside it."""
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
    any placements. Lua and C++ load it, too, and Python theirs: an optimizer becomes the one of that name. An earlier
    one at `path` is replaced in one step.

    state      {"net": net, "optimizer": optimizer, "step": 3}: modules, optimizers of torch.optim, loaders of
               moonhalo.data, tensors, dicts of tensors, numbers, strings. Of plain values those of rank 0 are written
    is_async   copies the tensors and returns a CheckpointSaving, whose wait() comes before the next save

    Collective over `world`. Returns the path, or a CheckpointSaving."""
    entries = []
    for name, one, packed in _entries_of("save_checkpoint", state):
        if isinstance(one, _torch.optim.Optimizer):
            packed = _pack_optimizer(f"save_checkpoint: '{name}'", one, packed)
        entries.append((name, packed))
    saving = _save_checkpoint(world, str(path), entries, is_async)
    return saving if is_async else saving.wait()


class _LoadedOptimizer:
    """What a checkpoint has for an optimizer: checked and given memory, then read, then taken over."""

    def __init__(self, where, optimizer, modules, packed):
        text, described = packed
        self.where, self.optimizer, self.about = where, optimizer, _json.loads(text)
        self.parameters, self.names = _names_of(optimizer, modules)
        self.python = self.about.get("python") or {"param_groups": [], "numbers": []}
        self.saved_groups = [{**group} for group in self.about["param_groups"]]
        saved = [name for group in self.saved_groups for name in group["params"]]
        if all(name.startswith("#") for name in self.names) and len(saved) == len(self.names):
            self.names = saved
        kind = _kind_of(optimizer)[0]
        if (
            self.about["name"] != kind
            or sorted(saved) != sorted(self.names)
            or len(self.saved_groups) != len(optimizer.param_groups)
        ):
            raise ValueError(
                f"{where}: the checkpoint has another optimizer\n  have  {self.about['name']} of {saved}, here"
                f" {kind} of {self.names}\n  fix   make the optimizer of the same parameters, and load the module with"
                " it"
            )
        self.groups = self._groups_by_name()
        self.tensors, self.states = self._memory(dict(described))

    def _groups_by_name(self):
        """The number of the saved group of each group here: the one that has its parameters."""
        number_of = {name: number for number, group in enumerate(self.saved_groups) for name in group["params"]}
        found, left = [], list(self.names)
        for number, group in enumerate(self.optimizer.param_groups):
            mine, left = left[: len(group["params"])], left[len(group["params"]) :]
            numbers = {number_of[name] for name in mine} or {number}
            if len(numbers) > 1:
                raise ValueError(
                    f"{self.where}: parameters of one group are in several groups of the checkpoint\n  have  {mine}\n"
                    "  fix   make the groups that were saved"
                )
            found.append(numbers.pop())
        return found

    def _memory(self, described):
        tensors, states = [], []
        for parameter, name in zip(self.parameters, self.names):
            fields = self.about["state"].get(name) or {}
            state = {}
            for key, value in fields.items():
                value = _plain(value)
                if isinstance(value, dict):
                    tensors.append((value["$tensor"], _like(parameter, described[value["$tensor"]])))
                    state[key] = tensors[-1][1]
                elif isinstance(value, (bool, str)) or key in self.python["numbers"]:
                    state[key] = value
                else:
                    state[key] = _torch.tensor(float(value), dtype=_get_scalar_dtype())
            states.append(state)
        return tensors, states

    def take_over(self):
        for parameter, state in zip(self.parameters, self.states):
            self.optimizer.state.pop(parameter, None)
            if state:
                self.optimizer.state[parameter] = state
        others = self.python["param_groups"]
        for group, number in zip(self.optimizer.param_groups, self.groups):
            saved = {**self.saved_groups[number], **(others[number] if number < len(others) else {})}
            for key, value in saved.items():
                value = _plain(value)
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
    entries, optimizers = [], {}
    for name, one, packed in _entries_of("load_checkpoint", state):
        if isinstance(one, _torch.optim.Optimizer):
            optimizers[name] = (one, packed)
        else:
            entries.append((name, packed))
    with _torch.no_grad():
        if optimizers:
            described = dict(_load_checkpoint(world, str(path), [(name, ("", [])) for name in optimizers]))
            for name, (one, modules) in optimizers.items():
                optimizers[name] = _LoadedOptimizer(f"load_checkpoint: '{name}'", one, modules, described[name])
            entries += [(name, ("", loaded.tensors)) for name, loaded in optimizers.items() if loaded.tensors]
        found = dict(_load_checkpoint(world, str(path), entries)) if entries else {}
        for loaded in optimizers.values():
            loaded.take_over()
    for name, one in state.items():
        if isinstance(one, _LuaObject):
            one.load_state_dict(_json.loads(found[name]))
    return {name: found[name] if isinstance(one, (bool, int, float, str)) else one for name, one in state.items()}
