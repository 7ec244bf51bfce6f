"""Code that was written for the older system's API: what its own tests ask for, row by row."""

import importlib
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import asked
from helpers import DEMO_PROCESSOR
from support.errors import logged, raises
from tiny_models import tiny_model
from torch.utils.data import DataLoader

from neatpack.loaders import online

PROCESSOR = str(DEMO_PROCESSOR)


# --- packs of three or four keys


def pack(documents: list[int], **more: Any) -> dict[str, Any]:
    ids = torch.arange(len(documents))
    return {"input_ids": ids, "labels": ids + 1, "attention_mask": torch.tensor(documents), **more}


KERNELS = [
    ("sdpa", {}), ("eager", {}), ("flex_attention", {}), ("thd", {}),
    ("flash_attention_2", {}), ("flash_attention_2", {"varlen_kwargs": True}), ("sdpa", {"recurrent": True}),
]  # fmt: skip


@pytest.mark.parametrize("positions", [True, False], ids=["four keys", "three keys"])
@pytest.mark.parametrize(("kernel", "options"), KERNELS)
def test_lengths_of_a_pack_are_counted_by_its_document_numbers(kernel, options, positions):
    given = {"position_ids": torch.tensor([0, 1, 0])} if positions else {}
    packs = [pack([1, 1, 2], **given), pack([1, 1, 1], **({"position_ids": torch.arange(3)} if positions else {}))]
    lengths = [torch.tensor([2, 1]), torch.tensor([3])]
    whole = [{"position_ids": torch.arange(3), **each, "seq_lens": own, "seq_lens_padded": own}
             for each, own in zip(packs, lengths, strict=True)]  # fmt: skip
    whole[0]["position_ids"] = torch.tensor([0, 1, 0])
    found, expected = (online.neat_packed_vlm_collater(each, 0, 4, kernel, **options) for each in (packs, whole))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name


def test_padding_in_a_pack_is_no_document():
    batch = online.neat_packed_vlm_collater([pack([1, 2, 2, 0])], attn_implementation="thd")
    assert (batch["seq_lens"].tolist(), batch["seq_lens_padded"].tolist()) == ([[1, 2]], [[1, 3]])
    assert batch["position_ids"].tolist() == [[0, 0, 1, 0]]


# --- negative placeholder ids


