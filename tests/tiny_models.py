"""Tiny, randomly initialised models of transformers, for each family and the vocabulary of its tests' processor; and
other attention for them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers  # its names one by one: older versions, which tests/loaders/other_transformers.py tries, lack some
from places import DEMO_PROCESSOR
from processors import gemma3, gemma4, internvl, llava_onevision
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neatpack.loaders.mended import mend

DEMO = json.loads((DEMO_PROCESSOR / "config.json").read_text())
IDS = {key: DEMO[key] for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
TEXT = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
VISION = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
ROPE_KEY = "rope_scaling" if transformers.__version__.startswith("4.") else "rope_parameters"


def save_model(folder: Path) -> Path:
    """Write a tiny Qwen2.5-VL with random weights, and its tokenizer, as a folder that `from_pretrained` loads."""
    shutil.copytree(DEMO_PROCESSOR, folder)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(DEMO_PROCESSOR)
    transformers.AutoModelForImageTextToText.from_config(config).float().save_pretrained(folder)
    return folder


def tiny_model(kind: str) -> Any:
    """Of the Qwens, for the demo's processor, and for Qwen3-Omni's of the tests."""
    torch.manual_seed(0)
    if kind == "qwen2_vl":
        vision = {**VISION, "embed_dim": 32, "hidden_size": 64, "in_channels": 3, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config={**TEXT, ROPE_KEY: ROPE}, vision_config=vision, **IDS)
        model = transformers.Qwen2VLForConditionalGeneration
    elif kind == "qwen2_5_vl":
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "window_size": 56,
                  "fullatt_block_indexes": [1], "in_channels": 3,
                  "tokens_per_second": DEMO["vision_config"]["tokens_per_second"]}  # fmt: skip
        config = transformers.Qwen2_5_VLConfig(text_config={**TEXT, ROPE_KEY: ROPE}, vision_config=vision, **IDS)
        model = transformers.Qwen2_5_VLForConditionalGeneration
    elif kind == "qwen3_omni":
        vision = {**VISION, "patch_size": 16, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48,
                  "in_channels": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
        audio = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
                 "output_dim": 64, "downsample_hidden_size": 8}  # fmt: skip
        rope = {**ROPE, "mrope_interleaved": True}
        text = {**TEXT, "vocab_size": 2056, "head_dim": 16, ROPE_KEY: rope, "num_experts": 4,
                "num_experts_per_tok": 2, "moe_intermediate_size": 32}  # fmt: skip
        text.pop("tie_word_embeddings")
        config = transformers.Qwen3OmniMoeThinkerConfig(
            text_config=text, vision_config=vision, audio_config=audio, position_id_per_seconds=13,
            audio_token_id=2050, audio_start_token_id=2048, **IDS,
        )  # fmt: skip
        model = transformers.Qwen3OmniMoeThinkerForConditionalGeneration
    elif kind == "qwen2_5_omni":
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "window_size": 56,
                  "fullatt_block_indexes": [1], "in_channels": 3}  # fmt: skip
        audio = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
                 "output_dim": 64, "n_window": 20}  # fmt: skip
        ids = {f"{name}_token_index": number for name, number in zip(("image", "video", "audio"), range(2048, 2051),
                                                                    strict=True)}  # fmt: skip
        marks = {"vision_start_token_id": 2051, "vision_end_token_id": 2052, "audio_start_token_id": 2053,
                 "audio_end_token_id": 2054}  # fmt: skip
        config = transformers.Qwen2_5OmniThinkerConfig(
            text_config={**TEXT, "vocab_size": 2064, ROPE_KEY: ROPE}, vision_config=vision, audio_config=audio,
            position_id_per_seconds=25, **ids, **marks,
        )  # fmt: skip
        model = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    elif kind in ("qwen3_5", "qwen3_5_moe"):
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "in_channels": 3,
                  "num_position_embeddings": 64}  # fmt: skip
        text = {**TEXT, "head_dim": 16, "num_hidden_layers": 3, ROPE_KEY: {**ROPE, "partial_rotary_factor": 1.0},
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                "linear_value_head_dim": 16}  # fmt: skip
        if kind == "qwen3_5_moe":
            text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                     "shared_expert_intermediate_size": 32}  # fmt: skip
            config, model = transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration
        else:
            config, model = transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration
        config = config(text_config=text, vision_config=vision, **IDS)  # type: ignore[operator]
    else:
        vision = {**VISION, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "in_channels": 3,
                  "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
        rope = {**ROPE, "mrope_interleaved": True}
        text = {**TEXT, "head_dim": 16, ROPE_KEY: rope}
        if kind == "qwen3_vl_moe":
            text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
            config, model = transformers.Qwen3VLMoeConfig, transformers.Qwen3VLMoeForConditionalGeneration
        else:
            config, model = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
        config = config(text_config=text, vision_config=vision, **IDS)  # type: ignore[operator]
    std = 0.2 if kind == "qwen2_5_omni" else 0.1  # sounds of equal tones hide a wrong mask from smaller ones
    return with_large_weights(model._from_config(config, attn_implementation="sdpa"), std)


def with_large_weights(model: Any, std: float = 0.1) -> Any:
    """With the usual tiny initial weights all attention is alike, and a wrong mask would hardly show."""
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=std)
    return model


def tiny_gemma3(family: Any) -> Any:
    """Sliding and full layers; in float64, as Gemma 4."""
    torch.manual_seed(0)
    text = {"vocab_size": 2112, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 16,
            "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": gemma3.SLIDING_WINDOW,
            "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "full")],
            "pad_token_id": family.chat.padding_id}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": gemma3.SIDE, "patch_size": 8}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=gemma3.TOKENS_OF_A_PICTURE,
        image_token_index=family.chat.placeholder_ids["image"],
    )  # fmt: skip
    made = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    return with_large_weights(made).double()


def tiny_gemma4(family: Any, bidirectional: str | None = None) -> Any:
    """Sliding and full layers, per-layer inputs, shared keys.

    Gemma norms everything, so that small weights hide no wrong mask (it makes differences of about 1). In float64: the
    rounding of float32 differs from machine to machine, by 3e-6 to 1.2e-5 of these logits.
    """
    torch.manual_seed(0)
    text = {
        "vocab_size": 2112, "vocab_size_per_layer_input": 2112, "hidden_size": 32, "hidden_size_per_layer_input": 4,
        "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "global_head_dim": 32, "sliding_window": gemma4.SLIDING_WINDOW, "num_kv_shared_layers": 2,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
        "use_bidirectional_attention": bidirectional, "pad_token_id": family.chat.padding_id,
    }  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 256}  # fmt: skip
    audio = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 32,
             "subsampling_conv_channels": [128, 4]}  # fmt: skip
    ids = {f"{kind}_token_id": number for kind, number in family.chat.placeholder_ids.items()}
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=audio, **ids)
    made = transformers.Gemma4ForConditionalGeneration(config)
    assert made.model.language_model.config._attn_implementation == "sdpa"
    model = mend(with_large_weights(made, std=0.03).double())
    tower = model.model.audio_tower.float()  # it casts to float32 within
    tower.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))

    def back(_, args, output):
        output.last_hidden_state = output.last_hidden_state.double()
        return output

    tower.register_forward_hook(back)
    return model


def tiny_glm4v(family: Any, kind: str = "Glm4v") -> Any:
    """`kind`: Glm4v, Glm4vMoe or Glm46V, the beginning of its classes' names."""
    torch.manual_seed(0)
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 48,
              "image_size": 112, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    text = {**TEXT, "vocab_size": 2064, "pad_token_id": family.chat.padding_id, ROPE_KEY: rope}
    if kind == "Glm4vMoe":
        text |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
                 "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 16}  # fmt: skip
    ids = {f"{kind}_token_id": number for kind, number in family.chat.placeholder_ids.items()}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **ids)
    made = getattr(transformers, f"{kind}ForConditionalGeneration")
    return mend(with_large_weights(made._from_config(config, attn_implementation="sdpa")))


