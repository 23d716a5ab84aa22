# SPDX-License-Identifier: Apache-2.0
from table import OPTIONS, Model, image, make, model

IMAGE = image(2, 3, 64, 72)
SQUARE = image(2, 3, 64, 64)
FOUR = dict(depths=(1, 1, 1, 1))
VIT = dict(img_size=64, embed_dim=24, depth=2, num_heads=2)


def timm(name, inputs=IMAGE, cuts=(2, 3), label=None, **rest):
    options = {key: rest.pop(key) for key in OPTIONS if key in rest}
    return Model(
        label or name, make("timm.create_model", name, pretrained=False, num_classes=5, **rest), inputs, cuts, **options
    )


def direct(name, path, inputs=SQUARE, cuts=(2, 3), **rest):
    return model(name, "timm.models." + path, inputs, cuts, num_classes=5, **rest)


def same(path):
    return make("table.same", "timm.models." + path)


MODELS = [
    # Convolutions.
    timm("resnet10t", drop_path_rate=0.2),
    timm("resnest14d", cuts=(2,)),
    timm("skresnet18", cuts=(3,)),
    timm("res2net50_26w_4s", cuts=(2,), layers=(1, 1, 1, 1)),
    timm("seresnext26t_32x4d", cuts=(3,), layers=(1, 1, 1, 1)),
    timm("cspresnet50", cuts=(2,)),
    timm("nf_resnet26", cuts=(3,)),
    timm("regnety_002"),
    timm("ghostnet_050"),
    timm("mobilenetv4_conv_small_035"),
    timm("efficientnet_lite0", cuts=(2,), drop_path_rate=0.2),
    timm("hrnet_w18_small", SQUARE, cuts=(2,)),
    timm("dla46_c", SQUARE),
    timm("ese_vovnet19b_slim", cuts=(3,)),
    timm("repvit_m0_9", cuts=(2,)),
    timm("mobileone_s0", cuts=(2,)),
    timm("convnext_atto", drop_path_rate=0.2, dims=(8, 16, 24, 32), **FOUR),
    timm("convnextv2_atto", drop_path_rate=0.2, dims=(8, 16, 24, 32), **FOUR),
    timm("inception_next_atto", dims=(8, 16, 24, 32), **FOUR),
    timm("mambaout_femto", dims=(8, 16, 24, 32), **FOUR),
    timm("starnet_s1", cuts=(2,)),
    timm("fastvit_t8", SQUARE, cuts=(2,)),
    direct("poolformer", "metaformer.MetaFormer", IMAGE, dims=(8, 16, 24, 32), drop_path_rate=0.2, **FOUR),
    # Convolutions and attention.
    direct(
        "caformer",
        "metaformer.MetaFormer",
        IMAGE,
        dims=(32, 32, 64, 64),
        norm_layers=[
            same("metaformer.LayerNorm2dNoBias"),
            same("metaformer.LayerNorm2dNoBias"),
            same("metaformer.LayerNormNoBias"),
            same("metaformer.LayerNormNoBias"),
        ],
        token_mixers=[
            same("metaformer.SepConv"),
            same("metaformer.SepConv"),
            same("metaformer.Attention"),
            same("metaformer.Attention"),
        ],
        **FOUR,
    ),
    timm("coatnet_pico_rw_224", SQUARE, img_size=64, cuts=(2,)),
    timm("maxxvit_rmlp_nano_rw_256", SQUARE, img_size=64, cuts=(3,), ranks=(2,)),
    timm("edgenext_xx_small", depths=(1, 1, 2, 1)),
    timm("mobilevit_xxs", SQUARE),
    timm("mobilevitv2_050", SQUARE),
    timm("efficientformerv2_s0", SQUARE, img_size=64),
    timm("efficientvit_b0", double=True),
    timm("efficientvit_m0", SQUARE, img_size=64, cuts=(2,)),
    timm(
        "tiny_vit_5m_224",
        SQUARE,
        embed_dims=(8, 16, 32, 32),
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 2, 2),
        window_sizes=(4, 4, 4, 2),
    ),
    timm("levit_128s", image(3, 3, 96, 96), img_size=96, cuts=(2,)),  # of two values alone, a norm shows rounding
    timm("nextvit_small", SQUARE, cuts=(2,), ranks=(2,)),
    timm("visformer_tiny", SQUARE, img_size=64, embed_dim=24, num_heads=2, depth=(2, 1, 1)),
    # Windowed attention.
    timm(
        "swin_tiny_patch4_window7_224",
        img_size=(64, 72),
        window_size=4,
        embed_dim=8,
        depths=(1, 2),
        num_heads=(1, 2),
        label="swin",
    ),
    timm(
        "swinv2_cr_tiny_224",
        img_size=(64, 64),
        inputs=SQUARE,
        window_size=4,
        embed_dim=8,
        depths=(1, 2),
        num_heads=(1, 2),
        label="swinv2_cr",
    ),
    timm("davit_tiny", embed_dims=(8, 16), depths=(1, 1), num_heads=(1, 2)),
    direct("focalnet", "focalnet.FocalNet", IMAGE, embed_dim=8, depths=(1, 1)),
    timm(
        "twins_svt_small",
        SQUARE,
        img_size=64,
        embed_dims=(8, 16, 24, 32),
        num_heads=(1, 2, 3, 4),
        depths=(1, 1, 1, 1),
        wss=(4, 4, 4, 4),
    ),
    direct(
        "nest",
        "nest.Nest",
        cuts=(2,),
        img_size=64,
        num_levels=3,
        patch_size=4,
        embed_dims=(8, 16, 24),
        num_heads=(1, 2, 3),
        depths=(1, 1, 1),
    ),
    timm("hiera_tiny_224", SQUARE, img_size=64, embed_dim=8, num_heads=1, stages=(1, 1, 1, 1), cuts=(2,)),
    # Global attention.
    timm("vit_tiny_patch16_224", SQUARE, label="vit_class_token", **VIT),
    timm("vit_tiny_patch16_224", SQUARE, label="vit_average", class_token=False, global_pool="avg", **VIT),
    timm("vit_tiny_patch16_224", SQUARE, label="vit_eval", train=False, cuts=(0, 2), **VIT),
    timm("vit_small_patch14_reg4_dinov2", SQUARE, label="vit_registers", patch_size=16, cuts=(2,), **VIT),
    timm("deit_tiny_distilled_patch16_224", SQUARE, **VIT),
    timm("beit_base_patch16_224", SQUARE, cuts=(2,), **VIT),
    timm("eva02_tiny_patch14_224", SQUARE, patch_size=16, cuts=(3,), **VIT),
    timm("cait_xxs24_224", SQUARE, **VIT),
    timm("convit_tiny", SQUARE, cuts=(2,), **VIT),
    timm("xcit_nano_12_p16_224", SQUARE, **VIT),
    direct(
        "crossvit",
        "crossvit.CrossVit",
        image(2, 3, 48, 48),
        (2,),
        img_size=48,
        img_scale=(1.0, 1.0),
        patch_size=(8, 16),
        embed_dim=(16, 24),
        depth=((1, 1, 0),),
        num_heads=(2, 2),
        mlp_ratio=(2.0, 2.0, 1.0),
    ),
    direct(
        "coat",
        "coat.CoaT",
        cuts=(2,),
        img_size=64,
        patch_size=4,
        embed_dims=(16, 16, 16, 16),
        serial_depths=(1, 1, 1, 1),
        parallel_depth=1,
        num_heads=8,
        mlp_ratios=(2, 2, 2, 2),
        crpe_window={3: 2, 5: 3, 7: 3},
    ),
    timm("pvt_v2_b0", depths=(1, 1, 1, 1)),
    direct(
        "volo",
        "volo.VOLO",
        cuts=(2,),
        ranks=(2,),
        layers=(1, 1, 1, 1),
        img_size=64,
        embed_dims=(24, 48, 48, 48),
        num_heads=(2, 4, 4, 4),
        mlp_ratio=2.0,
        downsamples=(True, False, False, False),
        outlook_attention=(True, False, False, False),
        stem_hidden_dim=16,
        post_layers=("ca",),
        use_aux_head=False,
    ),
    # No attention.
    direct("mixer", "mlp_mixer.MlpMixer", img_size=64, patch_size=16, embed_dim=16, num_blocks=2),
    direct(
        "resmlp",
        "mlp_mixer.MlpMixer",
        img_size=64,
        patch_size=16,
        embed_dim=16,
        num_blocks=2,
        mlp_ratio=4,
        block_layer=same("mlp_mixer.ResBlock"),
    ),
    direct(
        "gmlp",
        "mlp_mixer.MlpMixer",
        img_size=64,
        patch_size=16,
        embed_dim=16,
        num_blocks=2,
        mlp_ratio=4,
        mlp_layer=same("mlp_mixer.GatedMlp"),
        block_layer=same("mlp_mixer.SpatialGatingBlock"),
    ),
    direct(
        "sequencer",
        "sequencer.Sequencer2d",
        cuts=(2,),
        ranks=(2,),
        layers=(1, 1, 1, 1),
        img_size=64,
        patch_sizes=(8, 1, 1, 1),
        embed_dims=(12, 12, 12, 12),
        hidden_sizes=(3, 3, 3, 3),
        mlp_ratios=(2, 2, 2, 2),
    ),
]
