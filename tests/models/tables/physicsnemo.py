# SPDX-License-Identifier: Apache-2.0
from table import Field, Model, image, make


def nemo(path, inputs, cuts=(2, 3), label=None, **rest):
    options = {key: rest.pop(key) for key in ("train", "double", "ranks") if key in rest}
    return Model(label or path.split(".")[-1], make("physicsnemo.models." + path, **rest), inputs, cuts, **options)


SONG = dict(img_resolution=[16, 24], in_channels=3, out_channels=2, model_channels=8, channel_mult=[1, 2], num_blocks=1, attn_resolutions=[12])
NOISE = {0: image(2, 3, 16, 24), 1: Field((2,), positive=True), 2: None}

MODELS = [
    nemo("fno.FNO", image(1, 2, 18, 23), in_channels=2, out_channels=1, decoder_layer_size=8, latent_channels=8, num_fno_layers=2, num_fno_modes=4, padding=3),
    nemo("fno.FNO", image(1, 2, 9, 11, 10), (2, 4), label="FNO_3d", dimension=3, in_channels=2, out_channels=1, decoder_layer_size=8, latent_channels=8,
         num_fno_layers=2, num_fno_modes=3, padding=2),
    nemo("afno.AFNO", image(1, 2, 24, 32), double=True, inp_shape=[24, 32], in_channels=2, out_channels=2, patch_size=[4, 4], embed_dim=16, depth=2, num_blocks=2,
         drop_rate=0.1),
    nemo("afno.ModAFNO", {0: image(1, 2, 24, 32), 1: Field((1, 1), positive=True)}, ({0: 2}, {0: 3}), double=True, inp_shape=[24, 32], in_channels=2, out_channels=2,
         patch_size=[4, 4], embed_dim=16, depth=2, num_blocks=2, embed_model={"dim": 64, "depth": 1, "method": "sinusoidal"}),
    nemo("unet.UNet", image(1, 2, 16, 16, 20), (2, 4), in_channels=2, out_channels=1, model_depth=2, feature_map_channels=[4, 4, 8, 8], num_conv_blocks=2),
    nemo("pix2pix.Pix2Pix", image(1, 2, 24, 28), in_channels=2, out_channels=1, dimension=2, conv_layer_size=4, n_downsampling=2, n_upsampling=2, n_blocks=1,
         batch_norm=True),
    nemo("pix2pix.Pix2PixUnet", image(2, 2, 32, 32), in_channels=2, out_channels=1, n_downsampling=4, filter_size=4),
    nemo("srrn.SRResNet", image(1, 2, 6, 8, 9), (2, 4), in_channels=2, out_channels=1, conv_layer_size=8, n_resid_blocks=2, scaling_factor=2),
    nemo("dlwp.DLWP", image(1, 2, 6, 16, 16), (3, 4, 2), nr_input_channels=2, nr_output_channels=2, nr_initial_channels=4, depth=2, ranks=(2,)),
    nemo("mlp.FullyConnected", image(13, 4), (0,), in_features=4, layer_size=8, out_features=3, num_layers=2, skip_connections=True, weight_norm=True),
    nemo("pangu.Pangu", image(1, 72, 32, 48), ranks=(2,), img_size=(32, 48), patch_size=(2, 4, 4), embed_dim=12, num_heads=(2, 4, 4, 2), window_size=(2, 4, 6)),
    nemo("fengwu.Fengwu", image(1, 14, 32, 48), ranks=(2,), img_size=(32, 48), pressure_level=2, embed_dim=12, num_heads=(2, 4, 4, 2), window_size=(2, 4, 6)),
    nemo("rnn.rnn_one2many.One2ManyRNN", image(1, 2, 1, 16, 20), (3, 4), input_channels=2, dimension=2, nr_latent_channels=8, nr_residual_blocks=1,
         nr_downsamples=2, nr_tsteps=2),
    nemo("rnn.rnn_seq2seq.Seq2SeqRNN", image(1, 2, 2, 16, 20), (3,), input_channels=2, dimension=2, nr_latent_channels=8, nr_residual_blocks=1, nr_downsamples=2,
         nr_tsteps=2),
    nemo("diffusion_unets.SongUNet", NOISE, ({0: 2}, {0: 3}), dropout=0.1, **SONG),
    nemo("diffusion_unets.SongUNet", NOISE, ({0: 2},), label="SongUNet_residual", embedding_type="fourier", channel_mult_noise=2, encoder_type="residual",
         resample_filter=[1, 3, 3, 1], dropout=0.1, **SONG),
    nemo("diffusion_unets.SongUNetPosEmbd", {**NOISE, 0: image(2, 3, 16, 24)}, ({0: 2},), ranks=(2,), dropout=0.1, N_grid_channels=4,
         **{**SONG, "in_channels": 7}),
    nemo("diffusion_unets.DhariwalUNet", {0: image(2, 3, 16, 16), 1: Field((2,), positive=True), 2: None}, ({0: 2}, {0: 3}), img_resolution=16, in_channels=3,
         out_channels=2, model_channels=64, channel_mult=[1, 1], num_blocks=1, attn_resolutions=[8]),
    nemo("dit.DiT", {0: image(2, 2, 16, 24), 1: Field((2,), positive=True), 2: None}, ({0: 2}, {0: 3}), input_size=(16, 24), in_channels=2, patch_size=(4, 4),
         hidden_size=16, depth=2, num_heads=2),
    nemo("dpot.DPOTNet", image(1, 32, 32, 1, 2), (1, 2), inp_shape=32, patch_size=4, in_channels=2, out_channels=2, in_timesteps=1, num_blocks=2, embed_dim=16,
         out_layer_dim=8, depth=2, modes=4),
    nemo("transolver.Transolver", {"fx": image(1, 37, 2), "embedding": image(1, 37, 3)}, ({"fx": 1, "embedding": 1},), functional_dim=2, embedding_dim=3, out_dim=2,
         n_layers=2, n_hidden=16, n_head=2, slice_num=4, use_te=False),
    nemo("transolver.Transolver", {"fx": image(1, 12, 14, 2), "embedding": image(1, 12, 14, 3)}, ({"fx": 1, "embedding": 1},), label="Transolver_2d",
         functional_dim=2, embedding_dim=3, out_dim=2, n_layers=2, n_hidden=16, n_head=2, slice_num=4, use_te=False, structured_shape=(12, 14)),
    nemo("flare.FLARE", {"fx": image(1, 37, 2), "embedding": image(1, 37, 3)}, ({"fx": 1, "embedding": 1},), functional_dim=2, embedding_dim=3, out_dim=2,
         n_layers=2, n_hidden=16, n_head=2),
]
