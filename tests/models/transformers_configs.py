# SPDX-License-Identifier: Apache-2.0
"""Configurations and inputs that rows of transformers.py and transformers_more.py share."""

from table import Field, image, make, tokens

CORE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
DROP = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
VOCABULARY = dict(vocab_size=50, max_position_embeddings=64)
TEXT = dict(pad_token_id=0, **VOCABULARY)
CAUSAL = dict(bos_token_id=1, eos_token_id=2, use_cache=False, **TEXT)
VISION = dict(image_size=32, patch_size=8, **CORE)
WORDS = {"input_ids": tokens(3, 23)}
WORD_CUTS = ({"input_ids": 1}, {"input_ids": 0})
TWO_TEXTS = {"input_ids": tokens(2, 17), "decoder_input_ids": tokens(2, 11)}
TWO_TEXT_CUTS = ({"input_ids": 1}, {"decoder_input_ids": 1})
SQUARE = image(2, 3, 32, 32)
# An encoder and a decoder of one layer each.
CODER = dict(
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    use_cache=False,
)
SEQUENCES = dict(vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **CODER)
PAIRS = dict(max_position_embeddings=64, **SEQUENCES)
T5 = dict(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False)
SWIN = dict(patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4, drop_path_rate=0.1)
PYRAMID = dict(image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4])
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
SERIES = {
    "past_values": Field((2, 27), positive=True),
    "past_time_features": image(2, 27, 1),
    "past_observed_mask": make("torch.ones", 2, 27),
    "future_values": Field((2, 8), positive=True),
    "future_time_features": image(2, 8, 1),
}
FORECAST = dict(prediction_length=8, context_length=20, lags_sequence=[1, 3, 7], num_time_features=1, **CODER)
PATCHES = dict(num_input_channels=3, context_length=40, patch_length=8, patch_stride=8, d_model=16)
