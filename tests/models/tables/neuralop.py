# SPDX-License-Identifier: Apache-2.0
"""Neural operators, most by FFT."""

from table import Field, Model, image, make, model


def neuralop(name, inputs, cuts=(2, 3), label=None, **rest):
    return model(label or name, "neuralop.models." + name, inputs, cuts, double=True, **rest)


ONE = dict(in_channels=2, out_channels=1, hidden_channels=8, n_layers=2)
FIELD = image(2, 2, 20, 26)

MODELS = [
    neuralop("FNO", image(2, 2, 37), (2, 0), label="FNO_1d", n_modes=(8,), **ONE),
    neuralop("FNO", FIELD, n_modes=(8, 8), **ONE),
    neuralop("FNO", image(1, 2, 10, 12, 14), (2, 4), label="FNO_3d", n_modes=(4, 4, 4), **ONE),
    neuralop("FNO", FIELD, label="FNO_channel_mlp", n_modes=(8, 8), use_channel_mlp=True, norm="instance_norm", **ONE),
    neuralop(
        "TFNO",
        FIELD,
        label="TFNO_tucker",
        n_modes=(8, 8),
        factorization="tucker",
        rank=0.4,
        implementation="factorized",
        **ONE,
    ),
    neuralop(
        "TFNO",
        FIELD,
        label="TFNO_cp",
        n_modes=(8, 8),
        factorization="cp",
        rank=0.4,
        implementation="factorized",
        cuts=(2,),
        **ONE,
    ),
    neuralop(
        "UNO",
        FIELD,
        in_channels=2,
        out_channels=1,
        hidden_channels=8,
        uno_out_channels=[8, 8, 8],
        uno_n_modes=[[4, 4], [4, 4], [4, 4]],
        uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]],
        n_layers=3,
        channel_mlp_skip="linear",
    ),
    neuralop(
        "FNO",
        image(1, 2, 16, 24),
        (2,),
        label="FNO_group_norm",
        n_modes=(6, 6),
        norm="group_norm",
        complex_data=False,
        **ONE,
    ),
    neuralop(
        "CODANO",
        image(1, 2, 16, 24),
        (2, 3),
        hidden_variable_codimension=4,
        lifting_channels=8,
        n_layers=2,
        n_modes=[[4, 4], [4, 4]],
        per_layer_scaling_factors=[[1, 1], [1, 1]],
        n_heads=[2, 2],
        attention_scaling_factors=[1, 1],
        use_positional_encoding=False,
    ),
    neuralop("UQNO", FIELD, cuts=(2,), base_model=make("neuralop.models.FNO", n_modes=(6, 6), **ONE)),
    Model(
        "FNOBlocks",
        make(
            "neuralop.layers.fno_block.FNOBlocks",
            in_channels=4,
            out_channels=4,
            n_modes=(6, 6),
            n_layers=1,
            norm="instance_norm",
        ),
        image(1, 4, 18, 22),
        (2, 3),
        double=True,
    ),
    Model(
        "SpectralConv",
        make("neuralop.layers.spectral_convolution.SpectralConv", 3, 4, n_modes=(6, 6)),
        image(2, 3, 17, 21),
        (2, 3),
        double=True,
    ),
    Model(
        "NeighborEmbedding",
        make("neuralop.layers.embeddings.SinusoidalEmbedding", in_channels=2, num_frequencies=3),
        Field((1, 19, 2)),
        (1,),
    ),
]
