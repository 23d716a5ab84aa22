# SPDX-License-Identifier: Apache-2.0
"""More models made of a configuration: language, pairs of texts, images, sounds, series."""

from table import Field, Model, image, make, tokens

CORE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
CAUSAL = dict(
    vocab_size=50, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False
)
TEXT = dict(vocab_size=50, max_position_embeddings=64, pad_token_id=0)
WORDS = {"input_ids": tokens(3, 24)}
WORD_CUTS = ({"input_ids": 1}, {"input_ids": 0})
SQUARE = image(2, 3, 32, 32)
VISION = dict(image_size=32, patch_size=8, **CORE)


def hf(name, inputs=WORDS, cuts=WORD_CUTS, head="Model", **rest):
    return Model(
        name, make(f"transformers.{name}{head}", make(f"transformers.{name}Config", **rest)), inputs, cuts, double=True
    )


def causal(name, **rest):
    return hf(name, head="ForCausalLM", **{**CAUSAL, **CORE, **rest})


def text(name, **rest):
    return hf(name, **{**TEXT, **CORE, **rest})


PAIRS = dict(
    vocab_size=50,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=64,
    use_cache=False,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)


def pairs(name, **rest):
    return hf(
        name,
        {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)},
        ({"input_ids": 1}, {"decoder_input_ids": 1}),
        **{**PAIRS, **rest},
    )


SOUND = dict(
    vocab_size=20,
    conv_dim=[8, 8],
    conv_stride=[5, 2],
    conv_kernel=[10, 3],
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    mask_time_prob=0.0,
    layerdrop=0.0,
    **CORE,
)


def audio(name, **rest):
    return Model(
        name,
        make(f"transformers.{name}Model", make(f"transformers.{name}Config", **{**SOUND, **rest})),
        image(2, 1000),
        (1,),
        train=False,
    )


SERIES = {
    "past_values": Field((2, 27), positive=True),
    "past_time_features": image(2, 27, 1),
    "past_observed_mask": make("torch.ones", 2, 27),
    "future_values": Field((2, 8), positive=True),
    "future_time_features": image(2, 8, 1),
}
FORECAST = dict(
    prediction_length=8,
    context_length=20,
    lags_sequence=[1, 3, 7],
    num_time_features=1,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    use_cache=False,
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
    hf(
        "MT5",
        {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)},
        ({"input_ids": 1}, {"decoder_input_ids": 1}),
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        use_cache=False,
    ),
    hf(
        "LongT5",
        {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)},
        ({"input_ids": 1},),
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        use_cache=False,
        local_radius=4,
    ),
    hf("EfficientNet", image(2, 3, 64, 64), (2,), width_coefficient=0.25, depth_coefficient=0.2, hidden_dim=320),
    hf("MobileNetV1", image(2, 3, 64, 64), (2,), depth_multiplier=0.25),
    hf("MobileNetV2", image(2, 3, 64, 64), (2,), depth_multiplier=0.25),
    hf("RegNet", image(2, 3, 64, 64), (2,), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    hf(
        "Bit",
        image(2, 3, 64, 64),
        (2,),
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_groups=4,
    ),
    hf(
        "GLPN",
        image(1, 3, 64, 64),
        (2,),
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=8,
    ),
    hf("Yolos", SQUARE, (2,), num_detection_tokens=4, **{**VISION, "image_size": [32, 32]}),
    hf("VitDet", SQUARE, (2,), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8),
    hf("ViTMSN", SQUARE, (2,), **VISION),
    hf("Dinov2WithRegisters", SQUARE, (2,), **{**VISION}),
    hf("IJepa", SQUARE, (2,), **VISION),
    hf(
        "PvtV2",
        image(1, 3, 64, 64),
        (2,),
        image_size=64,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
    ),
    hf("SwiftFormer", image(1, 3, 64, 64), (2,), image_size=64, embed_dims=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    hf("TextNet", image(1, 3, 64, 64), (2,)),
    hf("MobileViTV2", image(1, 3, 64, 64), (2,), image_size=64, width_multiplier=0.5),
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
        context_length=40,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_input_channels=3,
        num_layers=2,
    ),
    hf("Informer", SERIES, ({"past_values": 1},), **FORECAST, **NO_DROPOUT),
    hf("Autoformer", SERIES, ({"past_values": 1},), moving_average=5, **FORECAST),
]
