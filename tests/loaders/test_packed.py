"""The collaters, by hand and against a real model's own varlen path."""

import pickle
from dataclasses import replace
from random import Random

import pytest
import torch
from helpers import TinyData, mixed_rows, tiny_config
from hypothesis import given, settings, strategies as st
from support.errors import logged, raises
from tiny_models import tiny_model
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils.data import DataLoader

from neatpack import PackedShards, neat_packed_vlm_collater, pad_collate_fn, restore_pixels
from neatpack.loaders import packed
from neatpack.loaders.flex import DocumentMask, document_block_mask
from neatpack.loaders.masks import LOWEST, block_causal_mask, sliding_mask
from neatpack.loaders.packed import NO_DOCUMENT, positions_inside
from neatpack.loaders.pixels import _look_up_singly, looked_up
from neatpack.pipeline.run import run_pack


def pack(ids, lens, *, padded=None, images=0):
    padded = padded or lens
    documents = [number for number, length in enumerate(padded, 1) for _ in range(length)]
    return {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "labels": torch.tensor(ids, dtype=torch.int32) + 100,
        "position_ids": torch.tensor([ids] * 3, dtype=torch.int32),
        "mm_token_type_ids": torch.zeros(len(ids), dtype=torch.uint8),
        "attention_mask": torch.tensor(documents),
        "seq_lens": torch.tensor(lens, dtype=torch.int32),
        "seq_lens_padded": torch.tensor(padded, dtype=torch.int32),
        "n_images": images,
        "n_videos": 0,
        "pixel_values": torch.full((4 * images, 6), float(ids[0])),
        "image_grid_thw": torch.tensor([[1, 2, 2]] * images).reshape(-1, 3),
    }


TWO = [pack([1, 2, 3], [2, 1], images=2), pack([4, 5], [2])]


def test_sdpa():
    batch = neat_packed_vlm_collater(TWO, padding_idx=9)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 5, 9]]
    assert batch["labels"].tolist() == batch["shift_labels"].tolist() == [[101, 102, 103], [104, 105, -100]]
    assert batch["position_ids"].shape == (3, 2, 3)
    assert batch["position_ids"][1].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert batch["attention_mask"].shape == (2, 1, 3, 3)
    assert batch["attention_mask"].int().tolist() == [
        [[[1, 0, 0], [1, 1, 0], [0, 0, 1]]],
        [[[1, 0, 0], [1, 1, 0], [0, 0, 1]]],  # the last row is padding, which sees itself
    ]
    assert batch["_packed_seq_ids"].tolist() == [[1, 1, 2], [1, 1, 0]]
    assert batch["n_images_per_sample"].tolist() == [2, 0]
    assert "n_videos_per_sample" not in batch
    assert batch["pixel_values"].shape == (8, 6)
    assert batch["image_grid_thw"].tolist() == [[1, 2, 2]] * 2
    assert all(batch[key].dtype == torch.long for key in ("input_ids", "labels", "position_ids", "mm_token_type_ids"))


def test_flash_attention_keeps_document_numbers():
    batch = neat_packed_vlm_collater(TWO, attn_implementation="flash_attention_2")
    assert batch["attention_mask"].tolist() == [[1, 1, 2], [1, 1, 0]]
    assert torch.equal(
        neat_packed_vlm_collater(TWO, materialize_4d_mask=False)["attention_mask"], batch["attention_mask"]
    )


def test_document_numbers_are_there_for_one_document_too():
    """Losses that weigh by document ask for them whatever the batch."""
    assert neat_packed_vlm_collater([pack([1, 2], [2])], max_length=3)["_packed_seq_ids"].tolist() == [[1, 1, 0]]


@pytest.mark.parametrize("name", ["flash_attention_3", "flash_attention_4", "kernels-community/flash-attn2"])
@pytest.mark.parametrize("varlen", [False, True])
def test_every_flash_attention_is_one(name, varlen):
    second, other = (
        neat_packed_vlm_collater(TWO, attn_implementation=kind, varlen_kwargs=varlen)
        for kind in ("flash_attention_2", name)
    )
    assert second.keys() == other.keys() and ("cu_seq_lens_q" in other) == varlen
    assert all(torch.equal(torch.as_tensor(second[key]), torch.as_tensor(other[key])) for key in second)


