# SPDX-License-Identifier: Apache-2.0
"""Data parallel training of torch.nn modules: fully_shard, replicate, and what goes with them."""

import functools as _functools
import warnings as _warnings

import torch as _torch
from torch.utils import _pytree
from torch.utils.weak import WeakIdKeyDictionary as _WeakIdKeyDictionary

from ._moonhalo import (
    DeviceMesh,
    is_shard_tensor,
    local_batch,
    placements,
    to_local,
    _check_samples,
    _clip_grad_norm,
    _constant_of_samples,
    _copy_tensor,
    _finish_grad_sync,
    _is_constant,
    _is_on_slice,
    _is_stored_already,
    _make_unit,
    _register_local_loss_mesh,
    _set_requires_gradient_sync,
    _store_parameter,
)
from ._parallel import as_parameter, check_no_hooks, slots_of
from ._parameter_casts import InPlaces

_placed = _WeakIdKeyDictionary()  # tensor -> what has replaced it; None: it is such a tensor itself, and stays


def _slots(root):
    """(registry, name, path, tensor, is_parameter) of all parameters and buffers."""
    return [
        (registry, name, f"{path}.{name}" if path else name, tensor, registry is module._parameters)
        for path, module in root.named_modules()
        for registry, name, tensor in slots_of(module)
    ]


def _check_given_up(who, path, tensor):
    """Another tensor is to take the place of this one."""
    if tensor.grad is not None:
        raise ValueError(
            f"{who}: '{path}' has a gradient\n  fix   call {who} before the first backward, and make optimizers after"
            " it"
        )
    check_no_hooks(who, path, tensor)


def _place_tensors(who, root, mesh, min_numel, unit_rows):
    """Replaces parameters and buffers. A tensor in several modules stays one, also where each of them is a unit."""
    stores = who == "fully_shard"
    slots = _slots(root)
    for _, _, path, old, is_parameter in slots:
        stays = _placed[old] is None if old in _placed else stores and is_parameter and _is_stored_already(old, mesh)
        if not stays:
            _check_given_up(who, path, old)
    for registry, name, path, old, is_parameter in slots:
        if old not in _placed:
            where = f"{who}: '{path}'"
            if stores and is_parameter:
                new = _store_parameter(old, mesh, min_numel, unit_rows, where)
            else:
                new = _copy_tensor(old, mesh, where)
            new = as_parameter(new, old) if is_parameter else new
            _placed[old] = new
            _placed[new] = None
        if _placed[old] is not None:
            registry[name] = _placed[old]


def _input_hook(who, mesh):
    """Makes tensors of all ranks' samples of the arguments, and compares what they may mean at the first call."""
    checked = {}

    def hook(module, args, kwargs):
        paths = _pytree.tree_flatten_with_path((args, kwargs))[0]
        tensors = [
            ("argument " + _pytree.keystr(path[1:]), one)
            for path, one in paths
            if isinstance(one, _torch.Tensor) and (not is_shard_tensor(one) or _is_on_slice(one, mesh))
        ]
        signature = tuple((name, _is_constant(one)) for name, one in tensors)
        if mesh.size() > 1 and not checked.get(signature):
            checked[signature] = _check_samples(tensors, mesh, f"{who}: {type(module).__name__}")

        def place(one):
            return _constant_of_samples(one, mesh) if _is_constant(one) else local_batch(one, mesh)

        return _pytree.tree_map_only(_torch.Tensor, place, (args, kwargs))

    return hook


def _output_hook(who, mesh):
    """This rank's block, for a loop that was written for one rank of several: the mean of their gradients is needed."""

    def own_block(tensor):
        if not is_shard_tensor(tensor):
            return tensor
        for placement in placements(tensor):
            if placement.is_partial() or placement.is_shard() and placement.dim != 0:
                raise ValueError(
                    f'{who}: output="local" takes results that are cut by samples alone\n  have  {placement}'
                )
        block = to_local(tensor)
        if block.requires_grad:
            block.register_hook(lambda grad: grad / mesh.size())
        return block

    return lambda module, args, output: _pytree.tree_map_only(_torch.Tensor, own_block, output)


