# SPDX-License-Identifier: Apache-2.0
"""More models made of a configuration: language, pairs of texts, images, sounds, series."""

from table import Model, image, make, tokens
from transformers_configs import (
    CAUSAL,
    CORE,
    FORECAST,
    PAIRS,
    PATCHES,
    PYRAMID,
    SERIES,
    SOUND,
    SQUARE,
    T5,
    TEXT,
    TWO_TEXT_CUTS,
    TWO_TEXTS,
    VISION,
    WORD_CUTS,
)

WORDS = {"input_ids": tokens(3, 24)}
LARGE, LARGEST = image(1, 3, 64, 64), image(2, 3, 64, 64)
FOUR_LEVELS = dict(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])


def hf(name, inputs=WORDS, cuts=WORD_CUTS, head="Model", **rest):
    return Model(
        name, make(f"transformers.{name}{head}", make(f"transformers.{name}Config", **rest)), inputs, cuts, double=True
    )


def causal(name, **rest):
    return hf(name, head="ForCausalLM", **{**CAUSAL, **CORE, **rest})


def text(name, **rest):
    return hf(name, **{**TEXT, **CORE, **rest})


def pairs(name, **rest):
    return hf(name, TWO_TEXTS, TWO_TEXT_CUTS, **{**PAIRS, **rest})


def audio(name, **rest):
    return Model(
        name,
        make(f"transformers.{name}Model", make(f"transformers.{name}Config", **{**SOUND, **rest})),
        image(2, 1000),
        (1,),
        train=False,
    )


# topk(sorted=False), by which Informer chooses queries, has no order, so dropout would have other rows.
NO_DROPOUT = dict(
    dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0
)
MODELS = [
    hf("XLNet", vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=32, use_mems_eval=False, use_mems_train=False),
    text("Longformer", attention_window=8),
    text("BigBird", attention_type="original_full", use_cache=False),
    hf("Funnel", vocab_size=50, d_model=16, n_head=2, d_head=8, d_inner=32, block_sizes=[1, 1]),
    text("MPNet"),
    text("Camembert"),
    text("ConvBert", embedding_size=16, head_ratio=1),
    text("MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    text("SqueezeBert", embedding_size=16),
    text("Nystromformer", num_landmarks=8, segment_means_seq_len=24),
    text("FNet"),
    text("RoFormer", embedding_size=16),
    text("Ernie"),
    text("Data2VecText"),
    text("DebertaV2", relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
    text("XLMRoberta"),
    text("LayoutLM"),
    text("Esm"),
    text("Splinter"),
    text("IBert"),
    text("MegatronBert"),
    text("RemBert", input_embedding_size=16, output_embedding_size=16),
    text("Luke", entity_vocab_size=10, entity_emb_size=8),
    causal("Gemma2", num_key_value_heads=1, head_dim=8, sliding_window=8),
    causal("Olmo2"),
    causal("Phi"),
    causal("Phi3", num_key_value_heads=1),
    causal("Cohere"),
    causal("Olmo"),
    causal("Starcoder2", num_key_value_heads=1),
    causal("Persimmon"),
    causal("Granite"),
    causal("Qwen3", head_dim=8, num_key_value_heads=1),
    causal("Glm", head_dim=8, num_key_value_heads=1),
    causal("BioGpt"),
    causal("SmolLM3", num_key_value_heads=1),
    causal("Mamba2", head_dim=8, num_heads=4, state_size=4, n_groups=1, chunk_size=8, expand=2),
    causal("RecurrentGemma", lru_width=16, attention_window_size=8, num_key_value_heads=1),
    causal("GPTBigCode", n_positions=64, n_embd=16, n_layer=2, n_head=2),
    causal("GPTJ", n_positions=64, n_embd=16, n_layer=2, n_head=2, rotary_dim=4),
    causal("GPTNeo", num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=8),
    causal("CodeGen", n_positions=64, n_embd=16, n_layer=2, n_head=4, rotary_dim=4),
    causal("XGLM", d_model=16, ffn_dim=32, num_layers=2, attention_heads=2),
    causal("Mpt", d_model=16, n_heads=2, n_layers=2, max_seq_len=64),
    causal("Rwkv", context_length=64, attention_hidden_size=16),
    pairs("Pegasus"),
    pairs("MBart"),
    pairs("Marian"),
    pairs("M2M100"),
    pairs("Blenderbot"),
    pairs("LED", attention_window=8, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    hf("MT5", TWO_TEXTS, TWO_TEXT_CUTS, **T5),
    hf("LongT5", TWO_TEXTS, ({"input_ids": 1},), local_radius=4, **T5),
    hf("EfficientNet", LARGEST, (2,), width_coefficient=0.25, depth_coefficient=0.2, hidden_dim=320),
    hf("MobileNetV1", LARGEST, (2,), depth_multiplier=0.25),
    hf("MobileNetV2", LARGEST, (2,), depth_multiplier=0.25),
    hf("RegNet", LARGEST, (2,), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    hf("Bit", LARGEST, (2,), embedding_size=8, num_groups=4, **FOUR_LEVELS),
    hf("GLPN", LARGE, (2,), num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=8, **FOUR_LEVELS),
    hf("Yolos", SQUARE, (2,), num_detection_tokens=4, **{**VISION, "image_size": [32, 32]}),
    hf("VitDet", SQUARE, (2,), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8),
    hf("ViTMSN", SQUARE, (2,), **VISION),
    hf("Dinov2WithRegisters", SQUARE, (2,), **VISION),
    hf("IJepa", SQUARE, (2,), **VISION),
    hf("PvtV2", LARGE, (2,), **PYRAMID),
    hf("SwiftFormer", LARGE, (2,), image_size=64, embed_dims=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    hf("TextNet", LARGE, (2,)),
    hf("MobileViTV2", LARGE, (2,), image_size=64, width_multiplier=0.5),
    hf("BlipVision", SQUARE, (2,), **VISION),
    hf("AltCLIPVision", SQUARE, (2,), **VISION),
    hf("ChineseCLIPVision", SQUARE, (2,), **VISION),
    audio("Hubert"),
    audio("WavLM"),
    audio("UniSpeech"),
    audio("SEW", squeeze_factor=2),
    audio("Data2VecAudio", conv_pos_kernel_size=3, num_conv_pos_embeddings=2),
    hf(
        "PatchTSMixer",
        {"past_values": image(2, 40, 3)},
        ({"past_values": 0}, {"past_values": 2}),
        num_layers=2,
        **PATCHES,
    ),
    hf("Informer", SERIES, ({"past_values": 1},), **FORECAST, **NO_DROPOUT),
    hf("Autoformer", SERIES, ({"past_values": 1},), moving_average=5, **FORECAST),
]