def tiny_mistral3(family: Any, kind: str = "Mistral3", text: str = "mistral") -> Any:
    """`kind`: Mistral3, or Llava, which Pixtral is. `text`: mistral or ministral3."""
    torch.manual_seed(0)
    vision = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 2, "image_size": 448, "patch_size": 14}  # fmt: skip
    words = {"model_type": text, "vocab_size": 2064, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    more = {"vision_feature_select_strategy": "full"} if kind == "Llava" else {"spatial_merge_size": 2}
    config = getattr(transformers, f"{kind}Config")(
        text_config=words, vision_config=vision, image_token_index=family.chat.placeholder_ids["image"],
        vision_feature_layer=-1, **more,
    )  # fmt: skip
    made = getattr(transformers, f"{kind}ForConditionalGeneration")
    return with_large_weights(made._from_config(config, attn_implementation="sdpa")).double()


def tiny_kimi_k25(family: Any) -> Any:
    torch.manual_seed(0)
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
              "pos_emb_height": 8, "pos_emb_width": 8}  # fmt: skip
    words = {"model_type": "deepseek_v3", "vocab_size": 2064, "hidden_size": 64, "intermediate_size": 96,
             "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
             "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
             "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
             "max_position_embeddings": 2048}  # fmt: skip
    config = transformers.Kimi_K25Config(
        text_config=words, vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False,
        image_token_id=family.chat.placeholder_ids["image"], video_token_id=family.chat.placeholder_ids["video"],
    )  # fmt: skip
    model = with_large_weights(
        transformers.Kimi_K25ForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    )
    return mend(model)


