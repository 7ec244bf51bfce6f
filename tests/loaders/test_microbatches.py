"""Batches for torch.distributed.pipelining: torch's own cut gives every microbatch what its packs alone would be."""

import json
import weakref
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from helpers import TinyData, clip, documents_of, picture, tiny_config
from model_cases import CASES as MODEL_CASES, Case, rows
from processors import qwen3_vl
from support.errors import logged, raises
from tiny_models import tiny_model
from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks

from neatpack import (
    VLM_PP_MEDIA_KEY,
    PackCollater,
    PackedShards,
    get_kwargs_chunk_spec,
    neat_packed_vlm_collater,
    wrap_vlm_collate_for_pp,
)
from neatpack.format.layout import Layout
from neatpack.format.manifest import Manifest
from neatpack.loaders.online import COLLATE_FNS, make_meta_dataset
from neatpack.loaders.recurrent import run_by_document
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import FAMILIES as REGISTERED, family_for
from neatpack.pipeline.run import run_pack

# transformers has no model of Kimi-VL: its batches have all that the packs have.
CASES = {**MODEL_CASES, "kimi_vl": Case(family="kimi_vl", model=lambda _: None)}
# One of each family: others of CASES differ in the text model alone.
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_omni", "qwen2_5_omni", "gemma3", "gemma4", "glm4v",
            "kimi_k25", "kimi_vl", "llava_onevision_frames", "internvl", "mistral3", "phi4_mm_both", "llava",
            "idefics3", "smolvlm"]  # fmt: skip
LENGTH = 4096  # of every row, so that batches and microbatches can be compared
SIZES = [(size, n) for size in range(1, 9) for n in range(1, size + 1) if size % n == 0]


