"""Frames are taken as transformers' BaseVideoProcessor takes them."""

import pytest
from hypothesis import given, strategies as st
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.rules import configured, refuse_settings, uniform_frames


@given(total=st.integers(1, 5000), number=st.integers(1, 5000), fps=st.floats(1, 120), asked=st.floats(0.01, 120))
def test_by_number_by_rate_and_all(total, number, fps, asked):
    metadata = VideoMetadata(total_num_frames=total, fps=fps)
    for by in ({"num_frames": number}, {"fps": asked}, {}):
        ours = uniform_frames(total, fps, num_frames=by.get("num_frames"), asked_fps=by.get("fps")).tolist()
        try:
            assert ours == default_sample_indices_fn(metadata, **by).tolist()
        except ValueError:  # more frames than there are
            assert ours == sorted(ours)
            assert len(ours) == by.get("num_frames", total)
            assert set(ours) == set(range(total))


def test_no_more_than():
    assert uniform_frames(10, 5.0, num_frames=None, asked_fps=None, max_frames=4).tolist() == [0, 2, 5, 7]
    assert uniform_frames(10, 5.0, num_frames=3, asked_fps=None, max_frames=4).tolist() == [0, 3, 6]


def test_configs_are_laid_over_defaults():
    assert configured("here", "ours", {"a": 1, "b": [2]}, {"a": None, "b": [3], "c": 4}) == {"a": 1, "b": [3], "c": 4}
    with pytest.raises(UserError, match="--processor here: do_rescale is false, which ours does not support"):
        configured("here", "ours", {}, {"do_rescale": False})


def test_settings_that_cannot_be_followed():
    refuse_settings(ProcessorKey(processor=""), "ours", min_pixels="does not")
    with pytest.raises(UserError, match="--video-max-frames 3: ours does not; leave it out"):
        refuse_settings(ProcessorKey(processor="", video_max_frames=3), "ours", video_max_frames="does not")
