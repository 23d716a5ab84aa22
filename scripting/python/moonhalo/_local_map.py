# SPDX-License-Identifier: Apache-2.0
"""Functions of plain tensors, called with each rank's blocks."""

import functools as _functools

import torch as _torch
from torch.utils import _pytree

from ._moonhalo import Placement, _local_map


def _entries(who, given):
    """One entry for each tensor: a tuple has one for each, anything else is the entry of a single one."""
    if given is None:
        return []
    entries = []
    for entry in given if isinstance(given, tuple) else (given,):
        entry = [entry] if isinstance(entry, Placement) else entry
        if entry is not None and not all(isinstance(one, Placement) for one in entry):
            raise TypeError(
                f"local_map: {who} has an entry that is neither placements nor None\n  have  {entry!r}\n"
                f"  fix   {who}=([Shard(0)], None), one entry for each tensor"
            )
        entries.append(None if entry is None else list(entry))
    return entries


def local_map(
    func, out_placements, in_placements=None, in_grad_placements=None, device_mesh=None, *, redistribute_inputs=False
):
    """Returns a function that calls `func` with each rank's blocks of its ShardTensors and makes ShardTensors of the
    results. It is meant for code that does not support ShardTensors. The arguments are those of
    torch.distributed.tensor.experimental.local_map.

    out_placements        placements of the result; a tuple with one entry for each tensor of several results; None:
                          it stays a block
    in_placements         a tuple: for each tensor among the arguments, in their order, the placements that it must
                          have; None: any
    in_grad_placements    likewise for gradients; by default Partial for a Replicate where results are cut, else those
                          of the input
    device_mesh           by default that of the first ShardTensor
    redistribute_inputs   redistribute arguments to in_placements; otherwise other placements are an error

    Keyword arguments are passed on unchanged. Differentiable. Collective over the mesh. ValueError for other placements
    and for another number of results."""
    outs = _entries("out_placements", (out_placements,) if out_placements is None else out_placements)
    ins, gradients = _entries("in_placements", in_placements), _entries("in_grad_placements", in_grad_placements)

    @_functools.wraps(func)
    def mapped(*args, **kwargs):
        flat, structure = _pytree.tree_flatten(args)
        positions = [i for i, value in enumerate(flat) if isinstance(value, _torch.Tensor)]
        made = {}

        def on_blocks(blocks):
            values = list(flat)
            for position, block in zip(positions, blocks):
                values[position] = block
            made["flat"], made["structure"] = _pytree.tree_flatten(
                func(*_pytree.tree_unflatten(values, structure), **kwargs)
            )
            if len(made["flat"]) != len(outs):
                raise ValueError(
                    "local_map: the function returned another number of results than out_placements has\n  have "
                    f" {len(made['flat'])} results, {len(outs)} entries\n  fix   one entry for each result, None for a"
                    " number or a block"
                )
            for number, (value, placed) in enumerate(zip(made["flat"], outs)):
                if placed is not None and not isinstance(value, _torch.Tensor):
                    raise TypeError(
                        f"local_map: result {number} has out_placements and is not a tensor\n  have "
                        f" {type(value).__name__}\n  fix   None as its entry"
                    )
            return [value if isinstance(value, _torch.Tensor) else None for value in made["flat"]]

        results = _local_map(
            on_blocks, [flat[i] for i in positions], outs, ins, gradients, redistribute_inputs, device_mesh
        )
        values = [given if result is None else result for given, result in zip(made["flat"], results)]
        return _pytree.tree_unflatten(values, made["structure"])

    return mapped
