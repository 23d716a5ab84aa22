# SPDX-License-Identifier: Apache-2.0
"""parallelize_module and distribute_module for torch.nn modules. The engine decides what a plan means; here the modules
are walked."""

import inspect as _inspect
import json as _json
import os as _os
import warnings as _warnings
import weakref as _weakref

import torch as _torch

from ._moonhalo import DeviceMesh, Placement, _distribute_parameters, _move_arguments, _resolve_plan
from ._placements import Replicate

_done = _weakref.WeakKeyDictionary()  # modules that parallelize_module has divided

# ---- Styles ----------------------------------------------------------------------------------------------------------


class ParallelStyle:
    """The way in which one module is divided. A style of one's own derives from this class and has `_apply(module,
    device_mesh)`, which replaces parameters by ShardTensors."""

    def _options(self):
        return {}

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._options().items())})"


class _Builtin(ParallelStyle):
    def __init__(self, **options):
        self._given = {name: value for name, value in options.items() if value is not None}

    def _options(self):
        return self._given


class ColwiseParallel(_Builtin):
    """Divides a Linear or an Embedding by columns: each rank computes a part of the outputs."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=None):
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output)


class RowwiseParallel(_Builtin):
    """Divides a Linear or an Embedding by rows: each rank has a part of the inputs, and results are summed."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=None):
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output)


class PairwiseParallel(_Builtin):
    """Divides the linear layers in a module in turn by columns and by rows."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=None):
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output)


class SequenceParallel(_Builtin):
    """Keeps a norm's or dropout's parameters on every rank; its input is cut along the sequence dim."""

    def __init__(self, *, sequence_dim=None, use_local_output=None):
        super().__init__(sequence_dim=sequence_dim, use_local_output=use_local_output)


class PrepareModuleInput(_Builtin):
    """Redistributes the arguments of a module before its forward."""

    def __init__(
        self,
        *,
        input_layouts=None,
        desired_input_layouts=None,
        input_kwarg_layouts=None,
        desired_input_kwarg_layouts=None,
        use_local_output=None,
    ):
        super().__init__(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_output,
        )


class PrepareModuleOutput(_Builtin):
    """Redistributes the results of a module after its forward."""

    def __init__(self, *, output_layouts=None, desired_output_layouts=None, use_local_output=None):
        super().__init__(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )


# ---- Plans -----------------------------------------------------------------------------------------------------------


def _encoded(value, custom):
    """`value` as JSON of a plan (engine/model/parallel_plan.h). Styles without options of ours are numbered."""
    if isinstance(value, _Builtin):
        return {"style": type(value).__name__, **_encoded(value._options(), custom)}
    if hasattr(value, "_apply") and not isinstance(value, (type, _torch.nn.Module)):
        custom.append(value)
        return {"style": "custom", "number": len(custom)}
    if isinstance(value, Placement):
        return repr(value)
    if isinstance(value, dict):
        return {key: _encoded(one, custom) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(one, custom) for one in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(
        f"parallelize_module: a plan has styles, placements, dicts and lists\n  have  {type(value).__name__}\n"
        '  fix   {"fc1": ColwiseParallel()}, or {"parameter": {"fc1.weight": [Shard(0)]}}'
    )


def _read_plan(plan):
    if isinstance(plan, (str, _os.PathLike)):
        with open(plan, encoding="utf-8") as file:
            return file.read(), []
    if not isinstance(plan, dict) and not hasattr(plan, "_apply") and not isinstance(plan, _Builtin):
        raise TypeError(
            f"parallelize_module: the plan is neither a style nor a dict nor the path of a JSON file\n"
            f'  have  {type(plan).__name__}\n  fix   {{"fc1": ColwiseParallel()}}'
        )
    custom = []
    return _json.dumps(_encoded(plan, custom)), custom


def slots_of(module):
    """(registry, name, tensor) of the module's own parameters and buffers."""
    return [
        (registry, name, tensor)
        for registry in (module._parameters, module._buffers)
        for name, tensor in registry.items()
        if tensor is not None
    ]


def _facts(modules):
    return [
        (
            name,
            [kind.__name__ for kind in type(module).__mro__ if issubclass(kind, _torch.nn.Module)],
            [(slot, list(tensor.shape)) for _, slot, tensor in slots_of(module)],
        )
        for name, module in modules
    ]