def test_eager_with_a_bool_mask():
    wanted = neat_packed_vlm_collater(TWO)["attention_mask"]
    assert torch.equal(
        neat_packed_vlm_collater(TWO, attn_implementation="eager", bool_mask=True)["attention_mask"], wanted
    )
    floats = neat_packed_vlm_collater(TWO, attn_implementation="eager")["attention_mask"]
    assert floats.dtype == torch.float32 and torch.equal(floats == 0, wanted)


def test_pixels_of_foreign_packs_are_bf16():
    assert neat_packed_vlm_collater(TWO)["pixel_values"].dtype == torch.bfloat16
    assert neat_packed_vlm_collater(TWO, pixel_dtype=torch.float16)["pixel_values"].dtype == torch.float16
    ours = [{"pack": number, **one} for number, one in enumerate(TWO)]
    assert neat_packed_vlm_collater(ours)["pixel_values"].dtype == torch.float32, "as PackedShards restored them"
    assert neat_packed_vlm_collater(ours, pixel_dtype=torch.bfloat16)["pixel_values"].dtype == torch.bfloat16


@given(
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=5), min_size=1, max_size=2),
    st.integers(0, 200),
    st.none() | st.integers(1, 300),
)
@settings(max_examples=40)
def test_a_block_mask_is_the_4d_mask(rows, padding, window):
    """Its blocks and its function, taken together: full ones are all seen, others by the function, and no more."""
    length = max(map(sum, rows)) + padding
    documents = torch.zeros(len(rows), length, dtype=torch.long)
    for row, lengths in zip(documents, rows, strict=True):
        numbers = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))
        row[: len(numbers)] = numbers
    wanted = (block_causal_mask(documents) if window is None else sliding_mask(documents, window))[:, 0]
    made = document_block_mask(documents, window)
    theirs = create_block_mask(made.mask_mod, len(rows), None, length, length, device="cpu")
    assert made.shape == theirs.shape == (len(rows), 1, length, length)
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(made, name), getattr(theirs, name)), name
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        ours, other = getattr(made, indices), getattr(theirs, indices)
        listed = torch.arange(ours.shape[-1]) < getattr(made, counts)[..., None]
        assert torch.equal(ours[listed], other[listed])
    q, k = torch.arange(length)[:, None], torch.arange(length)[None]
    for row in range(len(rows)):
        assert torch.equal(made.mask_mod(row, 0, q, k), wanted[row])


def test_a_block_mask_travels():
    """Through a worker, and to another device with all that it has."""
    mask = neat_packed_vlm_collater(TWO, attn_implementation="flex_attention", sliding_window=2)["attention_mask"]
    assert mask.keys() == {"full_attention", "sliding_attention"}
    loader = DataLoader(TWO, batch_size=2, num_workers=1, collate_fn=by_flex)
    (batch,) = loader
    sent = batch["attention_mask"]
    assert isinstance(sent, BlockMask)
    assert torch.equal(sent.to_dense(), mask["full_attention"].to_dense())
    moved = sent.to("meta")
    assert isinstance(moved, DocumentMask)
    assert moved.kv_indices.device.type == moved.mask_mod.documents.device.type == "meta"
    ids = neat_packed_vlm_collater(TWO, attn_implementation="flex_attention", materialize_4d_mask=False)
    assert ids["attention_mask"].tolist() == [[1, 1, 2], [1, 1, 0]]


def by_flex(packs):
    return neat_packed_vlm_collater(packs, attn_implementation="flex_attention")


def test_max_length():
    assert neat_packed_vlm_collater(TWO, max_length=5)["input_ids"].shape == (2, 5)
    with raises(ValueError, "overlong", tokens=3, max_length=2):
        neat_packed_vlm_collater(TWO, max_length=2)


def test_no_media_at_all():
    batch = neat_packed_vlm_collater([pack([1, 2], [2])])
    assert not {"pixel_values", "image_grid_thw", "n_images_per_sample"} & batch.keys()
    assert neat_packed_vlm_collater([]) == {}


def test_unknown_kernel():
    with raises(ValueError, "model-unsupported", attn_implementation="ring"):
        neat_packed_vlm_collater(TWO, attn_implementation="ring")


