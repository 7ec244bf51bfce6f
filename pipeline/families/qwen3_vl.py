"""Qwen3-VL, dense and MoE: as Qwen2-VL for text and images (its processor config says patches of 16)."""

from dataclasses import replace

from pipeline.families import qwen2_vl

SPEC = replace(qwen2_vl.SPEC, name="qwen3_vl", processor_classes=("Qwen3VLProcessor", "Qwen3VLMoeProcessor"))
