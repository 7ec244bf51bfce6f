"""Family default: Hugging Face processors as they are, one row, one padded row and several rows per picture."""

import json

import numpy as np
import pytest
import torch
from helpers import (
    DEMO_PROCESSOR,
    ROOT,
    TinyData,
    assert_verified,
    differences,
    documents_of,
    packs_of,
    picture,
    run_with_torchvision,
    tiny_config,
)
from PIL import Image
from processors import default, gemma3
from processors.common import write_processor
from support.errors import assert_skipped, raises, raises_media_error
from tiny_models import tiny_idefics3, tiny_llava
from transformers import AutoProcessor
from transformers.image_utils import make_flat_list_of_images

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.loaders.pixels import restored, stored_arrays
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.asked import Asked
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.learnt import bytes_of
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, truncated
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger, verify_ledger, verify_shard

pytestmark = pytest.mark.slow

MAKERS = {"llava": default.make, "next": default.make_next, "tiles": default.make_tiles}
SIZES = [(40, 50), (301, 517), (64, 64), (33, 340), (700, 71)]


@pytest.fixture(scope="module", params=MAKERS)
def processor(request, tmp_path_factory):
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param) / "processor")


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return load(default.make(tmp_path_factory.mktemp("llava") / "processor"))


def load(processor, **key):
    return load_family(ProcessorKey(processor=str(processor), family="default", **key))


def asked(*parts, answer="It is."):
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def test_layouts(tmp_path):
    media = {name: load(make(tmp_path / name)).media for name, make in MAKERS.items()}
    rows = {kind: {name: (array.row, array.dtype, array.counts) for name, array in found.items()}
            for kind, found in media.items()}  # fmt: skip
    assert rows["llava"] == {"pixel_values": ((3, 32, 32), "uint8", "")}
    assert rows["next"] == {
        "pixel_values": ((-1, 3, 32, 32), "float32", ""),
        "image_sizes": ((2,), "int64", ""),
    }
    assert rows["tiles"] == {
        "num_pixel_values": ((), "int64", ""),
        "pixel_values": ((3, 32, 32), "uint8", "num_pixel_values"),
        "num_pixel_attention_mask": ((), "int64", ""),
        "pixel_attention_mask": ((32, 32), "int64", "num_pixel_attention_mask"),
    }


def test_every_tensor_equals_the_processors(processor, tmp_path):
    family, theirs = load(processor), AutoProcessor.from_pretrained(str(processor))
    stored = stored_arrays(family.media, family.tables("processor"))
    paths = [str(picture(tmp_path / f"{i}.png", *size, seed=i)) for i, size in enumerate(SIZES)]
    images = [{"type": "image", "image": path} for path in paths]
    conversations = [asked(image) for image in images]
    conversations += [
        [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *asked(answer="\n\nJa, 这个.")],
        asked(*images[:3]) + asked(images[4], answer="No."),
    ]
    for number, messages in enumerate(conversations):
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        whole = render_whole(measured, family, "torch")
        opened = [
            turn | {"content": [part | ({"image": Image.open(part["image"])} if "image" in part else {})
                                for part in turn["content"]]}
            for turn in messages
        ]  # fmt: skip
        out = theirs.apply_chat_template(opened, tokenize=True, return_dict=True, return_tensors="pt")
        assert whole.input_ids.tolist() == out["input_ids"][0].tolist()
        assert measured.tokens == len(whole.input_ids) - 1
        image_token = family.chat.placeholder_ids["image"]
        assert whole.mm_token_type_ids.tolist() == (whole.input_ids == image_token).astype(int).tolist()
        assert measured.visual_tokens == np.count_nonzero(whole.input_ids == image_token)
        assert whole.position_ids.tolist() == list(range(len(whole.input_ids)))
        answers = [part["text"] for turn in messages if turn["role"] == "assistant" for part in turn["content"]]
        # Line breaks at the start of an answer merge with the header's.
        trained = family.chat.tokenizer.decode(whole.labels[whole.labels != -100]).lstrip("\n")
        assert trained == "".join(f"{answer}<|eot|>" for answer in answers).lstrip("\n")
        for name, array in family.media.items():
            if array.counts and name in out:
                assert whole.media[array.counts].sum() == len(whole.media[name])
            if name in out:
                expected = out[name].numpy()
                expected = expected[0] if expected.ndim > len(array.row) + 1 else expected
                ours = whole.media[name]
                if name in stored:
                    assert ours.dtype == np.uint8
                    ours = restored(torch.from_numpy(ours), stored[name], torch.float32).numpy()
                assert ours.tobytes() == expected.astype(ours.dtype).tobytes(), (number, name)
        if measured.media:
            assert measured.media_bytes >= whole.media["pixel_values"].nbytes * (len(measured.media) == 1)
            assert truncated(measured, measured.tokens - 1, family) is None


