# SPDX-License-Identifier: Apache-2.0
"""More layers of graph nets, and norms, with nodes, edges or both cut."""

from table import Model, image, make
from tables.pyg import EDGE_INDEX, NODES, WITH_EDGES, X, conv

MODELS = [
    conv("TAGConv", 6, 5),
    conv("ClusterGCNConv", 6, 5),
    conv("LEConv", 6, 5),
    conv("FeaStConv", 6, 5, heads=2),
    conv("AGNNConv"),
    conv("APPNP", K=3, alpha=0.1),
    conv("SSGConv", 6, 5, alpha=0.1, K=2),
    conv("MFConv", 6, 5),
    conv("GENConv", 6, 5),
    conv("FAConv", 6, inputs=(X, X, EDGE_INDEX), cuts=({0: 0, 1: 0}, {2: 1})),
    conv("EGConv", 6, 8, num_heads=2),
    conv("GeneralConv", 6, 5),
    conv("LGConv"),
    conv("PDNConv", 6, 5, edge_dim=3, hidden_channels=4, **WITH_EDGES),
    conv("CGConv", 6, dim=3, **WITH_EDGES),
    conv("DNAConv", 8, inputs=(image(NODES, 3, 8), EDGE_INDEX)),
    conv("GCN2Conv", 6, alpha=0.1, inputs=(X, X, EDGE_INDEX), cuts=({0: 0, 1: 0}, {2: 1})),
    conv("AntiSymmetricConv", 6),
    conv("MixHopConv", 6, 5),
    Model("GraphNorm", make("torch_geometric.nn.GraphNorm", 6), [X], ({0: 0},)),
    Model("PairNorm", make("torch_geometric.nn.PairNorm"), [X], ({0: 0},)),
    Model("DiffGroupNorm", make("torch_geometric.nn.DiffGroupNorm", 6, 3), [X], ({0: 0},)),
]