def as_parameter(tensor, like):
    """`tensor`, which takes the place of the parameter `like`, as a parameter: the same object, whose gradient the
    engine places."""
    if tensor is not like:
        tensor.__class__ = type(like) if isinstance(like, _torch.nn.Parameter) else _torch.nn.Parameter
    return tensor


def check_no_hooks(who, name, tensor):
    """Hooks stay with the parameter that another tensor replaces, and would never be called."""
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise NotImplementedError(
            f"{who}: the parameter '{name}' has gradient hooks, and another tensor takes its place, where they would "
            f"never be called\n  have  a parameter of shape {tuple(tensor.shape)} with hooks\n  fix   register the "
            f"hooks after {who}"
        )


def _place_tensors(who, modules, resolved, mesh, src, sharded):
    """Replaces parameters and buffers. A tensor in several modules stays one."""
    whole = ([Replicate()] * mesh.ndim, False, None)
    slots = [
        (
            f"{path}.{name}" if path else name,
            tensor,
            registry,
            name,
            resolved[i]["tensors"].get(name, whole) if resolved else whole,
        )
        for i, (path, module) in enumerate(modules)
        for registry, name, tensor in slots_of(module)
    ]
    placed = _distribute_parameters([(name, tensor, *plan) for name, tensor, _, _, plan in slots], mesh, src, sharded)
    for (path, tensor, _, _, _), one in zip(slots, placed):
        if one is not None:
            check_no_hooks(who, path, tensor)
    new = {}
    for (_, tensor, registry, name, _), one in zip(slots, placed):
        if one is not None:
            if id(tensor) not in new:
                new[id(tensor)] = as_parameter(one, tensor) if isinstance(tensor, _torch.nn.Parameter) else one
            registry[name] = new[id(tensor)]


# ---- Arguments and results -------------------------------------------------------------------------------------------


def _move(jobs, mesh, where):
    """Redistributes those of `jobs` [(plan, value, put)] that are tensors, and calls put(moved) for each."""
    jobs = [job for job in jobs if isinstance(job[1], _torch.Tensor)]
    if jobs:
        for (_, _, put), moved in zip(
            jobs, _move_arguments([job[0] for job in jobs], [job[1] for job in jobs], mesh, where)
        ):
            put(moved)


def _input_hook(path, module, plan, mesh):
    where = f"'{path + '.' if path else ''}input'"
    positions, names = plan
    parameters = _inspect.signature(module.forward).parameters
    listed = [name for name, one in parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    is_open = any(one.kind == one.VAR_KEYWORD for one in parameters.values())
    for name in names:
        if name not in parameters and not is_open:
            raise ValueError(
                f"parallelize_module: {where} names '{name}', forward has no such argument\n  have "
                f" {', '.join(parameters)}"
            )

    def hook(module, args, kwargs):
        args, kwargs = list(args), dict(kwargs)
        jobs = []

        def add(argument, store, key):
            jobs.append((argument, store[key], lambda moved: store.__setitem__(key, moved)))

        for position, argument in positions.items():
            if position < len(args):
                add(argument, args, position)
            elif position < len(listed) and listed[position] in kwargs:
                add(argument, kwargs, listed[position])
            else:
                raise ValueError(f"{where} lists {position + 1} arguments, the call has {len(args) + len(kwargs)}")
        for name, argument in names.items():
            if name in kwargs:
                add(argument, kwargs, name)
            elif name in listed and listed.index(name) < len(args):
                add(argument, args, listed.index(name))
        _move(jobs, mesh, where)
        return tuple(args), kwargs

    return hook


def _output_hook(path, plan, mesh):
    where = f"'{path + '.' if path else ''}output'"
    positions, names = plan

    def hook(module, args, output):
        is_list, is_dict = isinstance(output, (list, tuple)), isinstance(output, dict)
        store = dict(output) if is_dict else list(output) if is_list else [output]
        keys = list(store) if is_dict else range(len(store))
        jobs = []
        for position, argument in positions.items():
            if position >= len(keys):
                raise ValueError(f"{where} lists {position + 1} results, there are {len(keys)}")
            key = keys[position]
            jobs.append((argument, store[key], lambda moved, key=key: store.__setitem__(key, moved)))
        for name, argument in names.items():
            if not is_dict or name not in store:
                raise ValueError(f"{where}: no result is named '{name}'")
            jobs.append((argument, store[name], lambda moved, key=name: store.__setitem__(key, moved)))
        _move(jobs, mesh, where)
        if is_dict:
            return type(output)(**store) if type(output) is not dict else store
        if is_list:
            return type(output)(*store) if hasattr(output, "_fields") else type(output)(store)
        return store[0]

    return hook


# ---- For users -------------------------------------------------------------------------------------------------------


def _check(who, module, mesh):
    if not isinstance(module, _torch.nn.Module):
        raise TypeError(
            f"{who}: the first argument is not a torch.nn.Module\n  have  {type(module).__name__}\n"
            f"  fix   {who}(net, mesh, ...)"
        )
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"{who}: the mesh is not a DeviceMesh of moonhalo\n  have  {type(mesh).__name__}\n"
            f'  fix   {who}(net, moonhalo.init_device_mesh(world, "cpu", [world.size]), ...)'
        )