class _Unit:
    """What fully_shard or replicate did to a module, kept in it. Of fully_shard it gathers the parameters before the
    forward. With param_dtype their casts take their places meanwhile."""

    def __init__(self, who, settings, policy):
        self.who, self.settings, self.policy = who, settings, policy
        self.hooks = []  # those of the outermost module
        self.unit = None  # of the engine
        self.running = []  # the casts of each forward under way
        self.returned = False

    def __deepcopy__(self, memo):
        """A copy of the module has a unit of its own, which its first forward makes: its parameters are not all there
        yet."""
        return _Unit(self.who, self.settings, self.policy)

    @staticmethod
    def of(module):
        return module.__dict__.get("_moonhalo_unit")

    def make(self, module):
        self.unit = _make_unit(
            list(module.parameters()), *self.settings, self.policy("param_dtype"), self.policy("reduce_dtype")
        )

    def registries(self, module):
        yield module._parameters
        for child in module.children():
            if _Unit.of(child) is None:
                yield from self.registries(child)

    def before(self, module, args, kwargs):
        if self.unit is None:
            for below in reversed(list(module.modules())):  # inner units first
                if _Unit.of(below) is not None and _Unit.of(below).unit is None:
                    _Unit.of(below).make(below)
        self.unit.before_forward()
        self.running.append(InPlaces())
        dtype = self.policy("param_dtype")
        if dtype is None:
            return None
        for registry in self.registries(module):
            for name, parameter in registry.items():
                if parameter is not None:
                    self.running[-1].put(registry, name, self.unit.cast_of(parameter))
        if self.policy("cast_forward_inputs") is False:
            return None
        return _pytree.tree_map_only(
            _torch.Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, (args, kwargs)
        )

    def after(self, module, args, output):
        self.unit.after_forward([one for one in _pytree.tree_leaves(output) if isinstance(one, _torch.Tensor)])
        self.running.pop().restore()
        self.returned = True
        dtype = self.policy("output_dtype")
        if dtype is None:
            return None
        return _pytree.tree_map_only(
            _torch.Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, output
        )

    def always(self, module, args, output):
        """Is called last, also where the forward has thrown: then `after` has not been called."""
        if self.returned:
            self.returned = False
        elif self.running:
            self.unit.forward_failed()
            self.running.pop().restore()


def _policy(given, name):
    return getattr(given, name, None)


def _check_arguments(who, module, mesh, output, bucket_cap_mb):
    if not isinstance(module, _torch.nn.Module):
        raise TypeError(
            f"{who}: the first argument is not a torch.nn.Module\n  have  {type(module).__name__}\n"
            f'  fix   {who}(net, mesh=mesh["data"])'
        )
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"{who}: the mesh is not a DeviceMesh of moonhalo\n  have  {type(mesh).__name__}\n"
            f'  fix   {who}(net, mesh=mesh["data"])'
        )
    if who == "fully_shard" and mesh.ndim > 2:
        raise ValueError(
            f"{who}: {mesh} has {mesh.ndim} dims\n  fix   give a slice of one dim, or of two, [copies, blocks]"
        )
    if output not in ("shard", "local"):
        raise ValueError(f'{who}: output is "shard" or "local"\n  have  {output!r}')
    if not bucket_cap_mb > 0:
        raise ValueError(f"{who}: bucket_cap_mb is a number of megabytes above 0\n  have  {bucket_cap_mb}")


def _remove_hooks_of_inner_units(module):
    """The outermost unit alone takes batches in and gives results out."""
    for below in module.modules():
        for hook in _Unit.of(below).hooks if _Unit.of(below) is not None else ():
            hook.remove()


