# SPDX-License-Identifier: Apache-2.0
"""Denoisers and autoencoders of diffusion models."""
from table import Field, Model, image, make

STEP = make("torch.tensor", [7])
LATENT = image(1, 4, 16, 24)


def diffuser(name, inputs, cuts, label=None, **rest):
    options = {key: rest.pop(key) for key in ("train", "double", "ranks", "method") if key in rest}
    return Model(label or name, make("diffusers." + name, **rest), inputs, cuts, **options)


LEVELS = dict(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4)
TEXT = image(1, 5, 12)

MODELS = [
    diffuser("UNet2DModel", [LATENT, STEP], ({0: 2}, {0: 3}), double=True, in_channels=4, out_channels=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
             up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8, dropout=0.1, **LEVELS),
    diffuser("UNet2DConditionModel", [LATENT, STEP, TEXT], ({0: 2}, {0: 3}), double=True, in_channels=4, out_channels=4, cross_attention_dim=12,
             down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=2, **LEVELS),
    diffuser("UNet3DConditionModel", [image(1, 4, 3, 16, 16), STEP, TEXT], ({0: 3},), double=True, ranks=(2,), cross_attention_dim=12, attention_head_dim=4,
             down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"), **LEVELS),
    diffuser("AutoencoderKL", image(1, 3, 16, 24), (2, 3), in_channels=3, out_channels=3, latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 2,
             up_block_types=("UpDecoderBlock2D",) * 2, **LEVELS),
    diffuser("VQModel", image(1, 3, 16, 24), (2,), in_channels=3, out_channels=3, latent_channels=4, num_vq_embeddings=16, down_block_types=("DownEncoderBlock2D",) * 2,
             up_block_types=("UpDecoderBlock2D",) * 2, **LEVELS),
    diffuser("AutoencoderTiny", image(1, 3, 16, 24), (2, 3), encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
             num_decoder_blocks=(1, 1), latent_channels=4),
    diffuser("AutoencoderDC", image(1, 3, 32, 32), (2,), double=True, ranks=(2,), in_channels=3, latent_channels=4, attention_head_dim=8,
             encoder_block_types=("ResBlock", "EfficientViTBlock"), decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 16),
             decoder_block_out_channels=(8, 16), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1), encoder_qkv_multiscales=((), (5,)),
             decoder_qkv_multiscales=((), (5,)), upsample_block_type="interpolate", downsample_block_type="stride_conv",
             decoder_norm_types="rms_norm", decoder_act_fns="silu"),
    diffuser("AutoencoderKLWan", image(1, 3, 5, 16, 16), (3,), double=True, ranks=(2,), base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1,
             temperal_downsample=[True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4),
    diffuser("AutoencoderKLCogVideoX", image(1, 3, 5, 16, 16), (3,), double=True, ranks=(2,), block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=2,
             latent_channels=4, down_block_types=("CogVideoXDownBlock3D",) * 2, up_block_types=("CogVideoXUpBlock3D",) * 2, temporal_compression_ratio=2),
    diffuser("DiTTransformer2DModel", {"hidden_states": image(1, 4, 16, 16), "timestep": STEP, "class_labels": make("torch.tensor", [3])}, ({"hidden_states": 2},),
             double=True, train=False, num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=16, patch_size=2,
             num_embeds_ada_norm=10, norm_num_groups=4),
    diffuser("PixArtTransformer2DModel", {"hidden_states": image(1, 4, 16, 16), "encoder_hidden_states": TEXT, "timestep": STEP}, ({"hidden_states": 2},), double=True,
             num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=16, patch_size=2, cross_attention_dim=16,
             caption_channels=12, norm_num_groups=4, use_additional_conditions=False),
    diffuser("SD3Transformer2DModel", {"hidden_states": image(1, 4, 16, 16), "encoder_hidden_states": TEXT, "pooled_projections": image(1, 6), "timestep": STEP},
             ({"hidden_states": 2}, {"hidden_states": 3}), double=True, sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
             num_attention_heads=2, joint_attention_dim=12, caption_projection_dim=16, pooled_projection_dim=6, out_channels=4, pos_embed_max_size=8),
    diffuser("LTXVideoTransformer3DModel", {"hidden_states": image(1, 24, 4), "encoder_hidden_states": TEXT, "timestep": Field((1,), positive=True),
                                            "encoder_attention_mask": make("torch.ones", 1, 5), "num_frames": 2, "height": 3, "width": 4},
             ({"hidden_states": 1},), double=True, in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16, num_layers=2,
             caption_channels=12),
    diffuser("FluxTransformer2DModel", {"hidden_states": image(1, 24, 4), "encoder_hidden_states": TEXT, "pooled_projections": image(1, 6),
                                        "timestep": Field((1,), positive=True), "img_ids": Field((24, 3), positive=True), "txt_ids": make("torch.zeros", 5, 3)},
             ({"hidden_states": 1},), double=True, patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
             joint_attention_dim=12, pooled_projection_dim=6, axes_dims_rope=(2, 2, 4)),
    diffuser("WanTransformer3DModel", {"hidden_states": image(1, 4, 2, 8, 12), "timestep": STEP, "encoder_hidden_states": TEXT}, ({"hidden_states": 3}, {"hidden_states": 4}),
             double=True, patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=12, freq_dim=8, ffn_dim=32,
             num_layers=2),
    diffuser("SanaTransformer2DModel", {"hidden_states": image(1, 4, 8, 12), "encoder_hidden_states": TEXT, "timestep": Field((1,), positive=True)},
             ({"hidden_states": 2},), double=True, in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2,
             num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=12, sample_size=8, patch_size=1),
    diffuser("ControlNetModel", [LATENT, STEP, TEXT, image(1, 3, 32, 48)], ({0: 2, 3: 2},), double=True, in_channels=4, cross_attention_dim=12,
             down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=2, conditioning_embedding_out_channels=(4, 8), **LEVELS),
    diffuser("PriorTransformer", {"hidden_states": image(3, 16), "timestep": STEP, "proj_embedding": image(3, 16), "encoder_hidden_states": image(3, 5, 16)},
             ({"hidden_states": 0, "proj_embedding": 0, "encoder_hidden_states": 0},), double=True, num_attention_heads=2, attention_head_dim=8, num_layers=2,
             embedding_dim=16, num_embeddings=5, additional_embeddings=4),
]
