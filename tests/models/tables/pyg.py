# SPDX-License-Identifier: Apache-2.0
"""Graph nets: nodes, edges or both cut."""

from table import Field, Integers, Model, image, make

NODES, EDGES = 29, 110
X, EDGE_INDEX = image(NODES, 6), Integers((2, EDGES), NODES)
CUTS = ({0: 0}, {1: 1}, {0: 0, 1: 1})
POINTS = Field((NODES, 3))
OF_EDGES = image(EDGES, 3)
WITH_EDGES = dict(inputs=(X, EDGE_INDEX, OF_EDGES), cuts=({0: 0}, {0: 0, 1: 1, 2: 0}))
WITH_POINTS = dict(inputs=(X, POINTS, EDGE_INDEX), cuts=({0: 0, 1: 0}, {2: 1}))


def net(name, **rest):
    return Model(
        name,
        make(
            "torch_geometric.nn." + name,
            in_channels=6,
            hidden_channels=8,
            num_layers=2,
            out_channels=3,
            dropout=0.2,
            **rest,
        ),
        [X, EDGE_INDEX],
        CUTS,
    )


def conv(name, *words, inputs=(X, EDGE_INDEX), cuts=CUTS, **rest):
    return Model(name, make("torch_geometric.nn." + name, *words, **rest), list(inputs), cuts)


MLP = make("torch_geometric.nn.MLP", [6, 8, 8], norm="layer_norm")

MODELS = [
    net("GCN", norm="batch_norm"),
    net("GraphSAGE"),
    net("GAT", v2=True, heads=2),
    net("GIN", norm="layer_norm"),
    net("EdgeCNN"),
    net(
        "PNA",
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification"],
        deg=make("torch.tensor", [0, 2, 5, 9, 8, 5]),
    ),
    conv("ChebConv", 6, 5, K=3),
    conv("TransformerConv", 6, 5, heads=2, dropout=0.1),
    conv("GraphConv", 6, 5, aggr="max"),
    conv("GatedGraphConv", 8, num_layers=2),
    conv("ARMAConv", 6, 5, num_stacks=2, num_layers=2),
    conv("SGConv", 6, 5, K=2),
    conv("ResGatedGraphConv", 6, 5),
    conv("EdgeConv", make("torch_geometric.nn.MLP", [12, 8, 5], norm=None), aggr="max"),
    conv(
        "NNConv",
        6,
        5,
        make("torch_geometric.nn.MLP", [3, 8, 30], norm=None),
        inputs=(X, EDGE_INDEX, OF_EDGES),
        cuts=({0: 0}, {0: 0, 1: 1, 2: 0}, {2: 0}),
    ),
    conv("GINEConv", MLP, edge_dim=3, **WITH_EDGES),
    conv("GMMConv", 6, 5, dim=3, kernel_size=2, **WITH_EDGES),
    conv("PointTransformerConv", 6, 5, **WITH_POINTS),
    conv("PointNetConv", make("torch_geometric.nn.MLP", [9, 8, 5], norm=None), **WITH_POINTS),
    conv(
        "DeepGCNLayer",
        make("torch_geometric.nn.GENConv", 6, 6, aggr="softmax"),
        make("torch.nn.LayerNorm", 6),
        make("torch.nn.ReLU"),
        block="res+",
        dropout=0.1,
    ),
]