def tiny_llava_onevision(family: Any) -> Any:
    torch.manual_seed(0)
    vision = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 2, "image_size": llava_onevision.SIDE, "patch_size": 14,
              "vision_use_head": False}  # fmt: skip
    words = {"model_type": "qwen2", "vocab_size": 2064, "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    config = transformers.LlavaOnevisionConfig(
        text_config=words, vision_config=vision, image_token_index=family.chat.placeholder_ids["image"],
        video_token_index=family.chat.placeholder_ids["video"], image_grid_pinpoints=llava_onevision.PINPOINTS,
        vision_aspect_ratio="anyres_max_4",
    )  # fmt: skip
    return with_large_weights(
        transformers.LlavaOnevisionForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    )


def tiny_internvl(family: Any) -> Any:
    torch.manual_seed(0)
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": [internvl.SIDE] * 2, "patch_size": [14, 14]}  # fmt: skip
    words = {"model_type": "qwen2", "vocab_size": 2064, "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    config = transformers.InternVLConfig(
        text_config=words, vision_config=vision, image_token_id=family.chat.placeholder_ids["image"]
    )
    model = with_large_weights(
        transformers.InternVLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    )
    return model.double()


def tiny_phi4_mm(family: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.Phi4MultimodalConfig(
        vocab_size=2112, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=family.chat.padding_id, sliding_window=None,
        max_position_embeddings=4096, original_max_position_embeddings=4096,
        vision_config={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                       "image_size": 64, "crop_size": 64, "patch_size": 2, "feature_layer": -2,
                       "image_token_id": family.chat.placeholder_ids["image"]},
        audio_config={"hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2,
                      "ext_pw_out_channel": 32, "nemo_conv_channels": 32, "depthwise_separable_out_channel": 32,
                      "audio_token_id": family.chat.placeholder_ids["audio"]},
    )  # fmt: skip
    return with_large_weights(transformers.Phi4MultimodalForCausalLM._from_config(config, attn_implementation="sdpa"))


def tiny_llava(family: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", "vocab_size": 2112, "hidden_size": 32, "intermediate_size": 48,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        vision_config={"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24,
                       "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        image_token_index=family.chat.placeholder_ids["image"],
    )  # fmt: skip
    return with_large_weights(
        transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    )


def tiny_idefics3(family: Any, kind: str = "Idefics3") -> Any:
    """`kind`: or SmolVLM."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        text_config={"model_type": "llama", "vocab_size": 2112, "hidden_size": 32, "intermediate_size": 48,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0},
        vision_config={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                       "image_size": 32, "patch_size": 8},
        image_token_id=family.chat.placeholder_ids["image"], scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    made = getattr(transformers, f"{kind}ForConditionalGeneration")
    return with_large_weights(made._from_config(config, attn_implementation="sdpa")).double()


def reference_varlen(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """A varlen kernel in plain torch, told of documents by cu_seq_lens_q and of windows, as flash attention is."""
    batch, heads, length, _ = query.shape
    q, k, v = (x.repeat_interleave(heads // x.shape[1], 1).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    assert attention_mask is None
    bounds = kwargs["cu_seq_lens_q"].tolist()
    assert torch.equal(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]) and bounds[-1] == batch * length
    found = []
    for first, last in zip(bounds, bounds[1:], strict=False):
        assert last - first <= kwargs["max_length_q"] == kwargs["max_length_k"]
        seen = torch.ones(last - first, last - first, dtype=torch.bool).tril()
        if kwargs.get("sliding_window"):
            seen = seen.triu(1 - kwargs["sliding_window"])
        one = (x[first:last].transpose(0, 1) for x in (q, k, v))
        found.append(torch.nn.functional.scaled_dot_product_attention(*one, attn_mask=seen, scale=scaling))  # type: ignore[misc]
    return torch.cat(found, dim=1).transpose(0, 1).unflatten(0, (batch, length)), None


ALL_ATTENTION_FUNCTIONS.register("flash_reference", reference_varlen)


@contextmanager
def attention(model: Any, name: str) -> Iterator[None]:
    """The text model with other attention. flex_attention is not compiled: that needs a C++ compiler."""
    text = model.get_decoder().config
    configs = [text, *(getattr(text, name) for name in text.sub_configs)]  # Phi's has those of pictures and sounds
    before = [config._attn_implementation for config in configs]
    for config, kind in zip(configs, [name, *before[1:]], strict=True):
        config._attn_implementation = kind
    with torch.compiler.set_stance("force_eager"):
        yield
    for config, kind in zip(configs, before, strict=True):
        config._attn_implementation = kind