def test_thd():
    aligned = pack([1, 2, 3, 0, 4, 5, 6, 7], [3, 4], padded=[4, 4])
    batch = neat_packed_vlm_collater([aligned, pack([8, 9], [2])], attn_implementation="thd")
    assert batch["qkv_format"] == "thd"
    assert batch["seq_lens"].tolist() == [[3, 4], [2, NO_DOCUMENT]]
    assert batch["seq_lens_padded"].tolist() == [[4, 4], [8, NO_DOCUMENT]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 7, 9]
    assert batch["cu_seqlens_padded"].tolist() == [0, 4, 8, 16]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 8
    assert "attention_mask" not in batch
    assert batch["input_ids"].numel() == batch["cu_seqlens_padded"][-1]


def test_transformers_varlen_kwargs():
    batch = neat_packed_vlm_collater(TWO, attn_implementation="flash_attention_2", varlen_kwargs=True)
    assert "attention_mask" not in batch
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 2, 3, 5, 6]
    assert batch["max_length_q"] == batch["max_length_k"] == 2


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[1, 1, 2, 2, 2, 3, 0, 0]])
    mask = block_causal_mask(documents)[0, 0]
    for query in range(8):
        for key in range(8):
            same = documents[0, query] == documents[0, key] != 0 and key <= query
            assert mask[query, key] == (same or query == key)


def test_positions_inside_documents():
    documents = torch.tensor([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    assert positions_inside(documents).tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]]


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=6), min_size=1, max_size=3))
def test_the_mask_is_what_comparing_all_with_all_gives(batch):
    """Runs of a document or of padding, each of some length, in rows that are filled up with padding."""
    rows = [
        [number * is_real for number, (is_real, length) in enumerate(runs, 1) for _ in range(length)] for runs in batch
    ]
    documents = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    place = torch.arange(documents.shape[1])
    same = (documents[:, :, None] == documents[:, None, :]) & (documents != 0)[:, :, None]
    expected = (same & (place[:, None] >= place)) | (place[:, None] == place)
    mask = block_causal_mask(documents)
    assert mask.dtype == torch.bool and torch.equal(mask, expected[:, None])
    assert torch.equal(block_causal_mask(documents, additive=True), added(mask))


def added(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, LOWEST)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 200)), min_size=1, max_size=6),
    st.integers(1, 300),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_long_masks_are_what_comparing_all_with_all_gives(runs, window, both_ways, seed):
    """Over the edges of what is written at a time, with a window, and with pictures, which look ahead."""
    documents = torch.tensor([[number * is_real for number, (is_real, n) in enumerate(runs, 1) for _ in range(n)]])
    length, random = documents.shape[1], Random(seed)
    kinds = [kind for _ in range(length) for kind in [random.choice((0, 1, 1, 2, 3))] * random.randint(1, 40)]
    types = torch.tensor([kinds[:length]]) if both_ways else None
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    same = (documents[:, :, None] == documents[:, None, :]) & (documents != 0)[:, :, None]
    seen = (ahead <= 0)[None].clone()
    picture = 0
    for at in range(length if both_ways else 0):  # one run after the other
        if kinds[at] in (1, 2):
            begins = at == 0 or kinds[at - 1] not in (1, 2) or documents[0, at] != documents[0, at - 1]
            picture = at if begins else picture
            seen[0, picture : at + 1, picture : at + 1] = True
    expected = ((same & seen & (ahead > -window)) | (ahead == 0))[:, None]
    mask = sliding_mask(documents, window, types)
    assert torch.equal(mask, expected)
    assert torch.equal(sliding_mask(documents, window, types, additive=True), added(mask))
    assert torch.equal(block_causal_mask(documents), ((same & (ahead <= 0)) | (ahead == 0))[:, None])


def test_large_masks_are_warned_of_once(monkeypatch, caplog):
    monkeypatch.setattr("neatpack.loaders.packed.LONG", 3)
    packed._warn_of_large_masks.cache_clear()
    long = pack([1, 2, 3, 4], [4])
    for kind in ("flash_attention_2", "thd", "flex_attention"):
        neat_packed_vlm_collater([long], attn_implementation=kind)
    neat_packed_vlm_collater(TWO)
    assert not caplog.records
    for kind in ("sdpa", "eager", "sdpa"):
        neat_packed_vlm_collater([long], attn_implementation=kind)
    assert [args[:2] for args in logged(caplog, "loaders.packed")] == [(3, 3)]