def torch_chunks(batch: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """What each microbatch's kwargs are, by torch's own function."""
    kwargs = {name: value for name, value in batch.items() if name != VLM_PP_MEDIA_KEY}
    _, chunks = split_args_kwargs_into_chunks((), kwargs, n, None, get_kwargs_chunk_spec(kwargs))
    return chunks


def assert_same_rows(found: Any, expected: Any, fill: int, name: str) -> None:
    """Media of a microbatch; they may be padded to the largest of the batch instead of the microbatch."""
    assert len(found) == len(expected) and found.dtype == expected.dtype, name
    padding = found.clone()
    padding[tuple(slice(size) for size in expected.shape)] = fill
    assert torch.equal(found[tuple(slice(size) for size in expected.shape)], expected), name
    assert bool((padding == fill).all()) or found.shape == expected.shape, name


def assert_microbatch(kwargs: dict[str, Any], media: dict[str, Any], expected: dict[str, Any], layout: Layout) -> None:
    """Kwargs and media of a microbatch against the batch of its packs alone."""
    names = {name for name, value in media.items() if value is not None and value.numel() and name != "image_grid_hws"}
    own = {"image_grid_hws"} & expected.keys()  # Kimi has an array of the name
    assert kwargs.keys() | names | own == expected.keys()
    for name in names | own:
        fill = layout[name].deliver.fill if name in layout else 0
        assert_same_rows(media[name], expected[name], fill, name)
    for name, value in kwargs.items():
        if name.startswith("cu_seq"):
            assert torch.equal(value.unique_consecutive(), expected[name]) and value.dtype == expected[name].dtype
        elif name.startswith("max_"):
            assert value >= expected[name]
        elif name in ("seq_lens", "seq_lens_padded"):  # as wide as the row of most documents
            assert_same_rows(value, expected[name], -1000, name)
        elif isinstance(value, dict):
            assert value.keys() == expected[name].keys()
            assert all(torch.equal(mask, expected[name][kind]) for kind, mask in value.items())
        elif hasattr(value, "kv_num_blocks"):
            assert torch.equal(dense(value), dense(expected[name]))
        elif torch.is_tensor(value):
            assert torch.equal(value, expected[name]), name
        else:
            assert value == expected[name], name


def dense(mask: Any) -> torch.Tensor:
    """[B, S, S], token by token."""
    rows, length = mask.shape[0], mask.shape[-1]
    b, q, k = torch.meshgrid(torch.arange(rows), torch.arange(length), torch.arange(length), indexing="ij")
    return mask.mask_mod(b, torch.zeros_like(b), q, k)  # type: ignore[no-any-return]


def media_of(batch: dict[str, Any], number: int) -> dict[str, Any]:
    chunks = batch.get(VLM_PP_MEDIA_KEY) or {}
    return {name: value and value[number] for name, value in chunks.items()}


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """An output, its documents as packs of their own (of no, one and three media), and the model."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    processor = str((case.processor or import_module(f"processors.{case.family}").make)(folder / "processor"))
    family = "default" if case.family == "default" else ""
    meta = rows(TinyData(folder / "data"), case.kinds, case.sizes)
    chosen = {"pack_size": LENGTH, "processor": processor, "family": family, **dict(case.chosen)}
    run_pack(tiny_config(meta, folder / "out", **chosen))
    (pack,) = PackedShards(folder / "out", pixels="fp32")
    documents = list(documents_of(folder / "out", pack))
    assert {document["n_images"] for document in documents} >= {0, 1, 3}
    return folder / "out", (documents * 2)[:8], case.model(family_for(ProcessorKey(processor=processor, family=family)))


@pytest.mark.parametrize("reverse", [False, True])
def test_microbatches_of_every_family_are_those_of_their_packs(case, reverse):
    out, packs, model = case
    packs = packs[::-1] if reverse else packs
    shards = PackedShards(out)
    collater = (
        shards.collater(model, max_length=LENGTH, isolate="positions") if model else PackCollater(max_length=LENGTH)
    )
    for size, n in SIZES:
        batch = wrap_vlm_collate_for_pp(collater, n)(packs[:size])
        assert not {"pixel_values", "pixel_values_videos", "input_features", "n_images_per_sample"} & batch.keys()
        each = size // n
        for number, kwargs in enumerate(torch_chunks(batch, n)):
            expected = collater(packs[number * each : (number + 1) * each])
            assert_microbatch(kwargs, media_of(batch, number), expected, packs[0]["media_layout"])


def test_arrays_that_a_model_does_not_take_still_count_rows(case):
    """A model may take pixels, and not the number of tiles of each picture."""
    _, packs, _ = case
    pixels = [name for name in packs[0]["media_layout"] if "pixel_values" in name]
    collater = PackCollater(takes=frozenset({"input_ids", "labels", *pixels}), max_length=LENGTH)
    batch = wrap_vlm_collate_for_pp(collater, 2)(packs[:6])
    for number in range(2):
        expected = collater(packs[3 * number : 3 * number + 3])
        media = media_of(batch, number)
        for name in set(pixels) & expected.keys():
            assert_same_rows(media[name], expected[name], 0, name)


def collate_of(processor: str, family: str) -> Any:
    names = {"kimi_k25": "KimiK25Processor", "phi4_mm": "Phi4MMProcessor"}
    loaded = family_for(ProcessorKey(processor=processor, family="default" if family == "default" else ""))
    return partial(COLLATE_FNS[names.get(family, "default")], processor=loaded, max_length=LENGTH)


def has_image(example: dict[str, Any]) -> bool:
    parts = [part for turn in example["conversation"] for part in turn["content"]]
    return {part["type"] for part in parts} == {"image", "text"}


def test_microbatches_of_online_batches_are_those_of_their_conversations(case):
    """InternVL's num_patches are tiles of pictures."""
    out, packs, _ = case
    family = Manifest.read(out).family["name"]
    collate = collate_of(str(out.parent / "processor"), family)
    conversations = make_meta_dataset(str(out.parent / "data" / "meta.json"))
    conversations = [each for each in conversations if family != "phi4_mm" or has_image(each)]  # of one kind a batch
    for size, n in [(2, 2), (4, 2), (4, 4), (6, 3)]:
        chosen = (conversations * 3)[:size]
        batch = wrap_vlm_collate_for_pp(collate, n)(chosen)
        each = size // n
        for number, kwargs in enumerate(torch_chunks(batch, n)):
            expected = without_counts(collate(chosen[number * each : (number + 1) * each]))
            assert_microbatch(kwargs, media_of(batch, number), expected, packs[0]["media_layout"])


def test_no_family_with_media_is_left_out():
    """Nemotron-Parse is not packed."""
    assert {CASES[name].family for name in FAMILIES} == REGISTERED.keys() - {"nemotron_parse"}


# --- what keeps documents apart


def pack_of(*lengths: int, images: int = 0, first: int = 0) -> dict[str, Any]:
    """Documents of so many tokens, without a layout, and images of two patches."""
    total = sum(lengths)
    return {
        "input_ids": torch.arange(first, first + total),
        "labels": torch.arange(first, first + total) + 1,
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).expand(3, -1),
        "attention_mask": torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths)),
        "seq_lens": torch.tensor(lengths),
        "seq_lens_padded": torch.tensor(lengths),
        "pixel_values": torch.arange(first, first + 2 * images).float()[:, None],
        "image_grid_thw": torch.tensor([[1, 1, 2]] * images, dtype=torch.int64).reshape(-1, 3),
        "n_images": images,
    }