class Ids:
    """Decodes ids in one form only, and fails at negative numbers as fast tokenizers do."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def decode(self, ids: Any) -> str:
        if not isinstance(ids, self.form):
            raise TypeError("another form")
        number = int(ids if self.form is int else ids[0])
        if number < 0:
            raise OverflowError("can't convert negative int to unsigned")
        return f"<{number}>"


@pytest.mark.parametrize("form", [int, list, torch.Tensor])
@pytest.mark.parametrize(("token", "text"), [(7, "<7>"), (-200, "-200")])
def test_a_token_is_decoded_in_the_form_that_its_tokenizer_takes(form, token, text):
    assert online._decode_single_token(Ids(form), token) == text


@pytest.mark.parametrize("token", [-1, -200])
def test_a_real_tokenizer_knows_no_negative_token(tokenizer, token):
    assert online._decode_single_token(tokenizer, token) == str(token)


@pytest.mark.parametrize("build", [online.build_labels, online.build_labels_from_template])
@pytest.mark.parametrize("place", ["prompt", "before the answer", "after the answer"])
def test_labels_next_to_negative_placeholders(tokenizer, build, place):
    conversation = asked("What?", "That.")["conversation"]
    prompt, answer, end = (
        tokenizer.encode(text, add_special_tokens=False)
        for text in ("<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n", "That.", "<|im_end|>\n")
    )
    at = {"prompt": 3, "before the answer": len(prompt), "after the answer": len(prompt) + len(answer)}[place]
    ids = [*prompt, *answer, *end]
    ids[at:at] = [-200] * 3
    labels = build(torch.tensor([ids]), [conversation], tokenizer)[0]
    trained = [token for token, label in zip(ids, labels.tolist(), strict=True) if label != -100 and token >= 0]
    assert trained == [*answer, *end[: len(trained) - len(answer)]]
    assert trained[: len(answer)] == answer


# --- token types [1, L]


@pytest.mark.parametrize(
    "names", [["mm_token_type_ids"], ["input_ids", "attention_mask", "labels", "mm_token_type_ids"]]
)
def test_rows_with_a_batch_axis_are_padded_as_rows(names):
    def sample(length: int) -> dict[str, Any]:
        ids = torch.arange(length)
        return {"input_ids": ids, "attention_mask": ids * 0 + 1, "labels": ids, "mm_token_type_ids": ids % 2}

    samples = [sample(3), sample(5)]
    batched = [{name: row[None] if name in names else row for name, row in each.items()} for each in samples]
    expected, found = (online.pad_collate_fn(each, Tokenizer()) for each in (samples, batched))
    assert found.keys() == expected.keys() and found["mm_token_type_ids"].shape == (2, 4)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


class Tokenizer:
    pad_token_id = 0


# --- samples


@pytest.mark.parametrize("media", ["text", "image"])
@pytest.mark.parametrize("fake", [True, False])
def test_a_sample_has_the_media_that_are_in_it(image, media, fake):
    """A collate of the user hands all media of a sample to the model."""
    parts = [("image", image)] * (media == "image")
    samples = online.PreTokenizedDatasetWrapper([asked("What?", "That.", *parts)], PROCESSOR, inject_fake_images=fake)
    sample = samples[0]
    names = {"pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"}
    assert names & sample.keys() == ({"pixel_values", "image_grid_thw"} if fake or parts else set())
    rows = ("input_ids", "attention_mask", "labels", "mm_token_type_ids")
    batch = {name: torch.stack([each[name] for each in [sample]]) for name in rows}
    batch |= {name: sample[name] for name in names & sample.keys()}
    with torch.no_grad():
        assert torch.isfinite(tiny_model("qwen2_5_vl")(**batch).loss)


@pytest.mark.parametrize("media", ["text", "image"])
def test_a_joined_sample_has_every_media_key(image, media):
    parts = [("image", image)] * (media == "image")
    samples = online.PreTokenizedDatasetWrapper([asked("What?", "That.", *parts)], PROCESSOR, inject_fake_images=False)
    mine = {name: samples[0][name] for name in samples[0] if name != "media_layout"}
    for sample in (samples[0], mine):  # ours, and one that is silent about its layout
        pack = online._build_packed_vlm_sample([online._shift_sample(sample)], 512, 0)
        present = {name for name in online.MEDIA_KEYS if pack[name] is not None}
        assert present == ({"pixel_values", "image_grid_thw"} if parts else set())
        batch = online.neat_packed_vlm_collater([pack])
        assert present == {name for name in online.MEDIA_KEYS if name in batch}


# --- names


@pytest.mark.parametrize("name", [
    "neat_packed_vlm_collater", "VLM_PP_MEDIA_KEY", "chunk_step3_media", "chunk_vlm_media", "prepare_vlm_media_for_pp",
    "stage_vlm_media_for_pp", "wrap_vlm_collate_for_pp", "_VLM_MEDIA_KEYS", "_select_image_grid",
])  # fmt: skip
def test_every_name_imports_from_the_online_package(name):
    scope: dict[str, Any] = {}
    exec(f"from neatpack.loaders.online import {name} as found", scope)
    homes = [importlib.import_module(f"neatpack.loaders.{home}") for home in ("packed", "pp_media")]
    assert scope["found"] in [vars(home)[name] for home in homes if name in vars(home)]


# --- where media are


@pytest.mark.parametrize(("folders", "taken", "warns"), [
    (["meta"], "meta", False), (["here"], "here", False), (["meta", "here"], "meta", True),
])  # fmt: skip
def test_a_media_dir_that_exists_twice_is_warned_of(tmp_path, monkeypatch, caplog, folders, taken, warns):
    for folder in ("meta", "here"):
        (tmp_path / folder).mkdir()
    for folder in folders:
        (tmp_path / folder / "pictures").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    turns = [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "meta" / "a.jsonl").write_text(json.dumps({"messages": turns, "images": ["x.jpg"]}) + "\n")
    entry = {"file_name": "a.jsonl", "media_dir": "pictures"}
    (tmp_path / "meta" / "meta.json").write_text(json.dumps({"a": entry}))
    (example,) = online.make_meta_dataset(str(tmp_path / "meta" / "meta.json"))
    assert example["conversation"][0]["content"][0]["image"] == str(tmp_path / taken / "pictures" / "x.jpg")
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.args for record in told] == warns * [("a", *(str(tmp_path / f / "pictures") for f in folders))]


# --- knapsack


@pytest.mark.parametrize(
    ("lengths", "bins"),
    [([5, 11, 12, 5], [[0, 3], [1], [2]]), ([10, 10], [[0], [1]]), ([11], [[0]]), ([3, 100, 3, 3], [[0, 2, 3], [1]])],
)
def test_a_sample_longer_than_a_bin_has_a_bin_of_its_own(lengths, bins):
    found = online.greedy_knapsack_vt_balanced(lengths, 10, [0] * len(lengths))
    assert sorted(found) == bins


# --- ranks


def numbered(folder: Path, num_rows: int) -> str:
    turns = [[{"role": "user", "content": str(n)}, {"role": "assistant", "content": "a"}] for n in range(num_rows)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns))
    (folder / "meta.json").write_text(json.dumps({"a": {"file_name": "a.jsonl"}}))
    return str(folder / "meta.json")


@pytest.mark.parametrize(("num_rows", "world_size"), [(10, 3), (9, 3), (2, 3), (10, 4), (10, 1)])
def test_ranks_get_equally_many_rows(tmp_path, num_rows, world_size, caplog):
    path = numbered(tmp_path, num_rows)
    shares = [online.make_meta_dataset(path, shard_data=True, rank=r, world_size=world_size) for r in range(world_size)]
    numbers = [[int(example["conversation"][0]["content"][0]["text"]) for example in share] for share in shares]
    each, left_out = divmod(num_rows, world_size)
    assert numbers == [[*range(rank, each * world_size, world_size)] for rank in range(world_size)]
    told = logged(caplog, "loaders.online.datasets")
    assert told == [("a", left_out, num_rows, world_size, each)] * bool(left_out)


# --- what stays different


def test_padding_never_cuts():
    sample = {"input_ids": torch.arange(5), "attention_mask": torch.ones(5), "labels": torch.arange(5)}
    with raises(ValueError, "overlong", max_length=4, tokens=5):
        online.pad_collate_fn([sample], Tokenizer(), max_length=4)


def test_a_robust_text_sample_gets_no_fake_image(image):
    samples = online.RobustDatasetWrapper([asked("Who?", "Me."), asked("What?", "That.", ("image", image))])
    collate = partial(online.default_collate_fn, processor=PROCESSOR)
    (text, seen) = DataLoader(samples, batch_size=1, collate_fn=collate)
    assert "pixel_values" not in text and "pixel_values" in seen


def test_padding_is_on_the_right():
    batch = online.default_collate_fn([asked("Who?", "Me."), asked("Count.", "1 2 3 4")], PROCESSOR)
    assert batch["attention_mask"][0, 0] == 1 and batch["attention_mask"][0, -1] == 0


def test_an_empty_answer_has_no_labels():
    assert (online.default_collate_fn([asked("Who?", "")], PROCESSOR)["labels"] == -100).all()


def test_eager_attention_gets_floats():
    batch = online.neat_packed_vlm_collater([pack([1, 2])], attn_implementation="eager")
    assert batch["attention_mask"].dtype == torch.float32
    assert len(online.MEDIA_KEYS) == 10


def test_datasets_come_in_the_order_of_the_file(tmp_path):
    entries = {}
    for name in "zab":
        turns = [{"role": "user", "content": name}, {"role": "assistant", "content": "a"}]
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
        entries[name] = {"file_name": f"{name}.jsonl"}
    (tmp_path / "meta.json").write_text(json.dumps(entries))
    examples = online.make_meta_dataset(str(tmp_path / "meta.json"))
    assert [example["conversation"][0]["content"][0]["text"] for example in examples] == [*"zab"]


@pytest.mark.parametrize(("placeholders", "num_rows"), [("strict", 0), ("lenient", 1)])
def test_rows_whose_tags_do_not_match_their_media(tmp_path, placeholders, num_rows):
    turns = [{"role": "user", "content": "<image>and<image>?"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns, "images": ["x.jpg"]}) + "\n")
    (tmp_path / "meta.json").write_text(json.dumps({"a": {"file_name": "a.jsonl"}}))
    examples = online.make_meta_dataset(str(tmp_path / "meta.json"), placeholders=placeholders)
    assert len(examples) == num_rows
    assert examples.stats["skipped_by_reason"] == ({} if num_rows else {"bad_placeholders": 1})