def test_a_document_in_two_pieces_is_refused():
    with raises(ValueError, "item-incomplete", runs=[1, 2, 1]):
        block_causal_mask(torch.tensor([[1, 2, 2, 0, 1]]))


def rows_of(mask):
    return ["".join(str(int(seen)) for seen in row) for row in mask[0, 0]]


def test_sliding_window():
    documents = torch.tensor([[1, 1, 1, 1, 2, 2, 0]])
    assert rows_of(sliding_mask(documents, 2)) == [
        "1000000", "1100000", "0110000", "0011000",
        "0000100", "0000110",  # a document begins anew
        "0000001",
    ]  # fmt: skip
    assert torch.equal(sliding_mask(documents, 4), block_causal_mask(documents))


def test_pictures_look_both_ways_within_the_window():
    documents = torch.tensor([[1, 1, 1, 1, 1, 1, 2, 2]])
    types = torch.tensor([[0, 1, 1, 1, 0, 2, 2, 3]])
    assert rows_of(sliding_mask(documents, 2, types)) == [
        "10000000",
        "11110000",
        "01110000",
        "00110000",  # the first token of its picture is out of the window
        "00011000",
        "00001100",  # what the next document begins with is another picture
        "00000010",
        "00000011",  # sound is causal
    ]  # fmt: skip


def test_two_masks_for_models_with_sliding_layers():
    batch = neat_packed_vlm_collater(TWO, sliding_window=1)
    masks = batch["attention_mask"]
    assert masks.keys() == {"full_attention", "sliding_attention"}
    assert torch.equal(masks["full_attention"], neat_packed_vlm_collater(TWO)["attention_mask"])
    assert torch.equal(masks["sliding_attention"], torch.eye(3, dtype=torch.bool).expand(2, 1, 3, 3))
    seeing = [{**pack, "mm_token_type_ids": torch.ones_like(pack["mm_token_type_ids"])} for pack in TWO]
    both = neat_packed_vlm_collater(seeing, sliding_window=1, bidirectional_vision=True)["attention_mask"]
    assert rows_of(both["sliding_attention"]) == ["110", "010", "001"]
    assert torch.equal(both["full_attention"], masks["full_attention"])
    # flash attention takes the window from the model
    flash = neat_packed_vlm_collater(TWO, attn_implementation="flash_attention_2", sliding_window=1)
    assert flash["attention_mask"].tolist() == [[1, 1, 2], [1, 1, 0]]


@pytest.mark.parametrize(
    "settings",
    [{"attn_implementation": "sdpa"}, *({"sliding_window": 4, **more} for more in (
        {"attn_implementation": "flash_attention_2"}, {"attn_implementation": "thd"}, {"materialize_4d_mask": False}))],
)  # fmt: skip
def test_looking_both_ways_needs_a_4d_mask(settings):
    with raises(ValueError, "model-unsupported", bidirectional_vision=True):
        neat_packed_vlm_collater(TWO, bidirectional_vision=True, **settings)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    run_pack(tiny_config(mixed_rows(TinyData(folder / "data"), num_text=12, num_images=6).write(), folder / "out"))
    return folder / "out"


def test_pixels_left_as_bytes_are_restored_later(out):
    kept, restored = (list(PackedShards(out, pixels=kind)) for kind in ("uint8", "bf16"))
    batch = neat_packed_vlm_collater(kept[:3])
    assert batch["pixel_values"].dtype == torch.uint8
    assert 4 * batch["pixel_values"].nbytes == neat_packed_vlm_collater(restored[:3])["pixel_values"].nbytes
    batch = restore_pixels(batch, "cpu")
    assert torch.equal(batch["pixel_values"], neat_packed_vlm_collater(restored[:3])["pixel_values"])
    assert "stored_pixels" not in batch


@pytest.mark.parametrize("kind", ["uint8", "bf16"])
def test_packs_of_two_processors_are_no_batch(out, kind):
    """As through workers, where each pack has tables of its own; of another mean, say."""
    one, other = (pickle.loads(pickle.dumps(next(iter(PackedShards(out, pixels=kind))))) for _ in range(2))
    assert len(neat_packed_vlm_collater([one, other])["input_ids"]) == 2
    if kind == "uint8":
        other["stored_pixels"]["pixel_values"].table.add_(1)
    else:
        other["media_layout"]["pixel_values"] = replace(other["media_layout"]["pixel_values"], row=(3,))
    with raises(ValueError, "mixture-invalid"):
        neat_packed_vlm_collater([one, other])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_patches", [0, 1, 5000])
