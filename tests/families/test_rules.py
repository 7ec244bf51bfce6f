"""Frames are taken as transformers' BaseVideoProcessor takes them."""

from hypothesis import given, strategies as st
from support.errors import raises
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
    with raises(UserError, "processor-unsupported", key="do_rescale", family="ours"):
        configured("here", "ours", {}, {"do_rescale": False})


def test_settings_that_cannot_be_followed():
    refuse_settings(ProcessorKey(processor=""), "ours", min_pixels="does not")
    with raises(UserError, "option-conflict", option="video_max_frames", family="ours"):
        refuse_settings(ProcessorKey(processor="", video_max_frames=3), "ours", video_max_frames="does not")
