"""Estimated lengths by the names of the online API; the code is pipeline/measure/estimate.py."""

from pipeline.measure.estimate import estimate_image_tokens as _estimate_image_tokens
from pipeline.measure.estimate import estimate_sample_length as _estimate_sample_length
from pipeline.measure.estimate import estimate_video_tokens as _estimate_video_tokens

__all__ = ["_estimate_image_tokens", "_estimate_sample_length", "_estimate_video_tokens"]
