"""The online path renders what the offline path packs; what fails is replaced by seed, counted and logged."""

import json
import logging
import random

import numpy as np
import pytest
import torch
from conversations import asked, tokenizer_of, tokens
from PIL import Image
from places import DEMO_PROCESSOR
from support.commands import main
from support.data import TinyData, clip, mixed_rows, picture
from support.errors import logged, numbers_in, raises
from support.outputs import read_ledger
from support.packed import tiny_config
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater, run_pack
from neatpack.loaders.online import (
    MEDIA_KEYS,
    LengthGroupedSampler,
    PackedDatasetWrapper,
    PreTokenizedDatasetWrapper,
    make_meta_dataset,
    neat_pack_dataset_vlm,
    packing,
    pad_collate_fn,
)

pytestmark = pytest.mark.net

PROCESSOR = str(DEMO_PROCESSOR)


# ---------------------------------------------------------------- online == offline


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The packs of an output, and the same bins filled online."""
    folder = tmp_path_factory.mktemp("both")
    data = mixed_rows(TinyData(folder / "data"), num_text=20, num_images=8)
    clip(data.folder / "a.mp4")
    data.row([("user", "<video>And<image>?"), ("assistant", "Yes.")], videos=["a.mp4"], images=["20.png"])
    meta = data.write(ratio=1.5)
    out = folder / "out"
    run_pack(tiny_config(meta, out, pack_size=1024))
    ledger = read_ledger(out)
    raw = make_meta_dataset(str(meta))
    assert len(raw) == len(ledger), "the online data set takes the same rows as often"
    by_row: dict[int, list[int]] = {}  # online, rows come in passes over the file; offline, a row's repeats together
    for index, row in enumerate(_row_numbers(ledger, len(data.rows))):
        by_row.setdefault(row, []).append(index)
    bins: dict[int, list[tuple[int, int]]] = {}
    for line in ledger:
        bins.setdefault(line["pack"], []).append((line["position"], by_row[line["row"]][line["repeat"]]))
    online = PackedDatasetWrapper(
        PreTokenizedDatasetWrapper(raw, PROCESSOR), [[i for _, i in sorted(bins[k])] for k in sorted(bins)], 1024
    )
    return PackedShards(out, pixels="fp32"), online


def _row_numbers(ledger, num_rows):
    """Row of each online sample: whole passes over the file, then the rest as it is drawn."""
    most = max(line["repeat"] for line in ledger)
    for _ in range(most):
        yield from range(num_rows)
    yield from random.Random(42).sample(range(num_rows), sum(line["repeat"] == most for line in ledger))


def test_online_packs_equal_offline_packs(both):
    offline, online = both
    packs = sorted(offline, key=lambda pack: pack["pack"])
    assert len(packs) == len(online) > 3
    assert any(pack["n_videos"] for pack in packs) and any(not pack["n_videos"] for pack in packs)
    for expected, number in zip(packs, range(len(online)), strict=True):
        found = online[number]
        assert found.keys() - expected.keys() <= {*MEDIA_KEYS} and expected.keys() - found.keys() == {"pack"}
        for key, value in found.items():
            if key not in expected:
                assert value is None
            elif isinstance(value, torch.Tensor):
                assert torch.equal(value, expected[key]), (number, key)
            else:
                assert value == expected[key], (number, key)
        batches = [neat_packed_vlm_collater([pack]) for pack in (found, expected)]
        assert batches[0].keys() == batches[1].keys()
    assert not online.dropped


def test_online_packs_through_workers(both):
    _, online = both
    loader = DataLoader(online, batch_size=2, collate_fn=neat_packed_vlm_collater, num_workers=1)
    assert sum(len(batch["input_ids"]) for batch in loader) == len(online)


def test_written_lengths_are_exact(tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=10, num_images=4)
    clip(data.folder / "a.mp4")
    data.row([("user", "<video>What?"), ("assistant", "Grey.")], videos=["a.mp4"])
    data.row([("user", "<image>Lost?"), ("assistant", "Yes.")], images=["absent.png"])
    written = tmp_path / "lengths"
    flags = ["--meta", str(data.write()), "--processor", PROCESSOR, "--engine", "inline", "--max-skipped", "0.1"]
    assert main(["plan", *flags, "--write-lengths", str(written)]) == 0
    rows = [json.loads(line) for line in (written / "000.jsonl").read_text().splitlines()]
    assert [
        {k: v for k, v in row.items() if k in data.rows[0] | {"videos": 1, "images": 1}} for row in rows
    ] == data.rows
    assert "_text_tokens" not in rows[-1], "a row that cannot be used is as it was"
    raw = make_meta_dataset(str(written / "meta.json"))
    assert raw.stats["n_missing_text_tokens"] == 1
    good = raw[:-1]
    tokenized = PreTokenizedDatasetWrapper(good, PROCESSOR, inject_fake_images=False)
    for index, example in enumerate(good):
        sample = tokenized[index]
        assert example["_text_tokens"] + example["_media_tokens"] == len(sample["input_ids"])
        assert example["_media_tokens"] == int((sample["mm_token_type_ids"] > 0).sum())
    # so that packs planned from them are full to the token, and lose nothing
    packed = neat_pack_dataset_vlm(tokenized, 256, ds_raw=good, processor=PROCESSOR, drop_long_samples=True)
    packs = [packed[number] for number in range(len(packed))]
    kept = [example for example in good if example["_text_tokens"] + example["_media_tokens"] - 1 <= 256]
    assert sum(len(pack["seq_lens"]) for pack in packs) == len(kept) > 5
    assert not packed.dropped


# ---------------------------------------------------------------- PreTokenizedDatasetWrapper


def test_a_sample(image):
    dataset = PreTokenizedDatasetWrapper([asked("What?", "That.", ("image", image))], PROCESSOR)
    sample = dataset[0]
    assert len(dataset) == 1
    assert sample["input_ids"].shape == sample["attention_mask"].shape == sample["labels"].shape
    trained = sample["labels"] != -100
    assert torch.equal(sample["labels"][trained], sample["input_ids"][trained]), "nothing is shifted yet"
    assert tokenizer_of(PROCESSOR).decode(sample["labels"][trained]) == "That.<|im_end|>"
    assert sample["pixel_values"].dtype == torch.float32
    assert len(sample["pixel_values"]) == int(sample["image_grid_thw"].prod())


def test_text_gets_a_fake_image_that_nobody_sees():
    dataset = PreTokenizedDatasetWrapper([asked("Who?", "Me.")], PROCESSOR)
    plain = PreTokenizedDatasetWrapper([asked("Who?", "Me.")], PROCESSOR, inject_fake_images=False)
    with_fake, without = dataset[0], plain[0]
    length = len(without["input_ids"])
    assert torch.equal(with_fake["input_ids"][:length], without["input_ids"])
    assert with_fake["attention_mask"][length:].tolist() == [0, 0, 0]
    assert with_fake["labels"][length:].tolist() == [-100, -100, -100]
    assert with_fake["n_images"] == 1 and len(with_fake["image_grid_thw"]) == 1
    assert "pixel_values" in pad_collate_fn([with_fake], tokenizer_of(PROCESSOR))
    assert "pixel_values" not in without


def test_overlong_samples_are_replaced_or_cut(caplog):
    samples = [asked("Count.", " ".join(map(str, range(200)))), asked("Who?", "Me.")]
    dataset = PreTokenizedDatasetWrapper(samples, PROCESSOR, max_length=40, seed=3)
    with caplog.at_level(logging.WARNING):
        replaced = dataset[0]
    assert torch.equal(replaced["input_ids"], dataset[1]["input_ids"])
    assert dataset.failures["overlong"] >= 1
    index, kind, error = logged(caplog, "loaders.online.robust")[0]
    assert (index, kind, error.reason) == (0, "SampleError", "overlong") and 40 in numbers_in(str(error))
    cut = PreTokenizedDatasetWrapper(samples, PROCESSOR, max_length=40, truncate=True, inject_fake_images=False)[0]
    assert len(cut["input_ids"]) == 40
    assert (cut["labels"] != -100).any()


def test_a_fake_image_never_makes_a_sample_too_long():
    length = len(
        PreTokenizedDatasetWrapper([asked("Who?", "Me.")], PROCESSOR, inject_fake_images=False)[0]["input_ids"]
    )
    sample = PreTokenizedDatasetWrapper([asked("Who?", "Me.")], PROCESSOR, max_length=length)[0]
    assert len(sample["input_ids"]) == length


def test_when_nothing_is_short_enough():
    samples = [asked("Count.", "1 2 3 4 5 6 7 8 9") for _ in range(3)]
    with raises(RuntimeError, "sample-retries", error="SampleError", retries=4, sample=1):
        PreTokenizedDatasetWrapper(samples, PROCESSOR, max_length=5, max_retries=4)[1]


def test_broken_media_and_placeholders_without_media(tmp_path, image):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    bad = [
        asked("What?", "That.", ("image", str(tmp_path / "broken.png"))),
        asked("What?", "That.", ("image", str(tmp_path / "absent.png"))),
        {"conversation": [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "x"}]},
        {"conversation": []},
    ]
    for example, reason in zip(bad, ("bad_media", "missing_media", "bad_placeholders", "bad_row"), strict=True):
        alone = PreTokenizedDatasetWrapper([example], PROCESSOR, max_retries=1)
        with raises(RuntimeError, "sample-retries", sample=0):
            alone[0]
        assert set(alone.failures) == {reason}
    dataset = PreTokenizedDatasetWrapper([*bad, asked("Who?", "Me.", ("image", image))], PROCESSOR, max_retries=50)
    assert all("pixel_values" in dataset[index] for index in range(5))
    assert set(dataset.failures) <= {"bad_media", "missing_media", "bad_placeholders", "bad_row"}


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
def test_a_picture_in_memory_is_the_picture_in_its_file(tmp_path, mode):
    path = picture(tmp_path / "a.png", 60, 90, mode="RGB" if mode == "I;16" else mode)
    if mode == "I;16":
        grey = np.arange(60 * 90, dtype=np.uint16).reshape(60, 90) * 12
        Image.fromarray(grey).save(path)
    held, named = (
        PreTokenizedDatasetWrapper([asked("What?", "That.", ("image", value))], PROCESSOR)[0]["pixel_values"]
        for value in (Image.open(path), str(path))
    )
    assert torch.equal(held, named)


def test_no_samples():
    dataset = PreTokenizedDatasetWrapper([], PROCESSOR)
    assert len(dataset) == 0
    with raises(IndexError, "document-unknown", sample=0, samples=0):
        dataset[0]


# ---------------------------------------------------------------- packs


class TestForeignSamples:
    def test_packs_tell_what_samples_do_not(self):
        grids = torch.tensor([[1, 2, 2], [1, 4, 2]])
        seen = tokens(5, 6, 7) | {"image_grid_thw": grids, "pixel_values": torch.zeros(12, 3),
                                  "mm_token_type_ids": torch.tensor([[0, 1, 0]])}  # fmt: skip
        pack = PackedDatasetWrapper([tokens(1, 2, 3), seen], [[0, 1]], 8)[0]
        assert pack["mm_token_type_ids"].tolist() == [0, 0, 0, 1]
        assert (pack["n_images"], pack["n_videos"], pack["n_audios"]) == (2, 0, 0)
        batch = neat_packed_vlm_collater([pack, PackedDatasetWrapper([tokens(1, 2)], [[0]], 8)[0]])
        assert batch["mm_token_type_ids"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
        assert batch["n_images_per_sample"].tolist() == [2, 0]

    def test_padding_fills_documents_up(self):
        packed = PackedDatasetWrapper([tokens(1, 2, 3, 4), tokens(5, 6)], [[0, 1]], 8, padding_idx=9, align=4)
        pack = packed[0]
        assert pack["input_ids"].tolist() == [1, 2, 3, 9, 5, 9, 9, 9]
        assert pack["labels"].tolist() == [2, 3, 4, -100, 6, -100, -100, -100]
        assert pack["seq_lens"].tolist() == [3, 1] and pack["seq_lens_padded"].tolist() == [4, 4]
        tight = PackedDatasetWrapper([tokens(1, 2, 3, 4), tokens(5, 6)], [[0, 1]], 7, align=4)
        assert tight[0]["seq_lens"].tolist() == [3] and tight.dropped == {"no_room": 1}, "padding takes room, too"
        planned = neat_pack_dataset_vlm([tokens(1, 2, 3, 4), tokens(5, 6)], 7, align=4)
        assert len(planned) == 2 and planned[0]["seq_lens_padded"].tolist() == [4]
        with raises(ValueError, "loader-argument", align=0, max_retries=10):
            PackedDatasetWrapper([], [], 8, align=0)

    def test_what_fails_is_tried_again(self, caplog):
        class Flaky:
            """The first three times that it is asked, nothing comes."""

            def __init__(self):
                self.asked = 0

            def __getitem__(self, index):
                self.asked += 1
                if self.asked <= 3:
                    raise OSError("no answer")
                return tokens(1, 2)

        assert PackedDatasetWrapper(Flaky(), [[0]], 4, max_retries=3)[0]["input_ids"].tolist() == [1]
        packed = PackedDatasetWrapper(Flaky(), [[0, 1]], 4, max_retries=2)
        assert packed[0]["seq_lens"].tolist() == [1] and packed.dropped == {"OSError": 1}
        assert [args[:2] for args in logged(caplog, "loaders.online.packing")] == [(0, "OSError")]
        with raises(ValueError, "loader-argument", align=1, max_retries=-1):
            PackedDatasetWrapper([], [], 8, max_retries=-1)

    def test_what_a_sample_is_does_not_change(self, monkeypatch):
        """A row that cannot be used is read once."""
        inner = PreTokenizedDatasetWrapper([{"conversation": []}, asked("Who?", "Me.")], PROCESSOR)
        read = []
        tokenized = inner.tokenized
        monkeypatch.setattr(inner, "tokenized", lambda index, **more: read.append(index) or tokenized(index, **more))
        packed = PackedDatasetWrapper(inner, [[0, 1]], 64)
        packed[0]
        assert read == [0, 1] and packed.dropped == {"bad_row": 1}


@pytest.mark.parametrize("name", ["_shift_sample", "_compute_mrope_position_ids", "_build_packed_vlm_sample"])
def test_patched_steps_are_called(monkeypatch, name):
    called = []
    step = getattr(packing, name)
    monkeypatch.setattr(packing, name, lambda *args, **kwargs: called.append(name) or step(*args, **kwargs))
    packed = PackedDatasetWrapper([tokens(1, 2, 3)], [[0]], 8, get_rope_index=lambda input_ids: (input_ids, None))
    assert packed[0]["input_ids"].tolist() == [1, 2]
    assert called == [name]


@pytest.mark.parametrize("wrapped", [PreTokenizedDatasetWrapper, PackedDatasetWrapper])
def test_wrappers_draw_a_failing_batch_anew(wrapped):
    samples = [asked("Who?", f"Number {number}.") for number in range(8)]
    tokenized = PreTokenizedDatasetWrapper(samples, PROCESSOR, seed=5)
    packed = PackedDatasetWrapper(tokenized, [[number] for number in range(8)], 99)
    dataset = tokenized if wrapped is PreTokenizedDatasetWrapper else packed
    seen = []

    def picky(batch):
        seen.append([item["input_ids"].tolist() for item in batch])
        if len(seen) % 2:
            raise ValueError("not these")
        return batch

    collate = dataset.robust_collate(picky)
    collate([dataset[0], dataset[1]])
    assert collate.failures == {"ValueError": 1} and len(seen[1]) == 2  # type: ignore[attr-defined]
    dataset.robust_collate(picky)([dataset[0], dataset[1]])
    assert seen[2:] == seen[:2], "by the seed of the data set"
    assert collate.seed == 5  # type: ignore[attr-defined]


def test_what_does_not_fit_is_told(caplog):
    packed = PackedDatasetWrapper([tokens(1, 2, 3), tokens(4, 5, 6)], [[0, 1]], 3)
    with caplog.at_level(logging.WARNING):
        assert packed[0]["seq_lens"].tolist() == [2]
    assert packed.dropped == {"no_room": 1}
    ((index, reason, detail),) = logged(caplog, "loaders.online.packing")
    assert (index, reason, numbers_in(detail)) == (1, "no_room", [2, 1, 0])


def test_an_empty_pack_gives_way_to_the_next(caplog):
    packed = PackedDatasetWrapper([tokens(1, 2, 3), tokens(4, 5)], [[0], [1]], 1)
    assert packed[0]["input_ids"].tolist() == [4]
    assert packed.dropped == {"no_room": 1, "empty_pack": 1}
    assert (0, 1) in logged(caplog, "loaders.online.packing")
    with raises(RuntimeError, "sample-retries", dropped={"no_room": 3}, pack=0, retries=2):
        PackedDatasetWrapper([tokens(1, 2, 3)], [[0]], 1, max_retries=2)[0]
    with pytest.raises(IndexError):
        packed[2]


def raw(*lengths, media=0):
    return [{"conversation": [], "_text_tokens": n + 1, "_media_tokens": media} for n in lengths]


class TestNeatPack:
    def test_bins(self):
        packed = neat_pack_dataset_vlm(raw(4, 3, 2, 1), 5)
        assert sorted(sorted(bin_) for bin_ in packed.bins) == [[0, 3], [1, 2]]
        assert isinstance(packed, PackedDatasetWrapper)
        assert (packed.pack_size, packed.padding_idx, packed.has_mrope) == (5, 0, False)

    def test_ratio_leaves_room(self):
        assert len(neat_pack_dataset_vlm(raw(4, 4, 4, 4), 10, packing_ratio=0.5).bins) == 4
        assert len(neat_pack_dataset_vlm(raw(9), 10, packing_ratio=0.5).bins) == 1, "longer than the fill, not the pack"
        with raises(ValueError, "loader-argument", argument="packing_ratio", got=0):
            neat_pack_dataset_vlm(raw(1), 10, packing_ratio=0)

    def test_long_samples(self, caplog):
        kept = neat_pack_dataset_vlm(raw(4, 11, 5), 10)
        assert sorted(map(sorted, kept.bins)) == [[0, 2], [1]], "a pack of its own: the length is a guess"
        (told,) = logged(caplog, "loaders.online.packing")
        assert (told[0], told[1], told[-1]) == (1, 3, 10)
        caplog.clear()
        assert neat_pack_dataset_vlm(raw(4, 11), 10, drop_long_samples=True).bins == [[0]]
        (told,) = logged(caplog, "loaders.online.packing")
        assert (told[0], told[1], told[-1]) == (1, 2, 10)
        assert neat_pack_dataset_vlm(raw(11, 12), 10, drop_long_samples=True).bins == []

    def test_what_is_truly_too_long_is_seen_when_it_is_tokenized(self):
        """Two guesses of 400 tokens: the first sample has 16, the second 126. A pack holds 60."""
        talks = [asked("Who?", "Me."), asked("Count.", "é1?" * 28), asked("And?", "You.")]
        samples = PreTokenizedDatasetWrapper(talks, PROCESSOR, inject_fake_images=False)
        packed = neat_pack_dataset_vlm(samples, 60, ds_raw=raw(400, 400, 20))
        assert sorted(packed.bins) == [[0], [1], [2]]
        found = [packed[number]["input_ids"].tolist() for number in range(3)]
        assert sorted(found[packed.bins.index([index])] for index in (0, 2)) == sorted(
            samples.tokenized(index)["input_ids"][:-1].tolist() for index in (0, 2)
        )
        assert packed.dropped == {"no_room": 1, "empty_pack": 1}, "and the next pack came in its place"

    def test_a_picture_of_unknown_size(self):
        """500 tokens are guessed; the pack holds 64, and the picture needs 6."""
        unsized = {"conversation": [{"role": "user", "content": [{"type": "image"}]}], "_text_tokens": 5}
        for sizes in ({}, {"mm_inputs_meta": {"images_meta": [None]}}, {"mm_inputs_meta": {"images_meta": [[0, 0]]}}):
            for processor in (None, PROCESSOR):
                assert neat_pack_dataset_vlm([unsized | sizes], 64, processor=processor).bins == [[0]]

    def test_max_packs(self):
        assert len(neat_pack_dataset_vlm(raw(9, 9, 9), 10, max_packs=2).bins) == 2

    def test_neighbours_have_similar_media(self):
        samples = [*raw(5), *raw(1, media=8), *raw(7), *raw(3, media=4)]
        visual = [0, 8, 0, 4]
        packed = neat_pack_dataset_vlm(samples, 10)
        loads = [sum(visual[i] for i in bin_) for bin_ in packed.bins]
        assert loads == sorted(loads)
        assert len(neat_pack_dataset_vlm(samples, 10, balance_media_tokens=False).bins) == len(packed.bins)

    def test_the_raw_samples_are_the_same_ones(self):
        with raises(ValueError, "lengths-invalid", expected=2, got=1, name="ds_raw"):
            neat_pack_dataset_vlm(raw(1, 2), 10, ds_raw=raw(1))
        assert neat_pack_dataset_vlm([], 10).bins == []

    def test_exact_lengths_lose_nothing(self, tmp_path, caplog):
        data = mixed_rows(TinyData(tmp_path / "data"), num_text=20, num_images=6)
        data.row([("user", "<image>Lost?"), ("assistant", "Yes.")], images=["absent.png"])
        raw_rows = make_meta_dataset(str(data.write()))
        samples = PreTokenizedDatasetWrapper(raw_rows, PROCESSOR)
        guessed, exact = (
            neat_pack_dataset_vlm(samples, 256, drop_long_samples=True, exact_lengths=way) for way in (False, True)
        )
        assert (1, 27, {"missing_media": 1}) in logged(caplog, "loaders.online.packing")
        for number in range(len(guessed)):
            guessed[number]
        assert guessed.dropped["no_room"] > 0, "what guessing costs"
        packs = [exact[number] for number in range(len(exact))]
        assert not exact.dropped
        short = [index for index in range(26) if len(samples.tokenized(index)["input_ids"]) - 1 <= 256]
        assert sorted(index for bin_ in exact.bins for index in bin_) == short
        assert sum(len(pack["seq_lens"]) for pack in packs) >= len(short)
        with raises(ValueError, "option-missing", argument="processor"):
            neat_pack_dataset_vlm(raw(1), 10, exact_lengths=True)

    def test_there_is_room_for_a_fake_image(self):
        """Two samples of 20 tokens fill a pack of 40; with a fake image of 3 they do not fit."""
        samples = [asked("Who?", "Me.") for _ in range(2)]
        plain = PreTokenizedDatasetWrapper(samples, PROCESSOR, inject_fake_images=False)
        length = len(plain[0]["input_ids"]) - 1
        assert len(neat_pack_dataset_vlm(plain, 2 * length, exact_lengths=True)) == 1
        seen = neat_pack_dataset_vlm(PreTokenizedDatasetWrapper(samples, PROCESSOR), 2 * length, exact_lengths=True)
        assert [seen[number]["n_images"] for number in range(len(seen))] == [1, 1]

    def test_a_processor_tells_what_media_cost(self):
        """60 x 90 pixels are 2 x 3 merged patches of 28 for the demo's processor; without one, 500 tokens."""
        sized = [{"conversation": [{"role": "user", "content": [{"type": "image"}]}], "_text_tokens": 5,
                  "mm_inputs_meta": {"images_meta": [[60, 90]]}}]  # fmt: skip
        assert neat_pack_dataset_vlm(sized, 20, processor=PROCESSOR).bins == [[0]]
        assert neat_pack_dataset_vlm(sized, 20, drop_long_samples=True).bins == []
        assert LengthGroupedSampler(sized, processor=PROCESSOR).lengths == [11]

    def test_tokenized_samples_tell_their_length(self):
        assert neat_pack_dataset_vlm([tokens(1, 2, 3), tokens(4, 5)], 3).bins == [[0, 1]]