def test_both_ways_of_looking_up_agree(dtype, num_patches):
    stored = torch.randint(0, 256, (num_patches, 3 * 4), dtype=torch.uint8)
    table = torch.randn(3, 256)
    pairs, single = looked_up(stored, table, 2, dtype), torch.empty(num_patches, 3, 2, 4, dtype=dtype)
    _look_up_singly(stored, table, single)
    assert torch.equal(pairs, single.flatten(1))
    if num_patches:
        by_hand = [table[c, int(stored[-1, 4 * c + i])].to(dtype) for c in range(3) for _ in range(2) for i in range(4)]
        assert pairs[-1].tolist() == [value.item() for value in by_hand]


def test_only_stored_bytes_are_looked_up():
    with raises(ValueError, "item-incomplete", key="pixel_values"):
        looked_up(torch.zeros(1, 12), torch.zeros(3, 256), 2, torch.float32)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_eager_attention_adds_its_mask(out, kind):
    """A bool mask there gives other logits, silently."""
    packs = list(PackedShards(out, pixels="fp32"))[:2]
    model = tiny_model(kind)
    keys = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")

    def logits(batch, implementation):
        model.set_attn_implementation(implementation)  # type: ignore[operator]
        with torch.no_grad():
            return model(**{key: batch[key] for key in keys if key in batch}).logits

    by_sdpa, by_eager = (neat_packed_vlm_collater(packs, attn_implementation=kind) for kind in ("sdpa", "eager"))
    expected = logits(by_sdpa, "sdpa")
    real = by_sdpa["labels"] != -100
    assert (logits(by_eager, "eager")[real] - expected[real]).abs().max() < 1e-5
    assert (logits(by_sdpa, "eager")[real] - expected[real]).abs().max() > 0.1
    asked = neat_packed_vlm_collater(packs, attn_implementation="eager", bool_mask=True)
    assert torch.equal(asked["attention_mask"], by_sdpa["attention_mask"])


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_flex_attention_takes_the_block_mask(out, kind):
    """As it is; not compiled, for that needs a C++ compiler."""
    packs = list(PackedShards(out, pixels="fp32"))[:2]
    model = tiny_model(kind)
    keys = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")

    def logits(implementation):
        batch = neat_packed_vlm_collater(packs, attn_implementation=implementation)
        model.get_decoder().config._attn_implementation = implementation  # of the text alone
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            return model(**{key: batch[key] for key in keys if key in batch}).logits[batch["labels"] != -100]

    assert (logits("flex_attention") - logits("sdpa")).abs().max() < 1e-5


class TestPadCollate:
    class Processor:
        class tokenizer:
            pad_token_id = 7

    def sample(self, *ids, **more):
        tensor = torch.tensor(ids)
        return {"input_ids": tensor, "attention_mask": torch.ones_like(tensor), "labels": tensor + 10, **more}

    def test_pads_and_shifts(self):
        batch = pad_collate_fn([self.sample(1, 2, 3), self.sample(4, 5)], self.Processor())
        assert batch["input_ids"].tolist() == [[1, 2], [4, 5]]
        assert batch["attention_mask"].tolist() == [[1, 1], [1, 1]]
        assert batch["labels"].tolist() == [[12, 13], [15, -100]]

    def test_to_a_fixed_length(self):
        batch = pad_collate_fn([self.sample(1, 2, 3)], self.Processor(), max_length=5)
        assert batch["input_ids"].tolist() == [[1, 2, 3, 7]]
        assert batch["labels"].tolist() == [[12, 13, -100, -100]]
        with raises(ValueError, "overlong", tokens=3, max_length=2):
            pad_collate_fn([self.sample(1, 2, 3)], self.Processor(), max_length=2)

    def test_media_are_joined_and_counted(self):
        grid = torch.tensor([[1, 2, 2], [1, 2, 4]])
        rich = self.sample(1, 2, pixel_values=torch.ones(12, 3), image_grid_thw=grid)
        batch = pad_collate_fn([self.sample(3, 4), rich], self.Processor())
        assert batch["pixel_values"].shape == (12, 3)
        assert batch["n_images_per_sample"].tolist() == [0, 2]