PACKS = [pack_of(3, 4, images=2), pack_of(8, first=100), pack_of(1, 1, 2, 1, images=1, first=200),
         pack_of(2, 2, images=1, first=300)]  # fmt: skip
COLLATERS: dict[str, Any] = {
    "sdpa": {"attn_implementation": "sdpa"},
    "eager": {"attn_implementation": "eager"},
    "two masks": {"attn_implementation": "sdpa", "sliding_window": 2},
    "document numbers": {"attn_implementation": "flash_attention_2"},
    "varlen": {"attn_implementation": "flash_attention_2", "varlen_kwargs": True},
    "thd": {"attn_implementation": "thd"},
    "flex": {"attn_implementation": "flex_attention"},
}


def without_counts(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if not name.endswith("s_per_sample")}


@pytest.mark.parametrize("kind", COLLATERS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_documents_stay_apart_in_microbatches(kind, n):
    def collate(packs):
        return neat_packed_vlm_collater(packs, max_length=8, **COLLATERS[kind])

    batch = wrap_vlm_collate_for_pp(collate, n)(PACKS)
    each = 4 // n
    for number, kwargs in enumerate(torch_chunks(batch, n)):
        expected = without_counts(collate(PACKS[number * each : (number + 1) * each]))
        assert_microbatch(kwargs, media_of(batch, number), expected, {})


def test_borders_by_hand():
    def collate(packs):
        return PackCollater(attn_implementation="flash_attention_2", max_length=8)(packs)

    batch = wrap_vlm_collate_for_pp(collate, 2)(PACKS)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 7, 8, 16, 16, 16, 16, 16, *[0, 1, 2, 4, 5, 8, 10, 12, 16]]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == 8


def test_as_many_images_as_packs_are_not_one_each():
    """Without token types nothing else tells that packs have two and no images."""
    batch = wrap_vlm_collate_for_pp(PackCollater(), 2)([PACKS[0], PACKS[1]])
    assert "mm_token_type_ids" not in batch
    assert [len(rows) for rows in batch[VLM_PP_MEDIA_KEY]["pixel_values"]] == [4, 0]


