# SPDX-License-Identifier: Apache-2.0
"""Blocks of one to three ranks, for programs that run on each of these numbers."""


def rows_of(mesh, three):
    """The rows of each rank: `three` on three ranks, of which the middle one has none; as many on fewer."""
    return {1: [sum(three)], 2: [three[0], three[1] + three[2]], 3: three}[mesh.size()]