def parallelize_module(
    module, device_mesh, parallelize_plan, *, src_data_rank=0, unmatched="error", is_model_sharded=False
):
    """Divides `module` over a mesh as a plan says, in place, and returns it: parameters and buffers become
    ShardTensors. Collective over the mesh. Make optimizers afterwards. A second call warns and changes nothing.

    parallelize_plan   {"blocks.*.fc1": ColwiseParallel(), "blocks.*.fc2": RowwiseParallel()}, one style for the module
    itself,
                       {"parameter": {"fc1.weight": [Shard(0)]}, "forward": {"fc1.input": [[Replicate()]]}}, or the path
                       of such a JSON file (docs/parallelism.md)
    src_data_rank      the rank whose values count; None: each rank takes its blocks from its own copy, and the copies
    must be equal unmatched          "error" or "warn": names in the plan that match nothing is_model_sharded   each
    rank's tensors are its blocks already, cut as the plan says

    Raises ValueError for names that match nothing, dims out of range and placements that do not fit the mesh."""
    _check("parallelize_module", module, device_mesh)
    if unmatched not in ("error", "warn"):
        raise ValueError(f'parallelize_module: unmatched is \'{unmatched}\'\n  have  "error", "warn"')
    if module in _done:
        if device_mesh.rank == 0:
            _warnings.warn(
                f"parallelize_module: this {type(module).__name__} was parallelized before, nothing is changed"
            )
        return module
    plan, custom = _read_plan(parallelize_plan)
    modules = list(module.named_modules())
    resolved = _resolve_plan(plan, _facts(modules), device_mesh, unmatched == "warn")
    inputs = [
        (one, _input_hook(path, one, plan["inputs"], device_mesh))
        for (path, one), plan in zip(modules, resolved)
        if plan["inputs"]
    ]
    outputs = [
        (one, _output_hook(path, plan["outputs"], device_mesh))
        for (path, one), plan in zip(modules, resolved)
        if plan["outputs"]
    ]
    for (_, one), plan in zip(modules, resolved):
        for number in plan["custom"]:
            custom[number - 1]._apply(one, device_mesh)
    _place_tensors("parallelize_module", modules, resolved, device_mesh, src_data_rank, is_model_sharded)
    for one, hook in inputs:
        one.register_forward_pre_hook(hook, with_kwargs=True)
    for one, hook in outputs:
        one.register_forward_hook(hook)
    _done[module] = True
    return module


def distribute_module(module, device_mesh, partition_fn=None, input_fn=None, output_fn=None):
    """Makes ShardTensors of all parameters and buffers of a module, in place, and returns it. Collective over the mesh.

    partition_fn(name, module, mesh)  is called for the module itself (name "") and every module in it, and replaces
                                      what it likes by ShardTensors; everything else becomes Replicate
    input_fn(module, args, mesh)      before the module's forward: returns other arguments, or None
    output_fn(module, output, mesh)   after it: returns another result, or None."""
    _check("distribute_module", module, device_mesh)
    modules = list(module.named_modules())
    if partition_fn is not None:
        for name, one in modules:
            partition_fn(name, one, device_mesh)
    _place_tensors("distribute_module", modules, None, device_mesh, 0, False)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda self, args: input_fn(self, args, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda self, args, output: output_fn(self, output, device_mesh))
    return module
