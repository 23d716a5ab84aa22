# SPDX-License-Identifier: Apache-2.0
"""Networks for medical images, in two and three dimensions."""
from table import Model, image, make

FLAT, DEEP = image(1, 1, 48, 32), image(1, 1, 16, 32, 32)


def monai(name, inputs, cuts=(2, 3), label=None, **rest):
    options = {key: rest.pop(key) for key in ("train", "double", "ranks") if key in rest}
    return Model(label or name, make("monai.networks.nets." + name, **rest), inputs, cuts, **options)


LEVELS = dict(channels=(4, 8, 16), strides=(2, 2), num_res_units=2, in_channels=1, out_channels=2)
SWIN = dict(in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4))

MODELS = [
    monai("UNet", FLAT, spatial_dims=2, norm="batch", dropout=0.1, **LEVELS),
    monai("UNet", DEEP, (2, 4), label="UNet_3d", spatial_dims=3, norm="instance", **LEVELS),
    monai("AttentionUnet", FLAT, spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2)),
    monai("BasicUNet", FLAT, cuts=(2,), spatial_dims=2, features=(4, 4, 8, 8, 16, 4)),
    monai("BasicUNetPlusPlus", FLAT, cuts=(3,), spatial_dims=2, features=(4, 4, 8, 8, 16, 4)),
    monai("DynUNet", image(1, 1, 16, 16, 24), (2, 4), spatial_dims=3, in_channels=1, out_channels=2, kernel_size=(3, 3, 3), strides=(1, 2, 2),
          upsample_kernel_size=(2, 2), filters=(4, 8, 16), res_block=True),
    monai("SegResNet", DEEP, (3,), init_filters=4, in_channels=1, out_channels=2, norm=("group", {"num_groups": 2}), blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    monai("SegResNetVAE", DEEP, (3,), ranks=(2,), input_image_size=(16, 32, 32), init_filters=4, in_channels=1, out_channels=2,
          norm=("group", {"num_groups": 2}), blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    monai("VNet", image(1, 1, 32, 32, 32), (2,), spatial_dims=3, ranks=(2,)),
    monai("HighResNet", FLAT, cuts=(2,), spatial_dims=2),
    monai("UNETR", DEEP, (2, 3), in_channels=1, out_channels=2, img_size=(16, 32, 32), feature_size=4, hidden_size=24, mlp_dim=32, num_heads=2, ranks=(2,)),
    monai("SwinUNETR", image(1, 1, 64, 32, 32), (2,), spatial_dims=3, ranks=(2,), **SWIN),
    monai("SwinUNETR", image(1, 1, 64, 32), (2,), label="SwinUNETR_2d", spatial_dims=2, **SWIN),
    monai("ViT", DEEP, (2, 3), in_channels=1, img_size=(16, 32, 32), patch_size=(8, 8, 8), hidden_size=24, mlp_dim=32, num_layers=2, num_heads=2,
          classification=True, spatial_dims=3),
    monai("ViTAutoEnc", image(1, 1, 32, 48), (2, 3), in_channels=1, img_size=(32, 48), patch_size=(4, 4), hidden_size=24, mlp_dim=32, num_layers=2, num_heads=2,
          spatial_dims=2),
    monai("DenseNet", FLAT, cuts=(2,), spatial_dims=2, in_channels=1, out_channels=3, init_features=8, growth_rate=4, block_config=(2, 2)),
    monai("SENet154", FLAT, cuts=(3,), ranks=(2,), spatial_dims=2, in_channels=1, layers=(1, 1, 1, 1), num_classes=3),
    monai("EfficientNetBN", image(1, 1, 64, 64), cuts=(2,), model_name="efficientnet-b0", spatial_dims=2, in_channels=1, num_classes=3, pretrained=False),
    monai("AutoEncoder", FLAT, cuts=(2, 3), spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2, 2)),
    monai("AutoencoderKL", FLAT, cuts=(2,), spatial_dims=2, channels=(8, 8), num_res_blocks=1, attention_levels=(False, True), norm_num_groups=4, latent_channels=2),
    monai("DiffusionModelUNet", {0: FLAT, 1: make("torch.tensor", [3])}, cuts=({0: 2}, {0: 3}), spatial_dims=2, in_channels=1, out_channels=1,
          num_res_blocks=(1, 1), channels=(8, 16), attention_levels=(False, True), norm_num_groups=4, num_head_channels=8),
    monai("FlexibleUNet", image(1, 1, 64, 64), cuts=(2,), ranks=(2,), in_channels=1, out_channels=2, backbone="resnet18", spatial_dims=2,
          decoder_channels=(16, 8, 8, 4, 4)),
    monai("MedNeXt", FLAT, cuts=(2,), spatial_dims=2, init_filters=4, in_channels=1, out_channels=2, blocks_down=(1, 1), blocks_up=(1, 1), blocks_bottleneck=1),
]
