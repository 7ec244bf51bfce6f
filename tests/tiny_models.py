"""Tiny, randomly initialised models of the three families, for the demo processor's vocabulary and patches."""

import json

import torch
from helpers import DEMO_PROCESSOR
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_vl import Qwen2VLConfig
from transformers.models.qwen3_omni_moe import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig

DEMO = json.loads((DEMO_PROCESSOR / "config.json").read_text())
IDS = {key: DEMO[key] for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
TEXT = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def tiny_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "qwen2_vl":
        vision = {**VISION, "embed_dim": 32, "hidden_size": 64, "in_channels": 3, "mlp_ratio": 2}
        config = Qwen2VLConfig(text_config={**TEXT, "rope_parameters": ROPE}, vision_config=vision, **IDS)
        model = Qwen2VLForConditionalGeneration
    elif kind == "qwen2_5_vl":
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "window_size": 56,
                  "fullatt_block_indexes": [1], "in_channels": 3}  # fmt: skip
        config = Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": ROPE}, vision_config=vision, **IDS)
        model = Qwen2_5_VLForConditionalGeneration
    elif kind == "qwen3_omni":
        vision = {**VISION, "patch_size": 16, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
                  "in_channels": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
        audio = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
                 "output_dim": 64, "downsample_hidden_size": 8}  # fmt: skip
        rope = {**ROPE, "mrope_interleaved": True}
        text = {**TEXT, "vocab_size": 2056, "head_dim": 16, "rope_parameters": rope, "num_experts": 4,
                "num_experts_per_tok": 2, "moe_intermediate_size": 32}  # fmt: skip
        text.pop("tie_word_embeddings")
        config = Qwen3OmniMoeThinkerConfig(
            text_config=text, vision_config=vision, audio_config=audio, position_id_per_seconds=13,
            audio_token_id=2050, audio_start_token_id=2048, **IDS,
        )  # fmt: skip
        model = Qwen3OmniMoeThinkerForConditionalGeneration
    else:
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "in_channels": 3,
                  "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
        rope = {**ROPE, "mrope_interleaved": True}
        config = Qwen3VLConfig(
            text_config={**TEXT, "head_dim": 16, "rope_parameters": rope}, vision_config=vision, **IDS
        )
        model = Qwen3VLForConditionalGeneration
    return with_large_weights(model._from_config(config, attn_implementation="sdpa"))


def with_large_weights(model: torch.nn.Module, std: float = 0.1) -> torch.nn.Module:
    """With the usual tiny initial weights all attention is alike, and a wrong mask would hardly show."""
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=std)
    return model