def test_the_processor_runs_once_per_sample(processor, tmp_path, monkeypatch):
    """And once for every size of a picture that is new; another run would be as long as all the rest."""
    family = load(processor)
    assert family.image.asked.tokens_keep_their_place(frozenset({"image"}))
    paths = [str(picture(tmp_path / f"{number}.png", 70, 90, seed=number)) for number in range(3)]
    images = [{"type": "image", "image": path} for path in paths]
    measure([from_conversation({"conversation": asked(images[0])})], family)  # the size is known from here on
    runs, run = [], Asked.run
    monkeypatch.setattr(Asked, "run", lambda *args, **more: runs.append(1) or run(*args, **more))
    (measured,) = measure([from_conversation({"conversation": asked(*images)})], family)
    assert not runs
    render_whole(measured, family, "torch")
    assert len(runs) == 1


def test_where_text_beside_a_picture_changes_its_tokens_the_processor_tells_them(tmp_path):
    """Gemma 3 writes empty lines around pictures, which merge with those of the text."""
    family = load(gemma3.make(tmp_path / "p"))
    assert not family.image.asked.tokens_keep_their_place(frozenset({"image"}))
    theirs = AutoProcessor.from_pretrained(family.source)
    path = str(picture(tmp_path / "a.png", 60, 70))
    messages = asked({"type": "text", "text": "So\n"}, {"type": "image", "image": path}, answer="Yes.")
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    out = theirs.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")
    assert measured.ids.tolist() == out["input_ids"][0].tolist()


def test_videos_from_rows_to_a_model(tmp_path):
    """InternVL's processor puts tiles of pictures and frames of videos into one array, in the order of the text."""
    found = json.loads(run_with_torchvision(ROOT / "tests" / "families" / "default_videos.py", str(tmp_path)))
    assert found.pop("difference") < 1e-9
    packs = found.pop("packs")
    no_bytes = "bad_media pixel_values has values that no"  # seen by a blank one of its look, and in the video itself
    assert found.pop("zeros") == ["", no_bytes, no_bytes]
    fakes = found["images"] - 3
    assert packs > 1 and 0 <= fakes < packs
    assert found == {"stored": "uint8", "skipped": {"bad_row": 1}, "videos": 7, "images": 3 + fakes,
                     "documents": 8 + fakes, "finite": True}  # fmt: skip


def test_why_videos_are_not_taken(llava, tmp_path):
    (skip,) = measure([from_conversation({"conversation": asked({"type": "video", "video": "a.mp4"})})], llava)
    assert_skipped(skip, "video_unsupported", "LlavaProcessor", kind="video", family="default")
    with raises(UserError, "processor-missing") as caught:
        load(DEMO_PROCESSOR)
    assert "Torchvision" in str(caught.error)


# Bytes


