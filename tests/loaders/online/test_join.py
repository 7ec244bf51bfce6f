"""Samples laid end to end, and their positions by a model's own get_rope_index."""

from functools import partial, wraps

import pytest
import torch
from conversations import asked, tokens
from helpers import DEMO_PROCESSOR, clip, picture, tone
from processors import qwen3_omni
from support.errors import raises
from tiny_models import tiny_model
from torch.utils.data import DataLoader

from neatpack import neat_packed_vlm_collater
from neatpack.loaders.online import PackedDatasetWrapper, PreTokenizedDatasetWrapper, neat_pack_dataset_vlm
from neatpack.loaders.online.join import _build_packed_vlm_sample, _compute_mrope_position_ids, _shift_sample

PROCESSOR = str(DEMO_PROCESSOR)


def test_shift_and_join():
    first, second = (_shift_sample(s) for s in (tokens(1, 2, 3, first_target=1), tokens(7, 8, first_target=1)))
    assert (first["input_ids"].tolist(), first["labels"].tolist()) == ([1, 2], [2, 3])
    pack = _build_packed_vlm_sample([first, second], 4, 0)
    assert pack["input_ids"].tolist() == [1, 2, 7]
    assert pack["labels"].tolist() == [2, 3, 8]
    assert pack["attention_mask"].tolist() == [1, 1, 2]
    assert pack["position_ids"].tolist() == [0, 1, 0]
    assert pack["seq_lens"].tolist() == [2, 1]
    with raises(ValueError, "pack-size", pack_size=2, tokens=3):
        _build_packed_vlm_sample([first, second], 2, 0)


def test_a_foreign_dataset_and_the_models_own_positions():
    def get_rope_index(input_ids, attention_mask):
        return torch.arange(input_ids.shape[1]).expand(3, 1, -1) * 2, None

    assert _compute_mrope_position_ids(tokens(1, 2, 3), get_rope_index).tolist() == [[0, 2, 4]] * 3
    packed = PackedDatasetWrapper([tokens(1, 2, 3), tokens(4, 5)], [[0, 1]], 8, get_rope_index=get_rope_index)
    assert packed.has_mrope
    assert packed[0]["position_ids"].tolist() == [[0, 2, 0]] * 3
    batch = neat_packed_vlm_collater([packed[0]], padding_idx=9, max_length=4)
    assert batch["input_ids"].tolist() == [[1, 2, 4, 9]]
    assert batch["position_ids"].shape == (3, 1, 4)
    assert batch["mm_token_type_ids"].tolist() == [[0, 0, 0, 0]]