@pytest.mark.parametrize("packs", [PACKS[:3], PACKS[1:2] * 3], ids=["images", "text"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_fewer_packs_than_microbatches_are_refused(packs, recurrent):
    with raises(ValueError, "batch-mismatch", n_microbatches=4, packs=3):
        wrap_vlm_collate_for_pp(PackCollater(recurrent=recurrent), 4)(packs)


def test_packs_in_one_row_need_microbatches_of_one_length():
    with raises(ValueError, "batch-mismatch", n_microbatches=2, packs=3):
        wrap_vlm_collate_for_pp(PackCollater(recurrent=True), 2)(PACKS[:3])


def test_a_document_in_two_microbatches_is_refused():
    def collate(_):
        return {"input_ids": torch.zeros(2, 4), "cu_seqlens": torch.tensor([0, 3, 8])}

    with raises(ValueError, "batch-mismatch", name="cu_seqlens", borders=[0, 3, 8], expected=[4, 8]):
        wrap_vlm_collate_for_pp(collate, 2)([])


def test_replaced_samples_count_and_not_those_that_failed():
    """A collater that draws another batch: the counts are those of what it has collated."""

    def collate(_):
        return PackCollater()([PACKS[1], PACKS[0]])

    batch = wrap_vlm_collate_for_pp(collate, 2)([PACKS[0], PACKS[1]])
    assert [len(rows) for rows in batch[VLM_PP_MEDIA_KEY]["pixel_values"]] == [0, 4]


@pytest.mark.parametrize("collate", [PackCollater(), wrap_vlm_collate_for_pp(PackCollater(), 2)])
def test_collated_batch_is_freed_when_it_is_dropped(collate):
    """Memory of batches is used again by loader workers; a note of whose media are whose must not hold it."""
    batch = collate(PACKS)
    pixels = batch["pixel_values"] if "pixel_values" in batch else batch[VLM_PP_MEDIA_KEY]["pixel_values"][0]._base
    freed = weakref.ref(pixels)
    assert pixels is not None and freed() is not None
    del batch, pixels
    assert freed() is None


def test_seconds_of_videos_go_with_their_videos():
    """In a batch as a processor makes it, without a layout."""
    made = {
        "input_ids": torch.zeros(2, 4),
        "pixel_values_videos": torch.zeros(7, 3),
        "video_grid_thw": torch.tensor([[1, 1, 2], [2, 1, 1], [1, 3, 1]]),
        "second_per_grid_ts": torch.tensor([0.5, 1.0, 2.0]),
        "n_videos_per_sample": torch.tensor([1, 2]),
    }
    batch = wrap_vlm_collate_for_pp(lambda _: made, 2)([])
    assert [rows.tolist() for rows in batch[VLM_PP_MEDIA_KEY]["second_per_grid_ts"]] == [[0.5], [1.0, 2.0]]
    assert "second_per_grid_ts" not in batch


def test_specs_of_kwargs():
    spec = get_kwargs_chunk_spec({
        "position_ids": torch.zeros(4, 2, 8), "attention_mask": {"full_attention": torch.zeros(2, 1, 8, 8)},
        "use_cache": False, "cache_position": None,
    })  # fmt: skip
    assert spec["position_ids"].split_dim == 1
    assert spec["attention_mask"]["full_attention"].split_dim == 0
    assert get_kwargs_chunk_spec({"position_ids": torch.zeros(2, 8)})["position_ids"].split_dim == 0
    kwargs = {"position_ids": torch.arange(8).reshape(4, 2, 1), "use_cache": False, "cache_position": None}
    chunks = torch_chunks(kwargs, 2)
    assert [chunk["position_ids"].flatten().tolist() for chunk in chunks] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert chunks[0]["use_cache"] is False and chunks[0]["cache_position"] is None


# --- models with a state


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """Packs of text, pictures and a video for a model with linear attention, and that model."""
    folder = tmp_path_factory.mktemp("recurrent")
    processor = qwen3_vl.make(folder / "processor")
    config = processor / "config.json"
    model = json.loads(config.read_text()) | {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}
    config.write_text(json.dumps(model))
    data = TinyData(folder / "data")
    picture(data.folder / "a.png", 60, 90)
    clip(data.folder / "a.mp4", frames=4)
    for _ in range(2):
        data.row([("user", "<image>and<image>?"), ("assistant", "Both of these.")], images=["a.png", "a.png"])
        data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=["a.mp4"])
    for number in (1, 3, 30, 40, 50, 60):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number + 2))))
    run_pack(tiny_config(data.write(), folder / "out", processor=str(processor), pack_size=200))
    return folder / "out", run_by_document(tiny_model("qwen3_5"))


