# SPDX-License-Identifier: Apache-2.0
"""Times of PyTorch's compiled flex_attention with a block mask, for the cases of bench_na: 8 heads of 32, forward and
backward, best of ten."""

import sys
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, HEAD_DIM = 8, 32
CASES = [
    ("2-D 128 x 128, window 7 x 7", (128, 128), 7),
    ("2-D 128 x 128, window 13 x 13", (128, 128), 13),
    ("1-D 16384, window 49", (16384,), 49),
    ("3-D 24 x 24 x 24, window 7 x 7 x 7", (24, 24, 24), 7),
]


def mask_of(dims, window):
    """Keys within the window of a query; windows at an edge are moved inside, as neighbourhood attention does."""

    def inside(b, h, q, k):
        good = True
        for extent in reversed(dims):
            q_here, k_here = q % extent, k % extent
            first = torch.clamp(q_here - window // 2, 0, extent - window)
            good = good & (k_here >= first) & (k_here < first + window)
            q, k = q // extent, k // extent
        return good

    return inside


def best(action, rounds=10):
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        action()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


def main():
    compiled = torch.compile(flex_attention, dynamic=False)
    for dtype, cases in ((torch.bfloat16, CASES), (torch.float32, CASES[:1])):  # each takes ten seconds to compile
        for name, dims, window in cases:
            tokens = 1
            for extent in dims:
                tokens *= extent
            begin = time.monotonic()
            try:
                mask = create_block_mask(mask_of(dims, window), None, None, tokens, tokens, device="cuda")
                q, k, v = (
                    torch.randn(1, HEADS, tokens, HEAD_DIM, device="cuda", dtype=dtype, requires_grad=True)
                    for _ in range(3)
                )
                grad = torch.randn_like(q)
                out = compiled(q, k, v, block_mask=mask)
                torch.autograd.grad(out, (q, k, v), grad)
                forward = best(lambda: compiled(q, k, v, block_mask=mask))
                both = best(lambda: torch.autograd.grad(compiled(q, k, v, block_mask=mask), (q, k, v), grad))
                print(
                    f"flex_attention {str(dtype)[6:]:9} {name:36} forward {forward:8.3f} ms  backward"
                    f" {both - forward:8.3f} ms  (compiled in {time.monotonic() - begin:.0f} s)",
                    flush=True,
                )
            except Exception as error:  # noqa: BLE001  one case that PyTorch refuses must not hide the others
                print(
                    f"flex_attention {str(dtype)[6:]:9} {name:36} error: {str(error).splitlines()[0][:150]}", flush=True
                )


sys.exit(main())