def test_bytes_of_floats():
    table = np.stack([np.arange(256, dtype=np.float32) / 255 - shift for shift in (0.5, 0.4, 0.3)])
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 4), dtype=np.uint8)
    floats = np.stack([table[channel][pixels[:, channel]] for channel in range(3)], axis=1)
    assert np.array_equal(bytes_of(floats, table), pixels)
    assert np.array_equal(bytes_of(floats[None], table), pixels[None]), "[media, tiles, channels, height, width]"
    assert np.array_equal(bytes_of(floats.reshape(2, 60), table), pixels.reshape(2, 60)), "flat patches"
    assert bytes_of(floats.transpose(0, 2, 3, 1), table) is None, "channels are alike, or come first"
    alike = table[:1]
    assert np.array_equal(bytes_of(alike[0][pixels].transpose(0, 2, 3, 1), alike), pixels.transpose(0, 2, 3, 1))
    for wrong in (np.nextafter(floats[0, 0, 0, 0], np.float32(9)), np.nan, np.inf, 5.0, -0.6):
        one = floats.copy()
        one[0, 0, 0, 0] = wrong
        assert bytes_of(one, table) is None
    zero = np.zeros((1, 1), np.float32)
    from_zero = np.arange(256, dtype=np.float32)[None]
    assert bytes_of(zero, from_zero) is not None and bytes_of(-zero, from_zero) is None, "to the bit"


def test_bytes_are_a_quarter_of_the_floats_and_restore_to_them(processor, tmp_path):
    packs, sizes = {}, {}
    for name, chosen in (("bytes", {}), ("floats", {"float_pixels": True})):
        out, manifest = packed(processor, tmp_path / name, **chosen)
        packs[name] = list(PackedShards(out, pixels="fp32"))
        stored = manifest.family["media"]["pixel_values"]["dtype"]
        is_next = "LlavaNext" in (processor / "processor_config.json").read_text()
        assert stored == ("float32" if is_next or name == "floats" else "uint8"), "LLaVA-NeXT pads rows with zeros"
        sizes[name] = sum(pack.arrays["pixel_values"].nbytes for pack in packs_of(out))
    assert sizes["floats"] == sizes["bytes"] * (1 if is_next else 4) > 0
    for ours, theirs in zip(packs["bytes"], packs["floats"], strict=True):
        assert ours["pixel_values"].numpy().tobytes() == theirs["pixel_values"].numpy().tobytes()


@pytest.fixture
def zeros(tmp_path, monkeypatch):
    """A processor that pads some pictures by zeros once they are normalised: wide ones, and black ones, whose size says
    nothing."""
    made = default.make(tmp_path / "processor")
    kind = type(load(made).image.asked.processor.image_processor)
    preprocess = kind.preprocess

    def padding(self, images, *args, **kwargs):
        out = preprocess(self, images, *args, **kwargs)
        for image, pixels in zip(make_flat_list_of_images(images), out["pixel_values"], strict=True):
            if image.width > 3 * image.height or not np.asarray(image).any():
                pixels[..., -1] = 0
        return out

    monkeypatch.setattr(kind, "preprocess", padding)
    return str(made)


def test_pictures_whose_floats_are_no_bytes_are_skipped_by_name(zeros, tmp_path):
    """While they are measured, by a blank one of their size, or rendered, by themselves; nobody else is lost."""
    data = TinyData(tmp_path / "data")
    data.image(40, 50, answer="Sound.").image(40, 200, answer="Wide.").text("Who?", "Me.")
    Image.new("RGB", (50, 40)).save(data.folder / "black.png")
    data.row([("user", "<image>and<image>?"), ("assistant", "Black.")], images=["0.png", "black.png"])
    meta, chosen = data.write(), {"processor": zeros, "family": "default", "pack_size": 400}
    run_pack(tiny_config(meta, tmp_path / "bytes", **chosen))
    lines = read_ledger(tmp_path / "bytes", assert_verified(tmp_path / "bytes")).to_pylist()
    assert [line["reason"] for line in lines] == ["", "bad_media", "", "bad_media"]
    remedy = "--float-pixels"
    assert [remedy in line["detail"] for line in lines if line["reason"]] == [True, True]
    run_pack(tiny_config(meta, tmp_path / "floats", float_pixels=True, **chosen))
    assert assert_verified(tmp_path / "floats").counts.skipped == {}