@pytest.mark.parametrize("isolate", ["positions", "mask"])
def test_packs_of_recurrent_models_are_a_row_for_each_microbatch(recurrent, isolate):
    out, model = recurrent
    shards = PackedShards(out, pixels="fp32")
    packs = list(shards)[:4]
    collater = shards.collater(model, max_length=200, isolate=isolate)
    assert len(packs) == 4 and len({(pack["n_images"], pack["n_videos"]) for pack in packs}) > 1
    layout = packs[0]["media_layout"]
    for n in (1, 2, 4):
        batch = wrap_vlm_collate_for_pp(collater, n)(packs)
        assert batch["input_ids"].shape == (n, 800 // n)
        for number, kwargs in enumerate(torch_chunks(batch, n)):
            expected = collater(packs[number * 4 // n : (number + 1) * 4 // n])
            assert_microbatch(kwargs, media_of(batch, number), expected, layout)
    with torch.no_grad():  # documents without tokens, which fill borders up, change nothing
        halves = torch_chunks(wrap_vlm_collate_for_pp(collater, 2)(packs), 2)
        for number, kwargs in enumerate(halves):
            expected = collater(packs[2 * number : 2 * number + 2])
            media = {name: value for name, value in expected.items() if name not in kwargs}
            torch.testing.assert_close(model(**kwargs, **media).loss, model(**expected).loss)


# --- loaders


def test_bytes_of_pixels_are_refused(recurrent):
    packs = PackedShards(recurrent[0], pixels="uint8")
    with raises(ValueError, "batch-mismatch", arrays=["pixel_values", "pixel_values_videos"]):
        wrap_vlm_collate_for_pp(PackCollater(recurrent=True), 2)([packs.pack(0), packs.pack(1)])


def test_loader_leaves_out_a_batch_that_is_not_full(recurrent, caplog):
    out, _ = recurrent
    shards = PackedShards(out)
    size = len(shards) - 1
    collate = wrap_vlm_collate_for_pp(PackCollater(recurrent=True), 2)
    loader = shards.loader(batch_size=size - size % 2, collate_fn=collate)
    assert len(loader) == 1
    for epoch in range(2):
        assert loader.epoch == epoch
        (batch,) = loader
        assert len(batch["input_ids"]) == 2
    assert (1, 1 + size % 2, size - size % 2) in logged(caplog, "loaders.loader")
    loader.load_state_dict(loader.state_dict())
    with raises(ValueError, "batch-mismatch", batch_size=100):
        next(iter(PackedShards(out).loader(batch_size=100, collate_fn=collate)))


def test_loop_that_stops_at_the_last_full_batch_goes_on_with_the_next_epoch(recurrent):
    out, _ = recurrent
    shards = PackedShards(out)
    size = len(shards) // 2 * 2 - 2 * (len(shards) % 2 == 0)
    loader = shards.loader(batch_size=size, collate_fn=wrap_vlm_collate_for_pp(PackCollater(recurrent=True), 2))
    assert len(shards) % size
    first = next(iter(loader))["input_ids"]
    others = PackedShards(out)
    resumed = others.loader(batch_size=size, collate_fn=loader.collate_fn)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert (loader.epoch, resumed.epoch) == (0, 1)
    for again, packs in ((loader, shards), (resumed, others)):
        batch = next(iter(again))
        assert packs.epoch == 1 and not torch.equal(batch["input_ids"], first)
