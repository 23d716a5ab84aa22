# SPDX-License-Identifier: Apache-2.0
from table import Model, image, make, model

SMALL = image(2, 3, 65, 70)


def classifier(name, inputs=SMALL, cuts=(2, 3), **rest):
    return model(name, "torchvision.models." + name, inputs, cuts, num_classes=5, **rest)


def segmenter(name, **rest):
    return Model(
        name,
        make("torchvision.models.segmentation." + name, weights=None, weights_backbone=None, num_classes=4, **rest),
        SMALL,
        (2, 3),
    )


VIT = dict(patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)
SWIN = dict(
    patch_size=[2, 2],
    embed_dim=8,
    depths=[1, 2],
    num_heads=[1, 2],
    window_size=[4, 4],
    stochastic_depth_prob=0.2,
    num_classes=5,
)
CONVNEXT = dict(
    block_setting=[
        make("torchvision.models.convnext.CNBlockConfig", 8, 16, 1),
        make("torchvision.models.convnext.CNBlockConfig", 16, None, 2),
    ],
    stochastic_depth_prob=0.2,
    num_classes=5,
)

MODELS = [
    classifier("resnet18"),
    Model(
        "resnext",
        make(
            "torchvision.models.ResNet",
            make("table.same", "torchvision.models.resnet.Bottleneck"),
            [1, 1, 1, 1],
            groups=8,
            width_per_group=4,
            num_classes=5,
        ),
        SMALL,
        (2, 3),
    ),
    classifier("mobilenet_v2", width_mult=0.25),
    classifier("mobilenet_v3_small", width_mult=0.25),
    classifier("shufflenet_v2_x0_5"),
    classifier("mnasnet0_5", dropout=0.2),
    classifier("squeezenet1_1"),
    classifier("efficientnet_b0", inputs=image(1, 3, 64, 66)),
    classifier("regnet_y_400mf", inputs=image(1, 3, 64, 66)),
    classifier("googlenet", inputs=image(2, 3, 66, 70), cuts=(2,), aux_logits=False, init_weights=False),
    Model(
        "densenet",
        make(
            "torchvision.models.densenet.DenseNet",
            growth_rate=4,
            block_config=(2, 2, 2),
            num_init_features=8,
            bn_size=2,
            drop_rate=0.1,
            num_classes=5,
        ),
        SMALL,
        (2, 3),
    ),
    Model("convnext", make("torchvision.models.convnext.ConvNeXt", **CONVNEXT), image(2, 3, 64, 68), (2, 3)),
    Model("swin", make("torchvision.models.swin_transformer.SwinTransformer", **SWIN), image(1, 3, 34, 38), (2, 3)),
    Model(
        "swin_v2",
        make(
            "torchvision.models.swin_transformer.SwinTransformer",
            **SWIN,
            block=make(
                "functools.partial", make("table.same", "torchvision.models.swin_transformer.SwinTransformerBlockV2")
            ),
            downsample_layer=make("table.same", "torchvision.models.swin_transformer.PatchMergingV2"),
        ),
        image(1, 3, 34, 38),
        (2, 3),
    ),
    Model("vit", make("torchvision.models.VisionTransformer", image_size=40, **VIT), image(2, 3, 40, 40), (2, 3)),
    Model(
        "vit_dropout",
        make("torchvision.models.VisionTransformer", image_size=40, dropout=0.2, attention_dropout=0.2, **VIT),
        image(2, 3, 40, 40),
        (2, 0),
    ),
    Model(
        "vit_eval",
        make("torchvision.models.VisionTransformer", image_size=40, **VIT),
        image(2, 3, 40, 40),
        (2, 3),
        train=False,
    ),
    Model(
        "maxvit",
        make(
            "torchvision.models.MaxVit",
            input_size=(32, 32),
            stem_channels=8,
            partition_size=4,
            block_channels=[8, 16],
            block_layers=[1, 1],
            head_dim=8,
            stochastic_depth_prob=0.2,
            num_classes=5,
        ),
        image(1, 3, 32, 32),
        (2, 3),
    ),
    segmenter("fcn_resnet50"),
    segmenter("lraspp_mobilenet_v3_large"),
    Model(
        "r2plus1d_18",
        make("torchvision.models.video.r2plus1d_18", num_classes=4),
        image(1, 3, 6, 17, 20),
        (3,),
        ranks=(2,),
    ),
    Model(
        "swin3d",
        make(
            "torchvision.models.video.swin_transformer.SwinTransformer3d",
            patch_size=[2, 4, 4],
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=[2, 4, 4],
            stochastic_depth_prob=0.2,
            num_classes=4,
        ),
        image(1, 3, 8, 32, 36),
        (2, 3),
    ),
    Model(
        "mvit",
        make(
            "torchvision.models.video.MViT",
            spatial_size=(32, 32),
            temporal_size=4,
            num_classes=4,
            stochastic_depth_prob=0.2,
            residual_pool=True,
            residual_with_cls_embed=True,
            rel_pos_embed=False,
            proj_after_attn=False,
            block_setting=[
                make(
                    "torchvision.models.video.mvit.MSBlockConfig",
                    num_heads=heads,
                    input_channels=channels,
                    output_channels=channels,
                    kernel_q=[3, 3, 3],
                    kernel_kv=[3, 3, 3],
                    stride_q=[1, 1, 1],
                    stride_kv=[1, 2, 2],
                )
                for heads, channels in ((1, 16), (2, 16))
            ],
        ),
        image(1, 3, 4, 32, 32),
        (3,),
    ),
]