def test_pictures_whose_floats_are_no_bytes_are_refused_where_they_are_found(zeros, tmp_path):
    family = load(zeros)
    Image.new("RGB", (50, 40)).save(tmp_path / "black.png")
    wide, black = str(picture(tmp_path / "wide.png", 40, 200)), str(tmp_path / "black.png")
    (skip,), (found,) = (measure([from_conversation({"conversation": asked({"type": "image", "image": path})})], family)
                         for path in (wide, black))  # fmt: skip
    assert_skipped(skip, "bad_media", f"{wide}: ", "--float-pixels")
    with raises_media_error("bad_media", f"{black}: ", "--float-pixels"):
        render_whole(found, family, "torch")


def test_no_fake_image_is_changed_either(zeros):
    """Sizes that cannot be stored are passed over; if none can be, that is said before anything is rendered."""
    assert load(zeros).image.smallest.size == (28, 28)
    family = load(zeros)
    family.image.asked.processor.image_processor.image_mean = [0.1, 0.2, 0.3]
    with raises(UserError, "processor-unsupported", missing="blank picture"):
        _ = family.image.smallest


def test_only_default_stores_floats():
    with raises(UserError, "option-conflict", option="float_pixels", family="qwen2_vl"):
        load_family(ProcessorKey(processor=str(DEMO_PROCESSOR), float_pixels=True))


def packed(processor, folder, **chosen):
    data = TinyData(folder / "data")
    data.image(40, 50).image(120, 250).image(64, 64)
    picture(data.folder / "c.png", 150, 30)
    data.row([("user", "<image>and<image>?"), ("assistant", "Two."), ("user", "Sure?"), ("assistant", "No.")],
             images=["c.png", "0.png"])  # fmt: skip
    for number in range(12):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number * 15 + 2))))
    data.text("A literal <|eot|> in it", "Yes.")
    out = folder / "out"
    run_pack(tiny_config(data.write(), out, processor=str(processor), family="default", pack_size=400, **chosen))
    manifest = Manifest.read(out)
    problems = verify_ledger(out, manifest)
    for number in range(len(manifest.shards)):
        problems += verify_shard(out, manifest, number)
    assert problems == []
    assert manifest.counts.skipped["bad_row"] == 1
    return out, manifest


def test_packs_and_batches(processor, tmp_path):
    out, manifest = packed(processor, tmp_path)
    packs = list(PackedShards(out, pixels="fp32"))
    assert sum(pack["n_images"] for pack in packs) >= 5
    batch = neat_packed_vlm_collater(packs)
    theirs = AutoProcessor.from_pretrained(str(processor))
    images = [{"type": "image", "image": Image.new("RGB", size)} for size in ((50, 40), (250, 120))]
    expected = theirs.apply_chat_template(asked(*images), tokenize=True, return_dict=True, return_tensors="pt")
    for name in set(expected) - {"input_ids", "attention_mask"}:
        rows = expected[name].shape[-len(manifest.family["media"][name]["row"]) :]
        assert batch[name].ndim == expected[name].ndim, "as the model takes it, with a batch axis where it has one"
        assert batch[name].shape[batch[name].ndim - len(rows) + 1 :] == torch.Size(rows[1:])
        assert torch.isfinite(batch[name].float()).all()
    if "num_pixel_values" in batch:
        assert batch["pixel_values"].shape[:2] == (1, int(batch["num_pixel_values"].sum())), "as SmolVLM has it"
    else:
        assert len(batch["pixel_values"]) == int(batch["n_images_per_sample"].sum())


@torch.no_grad()
def test_packed_equals_alone(llava, tmp_path):
    model = tiny_llava(llava)

    def logits_of(batch):
        keys = ("input_ids", "attention_mask", "position_ids", "pixel_values")
        return model(**{key: batch[key] for key in keys if key in batch}).logits

    out, _ = packed(llava.source, tmp_path)
    for pack in PackedShards(out, pixels="fp32"):
        logits, start = logits_of(neat_packed_vlm_collater([pack])), 0
        for document in documents_of(out, pack):
            length = len(document["input_ids"])
            batch = neat_packed_vlm_collater([document])
            expected = logits_of({key: batch[key] for key in ("input_ids", "pixel_values") if key in batch})
            assert (logits[:, start : start + length] - expected).abs().max() < 1e-4
            start += length


