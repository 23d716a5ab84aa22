# SPDX-License-Identifier: Apache-2.0
"""Segmentation models: encoders of five levels behind decoders of other kinds."""

from table import Model, image, make

SMALL = dict(encoder_weights=None, in_channels=3, classes=3)


def smp(name, inputs=image(2, 3, 64, 96), cuts=(2, 3), encoder="resnet18", label=None, **rest):
    options = {key: rest.pop(key) for key in ("train", "double", "ranks") if key in rest}
    return Model(
        label or name,
        make("segmentation_models_pytorch." + name, encoder_name=encoder, **SMALL, **rest),
        inputs,
        cuts,
        **options,
    )


MODELS = [
    smp("Unet", decoder_channels=(32, 16, 8, 8, 4)),
    smp(
        "Unet",
        label="Unet_scse",
        decoder_attention_type="scse",
        decoder_channels=(32, 32, 16, 16, 16),
        cuts=(2,),
        ranks=(3,),
    ),
    smp("UnetPlusPlus", decoder_channels=(16, 16, 8, 8, 4), cuts=(3,)),
    smp("MAnet", decoder_channels=(16, 16, 8, 8, 4), cuts=(2,), encoder="mobilenet_v2"),
    smp("Linknet", cuts=(3,)),
    smp("FPN", decoder_pyramid_channels=16, decoder_segmentation_channels=32, cuts=(2,)),
    smp("PSPNet", cuts=(2,), psp_out_channels=32),
    smp("PAN", cuts=(3,), decoder_channels=8, inputs=image(2, 3, 128, 128), ranks=(2,)),
    smp("DeepLabV3", decoder_channels=8, cuts=(2,), encoder="mobilenet_v2"),
    smp("DeepLabV3Plus", decoder_channels=8, cuts=(3,), encoder="mobilenet_v2"),
    smp("UPerNet", decoder_channels=16, cuts=(2, 3)),
    smp("Segformer", decoder_segmentation_channels=16, cuts=(2,), encoder="mit_b0"),
]