class TestRopeIndex:
    """What a get_rope_index gets, and what becomes of what it gives."""

    @pytest.fixture
    def model(self):
        return tiny_model("qwen2_5_vl").model

    @pytest.fixture
    def samples(self, tmp_path):
        image, video = str(picture(tmp_path / "a.png", 60, 90)), str(tmp_path / "a.mp4")
        clip(tmp_path / "a.mp4")
        return [asked("What?", "That.", ("image", image)), asked("Who?", "Me."),
                asked("When?", "Then.", ("video", video), ("image", image))]  # fmt: skip

    def test_a_real_one_through_a_loader(self, model, samples):
        """Its positions are the family's own, so that nothing but their use can be seen: with it and without."""
        inner = PreTokenizedDatasetWrapper(samples, PROCESSOR)
        own, given = (neat_pack_dataset_vlm(inner, 512, exact_lengths=True, get_rope_index=rope)
                      for rope in (None, model.get_rope_index))  # fmt: skip
        assert (own.has_mrope, given.has_mrope) == (False, True)
        loaders = [DataLoader(packs, batch_size=2, collate_fn=neat_packed_vlm_collater) for packs in (own, given)]
        for first, second in zip(*loaders, strict=True):
            assert first.keys() == second.keys()
            assert first["position_ids"].shape[0] == 3
            assert torch.equal(first["position_ids"], second["position_ids"])
        moved = neat_pack_dataset_vlm(inner, 512, exact_lengths=True, get_rope_index=plus_seven(model.get_rope_index))
        for number in range(len(own)):
            assert torch.equal(moved[number]["position_ids"], own[number]["position_ids"] + 7), "it is not ignored"

    def test_samples_that_a_processor_made(self, model, samples):
        """No positions, no counts, and token types [1, L] or none at all: built by the model's own token ids."""
        inner = PreTokenizedDatasetWrapper(samples, PROCESSOR)
        expected = PackedDatasetWrapper(inner, [[0, 1, 2]], 512)[0]
        ours = ("position_ids", "media_layout", "n_images", "n_videos", "n_audios")
        bare = [{k: v for k, v in inner.tokenized(i).items() if k not in ours} for i in range(3)]
        rows = [sample | {"mm_token_type_ids": sample["mm_token_type_ids"][None]} for sample in bare]
        none = [{k: v for k, v in sample.items() if k != "mm_token_type_ids"} for sample in bare]
        for foreign in (rows, none, [rows[0], none[1], rows[2]]):
            pack = PackedDatasetWrapper(foreign, [[0, 1, 2]], 512, get_rope_index=model.get_rope_index)[0]
            for key in ("input_ids", "labels", "position_ids", "mm_token_type_ids", "image_grid_thw", "pixel_values"):
                assert torch.equal(pack[key], expected[key]), key
            assert (pack["n_images"], pack["n_videos"], pack["n_audios"]) == (2, 1, 0)

    def test_sounds_and_seconds_by_the_names_of_qwen3_omni(self, tmp_path, samples):
        heard = [asked("Heard?", "Yes.", ("audio", str(tone(tmp_path / "a.wav", 1.3)))), *samples]
        inner = PreTokenizedDatasetWrapper(heard, str(qwen3_omni.make(tmp_path / "processor")))
        rope = tiny_model("qwen3_omni").get_rope_index
        own, given = (
            PackedDatasetWrapper(inner, [[0, 1, 2, 3]], 2048, get_rope_index=each)[0] for each in (None, rope)
        )
        assert len(own["seq_lens"]) == 4
        assert torch.equal(own["position_ids"], given["position_ids"])

    def test_the_signature_decides(self):
        given = []

        def older(input_ids, image_grid_thw, video_grid_thw):  # all required, and nothing else is taken
            given.append((image_grid_thw, video_grid_thw))
            return torch.zeros(3, *input_ids.shape), None

        def wrapper(**kwargs):
            given.append(sorted(kwargs))
            return torch.zeros(3, 1, 2)

        grids = torch.tensor([[1, 2, 2]])
        assert _compute_mrope_position_ids(tokens(1, 2) | {"image_grid_thw": grids}, older).shape == (3, 2)
        assert _compute_mrope_position_ids(tokens(1, 2), partial(wrapper)).shape == (3, 2)
        assert given == [(grids, None), ["attention_mask", "input_ids", "mm_token_type_ids"]]
        assert _compute_mrope_position_ids(tokens(1, 2), lambda position_ids: position_ids) is None
        assert _compute_mrope_position_ids(tokens(1, 2), lambda input_ids: (input_ids, None)) is None, "one axis"
        with raises(ValueError, "item-incomplete", key="mm_token_type_ids"):
            _compute_mrope_position_ids(
                tokens(1, 2) | {"image_grid_thw": grids}, lambda input_ids, mm_token_type_ids: None
            )


def plus_seven(get_rope_index):
    @wraps(get_rope_index)
    def moved(**kwargs):
        positions, delta = get_rope_index(**kwargs)
        return positions + 7, delta

    return moved


def test_has_mrope_keeps_positions():
    """Three axes as soon as one sample has them; without has_mrope all are counted."""
    placed = tokens(1, 2, 3) | {"position_ids": torch.tensor([[4, 5, 6]] * 3)}
    kept, counted = (_shift_sample(placed, has) for has in (True, False))
    assert kept["position_ids"].tolist() == [[4, 5]] * 3 and "position_ids" not in counted
    plain = _shift_sample(tokens(8, 9))
    assert _build_packed_vlm_sample([kept, plain], 4, 0, True)["position_ids"].tolist() == [[4, 5, 0]] * 3
    assert _build_packed_vlm_sample([kept, plain], 4, 0)["position_ids"].tolist() == [0, 1, 0]
