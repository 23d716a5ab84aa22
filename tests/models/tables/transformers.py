# SPDX-License-Identifier: Apache-2.0
"""Models made of a configuration, with random weights."""
from table import Field, Integers, Model, image, make, tokens

CORE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
DROP = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
CAUSAL = dict(vocab_size=50, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False)
VISION = dict(image_size=32, patch_size=8, **CORE)
WORDS = {"input_ids": tokens(3, 23)}
WORD_CUTS = ({"input_ids": 1}, {"input_ids": 0})
SQUARE = image(2, 3, 32, 32)


def hf(name, inputs, cuts, head="Model", label=None, config=None, **rest):
    options = {key: rest.pop(key) for key in ("train", "double", "ranks", "method") if key in rest}
    made_config = make(f"transformers.{config or name}Config", **rest)
    return Model(label or name + ("" if head == "Model" else head), make(f"transformers.{name}{head}", made_config), inputs, cuts, **options)


MODELS = [
    # Language.
    hf("Bert", WORDS, WORD_CUTS, vocab_size=50, max_position_embeddings=64, **CORE, **DROP),
    hf("Bert", WORDS, WORD_CUTS, label="Bert_eval", train=False, vocab_size=50, max_position_embeddings=64, **CORE),
    hf("Bert", {**WORDS, "labels": Integers((3,), 4)}, ({"input_ids": 1},), "ForSequenceClassification", vocab_size=50, max_position_embeddings=64, num_labels=4,
       **CORE, **DROP),
    hf("Roberta", WORDS, WORD_CUTS, "ForMaskedLM", vocab_size=50, max_position_embeddings=64, **CORE, **DROP),
    hf("DistilBert", WORDS, WORD_CUTS, vocab_size=50, max_position_embeddings=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    hf("Albert", WORDS, WORD_CUTS, vocab_size=50, max_position_embeddings=64, embedding_size=8, **CORE),
    hf("Electra", WORDS, WORD_CUTS, vocab_size=50, max_position_embeddings=64, embedding_size=8, **CORE, **DROP),
    hf("Deberta", WORDS, ({"input_ids": 1},), vocab_size=50, max_position_embeddings=64, **CORE),
    hf("ModernBert", WORDS, WORD_CUTS, double=True, local_attention=8, attn_implementation="sdpa", reference_compile=False,
       **{**CAUSAL, "use_cache": None}, **CORE),
    hf("GPT2", WORDS, WORD_CUTS, "LMHeadModel", vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, use_cache=False),
    hf("GPTNeoX", WORDS, WORD_CUTS, "ForCausalLM", double=True, **CAUSAL, **CORE),
    hf("Llama", {**WORDS, "labels": tokens(3, 23)}, ({"input_ids": 1, "labels": 1}, {"input_ids": 0, "labels": 0}), "ForCausalLM", double=True,
       num_key_value_heads=1, **CAUSAL, **CORE),
    hf("Mistral", WORDS, WORD_CUTS, "ForCausalLM", double=True, sliding_window=8, num_key_value_heads=1, **CAUSAL, **CORE),
    hf("Qwen2", WORDS, ({"input_ids": 1},), "ForCausalLM", double=True, num_key_value_heads=1, **CAUSAL, **CORE),
    hf("Gemma", WORDS, ({"input_ids": 1},), double=True, num_key_value_heads=1, head_dim=8, **CAUSAL, **CORE),
    hf("OPT", WORDS, ({"input_ids": 1},), vocab_size=50, max_position_embeddings=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
       word_embed_proj_dim=16, use_cache=False, pad_token_id=0),
    hf("Bloom", WORDS, ({"input_ids": 1},), vocab_size=50, hidden_size=16, n_layer=2, n_head=2, use_cache=False),
    hf("Falcon", WORDS, ({"input_ids": 1},), double=True, vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, use_cache=False),
    hf("Mamba", WORDS, ({"input_ids": 1},), double=True, vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False, ranks=(2,)),
    hf("T5", {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)}, ({"input_ids": 1}, {"decoder_input_ids": 1}), double=True, vocab_size=50, d_model=16,
       d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False),
    hf("Bart", {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)}, ({"input_ids": 1},), vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1,
       encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, use_cache=False, pad_token_id=0,
       bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    # Images.
    hf("ViT", SQUARE, (2, 0), hidden_dropout_prob=0.1, **VISION),
    hf("ViT", SQUARE, (2,), label="ViT_eval", train=False, **VISION),
    hf("DeiT", SQUARE, (2,), **VISION),
    hf("Beit", SQUARE, (2,), use_relative_position_bias=True, drop_path_rate=0.1, **VISION),
    hf("Dinov2", SQUARE, (2,), drop_path_rate=0.1, image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
    hf("ViTMAE", SQUARE, (2,), decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=32, **VISION),
    hf("Swin", image(1, 3, 32, 36), (2, 3), image_size=(32, 36), patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4, drop_path_rate=0.1),
    hf("Swinv2", image(1, 3, 32, 32), (2,), image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4, drop_path_rate=0.1),
    hf("Swin2SR", image(1, 3, 16, 16), (2,), "ForImageSuperResolution", image_size=16, patch_size=1, embed_dim=8, depths=[2], num_heads=[2], window_size=4, upscale=2),
    hf("FocalNet", image(1, 3, 32, 32), (2,), image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], focal_levels=[1, 1], focal_windows=[3, 3]),
    hf("ConvNext", image(2, 3, 64, 68), (2,), hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.1),
    hf("ConvNextV2", image(2, 3, 64, 68), (3,), hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=0.1),
    hf("ResNet", image(2, 3, 64, 68), (2,), embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic"),
    hf("Segformer", image(1, 3, 64, 68), (2, 3), "ForSemanticSegmentation", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2], hidden_sizes=[8, 16],
       patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=4),
    hf("PoolFormer", image(2, 3, 64, 68), (2,), hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], drop_path_rate=0.1),
    hf("Pvt", image(1, 3, 64, 64), (2,), image_size=64, num_encoder_blocks=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4]),
    hf("DPT", SQUARE, (2,), "ForSemanticSegmentation", num_labels=4, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, is_hybrid=False,
       reassemble_factors=[4, 2, 1, 0.5], **{**VISION, "num_hidden_layers": 4}),
    hf("Hiera", SQUARE, (2,), image_size=[32, 32], patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=8, depths=[1, 1, 1, 1],
       num_heads=[1, 2, 2, 2], query_stride=[2, 2], num_query_pool=2, masked_unit_size=[8, 8]),
    hf("Levit", image(2, 3, 64, 64), (2,), image_size=64, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
       key_dim=[8, 8, 8]),
    hf("MobileViT", image(1, 3, 64, 64), (2,), image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 24, 32, 32, 48], num_attention_heads=2),
    hf("CLIPVision", SQUARE, (2,), **VISION),
    hf("SiglipVision", SQUARE, (2,), **VISION),
    hf("DepthAnything", SQUARE, (2,), "ForDepthEstimation", backbone_config=make(
        "transformers.Dinov2Config", image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, out_features=["stage1", "stage2"],
        reshape_hidden_states=False), reassemble_hidden_size=16, patch_size=8, neck_hidden_sizes=[8, 16], reassemble_factors=[2, 1], fusion_hidden_size=8,
       head_in_index=-1, head_hidden_size=8),
    # Films, sounds, series.
    hf("Timesformer", image(1, 4, 3, 32, 32), (3, 1), num_frames=4, **VISION),
    hf("VideoMAE", image(1, 4, 3, 32, 32), (3, 1), num_frames=4, tubelet_size=2, **VISION),
    hf("Vivit", image(1, 4, 3, 32, 32), (3,), num_frames=4, tubelet_size=[2, 8, 8], image_size=32, **CORE),
    hf("AST", image(1, 40, 24), (1,), max_length=40, num_mel_bins=24, patch_size=8, frequency_stride=8, time_stride=8, **CORE),
    hf("Wav2Vec2", image(2, 1000), (1,), train=False, vocab_size=20, conv_dim=[8, 8], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2,
       num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, layerdrop=0.0, **CORE),
    hf("Whisper", {"input_features": image(1, 16, 40), "decoder_input_ids": tokens(1, 9)}, ({"input_features": 2},), vocab_size=50, num_mel_bins=16, d_model=16,
       encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=20,
       max_target_positions=20, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    hf("PatchTST", {"past_values": image(2, 40, 3)}, ({"past_values": 0}, {"past_values": 2}), "ForPrediction", num_input_channels=3, context_length=40, patch_length=8,
       patch_stride=8, d_model=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, prediction_length=8, loss="mse"),
    hf("TimeSeriesTransformer", {"past_values": Field((2, 27), positive=True), "past_time_features": image(2, 27, 1), "past_observed_mask": make("torch.ones", 2, 27),
                                 "future_values": Field((2, 8), positive=True), "future_time_features": image(2, 8, 1)},
       ({"past_values": 1},), prediction_length=8, context_length=20, lags_sequence=[1, 3, 7], num_time_features=1, d_model=16, encoder_layers=1, decoder_layers=1,
       encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, use_cache=False, ranks=(2,)),
]