def _make(
    who,
    module,
    mesh,
    *,
    min_numel=1024,
    unit_rows=1,
    input=True,
    output="shard",
    reshard_after_forward=True,
    reshard_after_backward=True,
    prefetch=1,
    bucket_cap_mb=32,
    mp_policy=None,
):
    _check_arguments(who, module, mesh, output, bucket_cap_mb)
    if _Unit.of(module) is not None:
        if mesh.rank == 0:
            _warnings.warn(
                f"{who}: {_Unit.of(module).who} was called for this {type(module).__name__} before, nothing is changed"
            )
        return module
    _place_tensors(who, module, mesh, min_numel, unit_rows)
    _remove_hooks_of_inner_units(module)
    settings = (
        reshard_after_forward,
        who == "fully_shard" and reshard_after_backward,
        prefetch,
        max(1, int(bucket_cap_mb * 2**20)),
    )
    unit = _Unit(who, settings, _functools.partial(_policy, mp_policy))
    module.__dict__["_moonhalo_unit"] = unit
    if input:
        unit.hooks.append(module.register_forward_pre_hook(_input_hook(who, mesh), prepend=True, with_kwargs=True))
    unit.make(module)
    if who == "fully_shard":
        module.register_forward_pre_hook(unit.before, with_kwargs=True)
        module.register_forward_hook(unit.after)
        module.register_forward_hook(unit.always, always_call=True)
    if output == "local":
        _register_local_loss_mesh(mesh)
        unit.hooks.append(module.register_forward_hook(_output_hook(who, mesh)))
    return module


def fully_shard(
    module,
    *,
    mesh,
    min_numel=1024,
    unit_rows=1,
    input=True,
    output="shard",
    reshard_after_forward=True,
    reshard_after_backward=True,
    prefetch=1,
    bucket_cap_mb=32,
    mp_policy=None,
):
    """Trains `module` data parallel over `mesh` (one dim, or two: [copies, blocks]) with every parameter kept in
    blocks: the memory of parameters, gradients and states of optimizers is divided by the ranks. In place; returns the
    module. Call it for inner modules first and make optimizers afterwards. Collective over the whole mesh.

    input        True: plain tensors that the outermost such module is called with are this rank's own samples, unless
    `constant` marks
                 them. False: they count as replicated
    output       "shard": results are ShardTensors of all ranks' samples. "local": the outermost module returns this
    rank's block, and
                 gradients are those of the mean of the ranks' losses, as for a loop that was written for one rank of
                 several
    mp_policy    torch.distributed.fsdp.MixedPrecisionPolicy: param_dtype, reduce_dtype, output_dtype,
    cast_forward_inputs min_numel    parameters with fewer elements are copied to every rank unit_rows    blocks begin
    at multiples of this many rows reshard_after_forward, reshard_after_backward, prefetch, bucket_cap_mb: when gathered
    parameters are freed, how many units are
                 gathered ahead, and how much of gradients one message has. Results do not depend on them

    Raises ValueError for a parameter that has a gradient already."""
    return _make(
        "fully_shard",
        module,
        mesh,
        min_numel=min_numel,
        unit_rows=unit_rows,
        input=input,
        output=output,
        reshard_after_forward=reshard_after_forward,
        reshard_after_backward=reshard_after_backward,
        prefetch=prefetch,
        bucket_cap_mb=bucket_cap_mb,
        mp_policy=mp_policy,
    )


def replicate(module, *, mesh, input=True, output="shard", bucket_cap_mb=32):
    """Like fully_shard, with a copy of every parameter on all ranks of `mesh` (DistributedDataParallel).
    Collective over the mesh."""
    return _make("replicate", module, mesh, input=input, output=output, bucket_cap_mb=bucket_cap_mb)


def _listed(parameters):
    if isinstance(parameters, _torch.nn.Module):
        parameters = parameters.parameters()
    return [parameters] if isinstance(parameters, _torch.Tensor) else list(parameters)


@_torch.no_grad()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """torch.nn.utils.clip_grad_norm_ for parameters that are plain or ShardTensors of any placements: one number is
    reduced over the ranks, and each element counts once. `parameters`: a module, a tensor or several. Returns the norm
    before clipping as a plain tensor. Collective over the mesh."""
    return _clip_grad_norm(_listed(parameters), float(max_norm), float(norm_type), error_if_nonfinite)


def finish_grad_sync(parameters):
    """Reduces gradients that are still sums over ranks, several in one message; steps of optimizers do it themselves.
    `parameters`: a module, a tensor or several. Collective over their meshes."""
    _finish_grad_sync(_listed(parameters))


def set_requires_gradient_sync(parameters, requires_gradient_sync):
    """False: gradients of modules of fully_shard and replicate are added up over several backward passes without
    messages, until finish_grad_sync or a step. The same on all ranks; not collective."""
    _set_requires_gradient_sync(_listed(parameters), requires_gradient_sync)