@torch.no_grad()
def test_tiles_in_a_batch_axis_train_as_alone(tmp_path):
    """SmolVLM and Idefics3: their processor gives [1, tiles, …], their model wants it, and packs store the tiles."""
    family = load(default.make_tiles(tmp_path / "p"))
    model = tiny_idefics3(family)

    def logits_of(batch):
        keys = ("input_ids", "attention_mask", "position_ids", "pixel_values", "pixel_attention_mask")
        floats = {key: batch[key].double() if key == "pixel_values" else batch[key] for key in keys if key in batch}
        return model(**floats).logits

    out, _ = packed(family.source, tmp_path)
    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] > 1 and len(pack["seq_lens"]) > 1 for pack in packs)
    for pack in packs:
        assert max(differences(logits_of, out, pack)) < 1e-9
    both = neat_packed_vlm_collater(packs[:2])
    first = logits_of(neat_packed_vlm_collater(packs[:1]))
    assert (logits_of(both)[:1, : first.shape[1]] - first).abs().max() < 1e-9


def test_the_fake_image(processor):
    family = load(processor)
    arrays, ids = family.fake_image_arrays, family.fake_image_ids
    assert family.image.smallest.size == (28, 28)
    assert (ids == family.chat.placeholder_ids["image"]).any()
    assert not np.isin(ids, family.chat.tokenizer.convert_tokens_to_ids(["<|user|>", "<|eot|>"])).any()
    assert len(arrays["pixel_values"]) == (arrays["num_pixel_values"][0] if "num_pixel_values" in arrays else 1)


def test_rows_that_the_processor_would_misread_are_skipped(llava, tmp_path):
    said = asked(answer="It is <|eot|> or not.")
    (skip,) = measure([from_conversation({"conversation": said})], llava)
    assert_skipped(skip, "bad_row", "<|eot|>")


def test_a_template_that_refuses_a_row_does_not_stop_the_job(tmp_path):
    def family_of(most: int):
        folder = default.make(tmp_path / str(most))
        guard = f"{{% if messages|length > {most} %}}{{{{ raise_exception('too many questions') }}}}{{% endif %}}"
        (folder / "chat_template.jinja").write_text(guard + default.TEMPLATE)
        return load(folder)

    conversations = [from_conversation({"conversation": turns}) for turns in (asked(), asked() * 4)]
    good, skip = measure(conversations, family_of(6))
    assert good.tokens
    assert_skipped(skip, "bad_row", "too many questions")
    with raises(UserError, "processor-unsupported", part="texts"):
        family_of(2).chat.markers  # noqa: B018


def test_pictures_that_change_between_measuring_and_rendering(tmp_path):
    family = load(default.make_next(tmp_path / "p"))
    path = picture(tmp_path / "a.png", 60, 60)
    messages = asked({"type": "image", "image": str(path)})
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    with raises_media_error("bad_media"):
        family.document_arrays(measured.ids, measured.media, lambda *_: np.zeros((30, 90, 3), np.uint8), None)


def test_what_is_refused(tmp_path):
    folder = default.make(tmp_path / "p")
    with raises(UserError, "option-conflict", option="max_pixels", family="default"):
        load(folder, max_pixels=5)
    with raises(UserError, "processor-unsupported", class_name="LlavaProcessor"):
        load_family(ProcessorKey(processor=str(folder)))
    text = write_processor(tmp_path / "text", tokens=default.TOKENS, template=default.TEMPLATE)
    with pytest.raises(UserError) as caught:  # which of the two depends on the version of transformers
        load(text)
    assert caught.value.code in ("processor-missing", "processor-unsupported")
    broken = default.make(tmp_path / "broken")
    config = json.loads((broken / "preprocessor_config.json").read_text())
    (broken / "preprocessor_config.json").write_text(json.dumps(config | {"image_processor_type": "NoSuchProcessor"}))
    with raises(UserError, "processor-missing"):
        load(broken)
