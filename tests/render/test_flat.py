"""Documents laid out together are what they are one by one: labelled, positioned, shifted, padded, joined."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR
from hypothesis import given, settings, strategies as st

from neatpack.format.layout import IGNORE
from neatpack.format.members import Document
from neatpack.pipeline.families.base import Family
from neatpack.pipeline.families.media_rows import join_rows
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.labels import (
    disjoint_spans_mask,
    labels_of,
    mask_spans,
    shifted,
    shifted_spans_together,
    spans_mask,
)
from neatpack.pipeline.measure.store import _packed, text_row
from neatpack.pipeline.media.pixels import in_patches, patchify
from neatpack.pipeline.records import NO_MEDIA, Measured, MeasuredMedia, MediaRef
from neatpack.pipeline.render.pack import build_pack, end_to_end, laid_out
from neatpack.pipeline.render.sample import Expanded, fake_image_sample


@dataclass
class OneAxis:
    """The demo's family with positions of other kinds, for they are declared by class."""

    family: Family
    position_axes: ClassVar[int] = 1
    position_dtype: ClassVar[str] = "int32"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def positions(self, types: np.ndarray, media: Any, facts: Any) -> np.ndarray:
        return np.arange(len(types), dtype=self.position_dtype)

    def __hash__(self) -> int:
        return id(self)


class Fractions(OneAxis):
    """As Qwen3-Omni has them: three axes of floats, here half a step for what is seen."""

    position_axes = 3
    position_dtype = "float32"

    def positions(self, types: np.ndarray, media: Any, facts: Any) -> np.ndarray:
        steps = np.where(types > 0, np.float32(0.5), np.float32(1))
        return np.tile(np.cumsum(steps, dtype=np.float32) - steps[0], (3, 1))


DEMO = family_for(str(DEMO_PROCESSOR))
FAMILIES = {"three axes": DEMO, "one axis": OneAxis(DEMO), "fractions": Fractions(DEMO)}


TEXT = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6)  # ids, and whether trained on
PICTURE = st.tuples(st.integers(1, 2), st.integers(1, 3))  # merged patches


@st.composite
def documents(draw: st.DrawFn) -> Expanded:
    """Ids of a small alphabet, any of them trained on, and up to two pictures between them."""
    texts = draw(st.lists(TEXT, min_size=1, max_size=3))
    text, media = [(0, False), *texts[0]], []
    for more in texts[1:]:
        rows, columns = draw(PICTURE)
        media.append(seen(rows, columns))
        text += [(DEMO.chat.placeholder_ids["image"], False)] * (rows * columns) + more
    ids, trained = (np.array(column) for column in zip(*text, strict=True))
    return Expanded(ids=ids.astype(np.int32), targets=mask_spans(trained), media=tuple(media))


def seen(rows: int, columns: int) -> dict[str, np.ndarray]:
    rule = DEMO.image
    size = (rows * rule.factor, columns * rule.factor, 3)
    pixels = np.random.default_rng(rows + columns).integers(0, 256, size, dtype=np.uint8)
    grid = np.array([[1, rows * rule.merge_size, columns * rule.merge_size]], dtype=np.int64)
    return {
        "pixel_values": in_patches(pixels[None], rule.patch_size, rule.merge_size, 1),
        "image_grid_thw": grid,
    }


def told(document: Expanded) -> Document:
    return Document(dataset="a", row=0, repeat=0, id="", form="chat", loss="", targets=(), tokens=0, visual_tokens=0,
                    num_images=len(document.media), num_videos=0, num_audios=0)  # fmt: skip


def one_by_one(document: Expanded, family: Any) -> dict[str, np.ndarray]:
    types = family.chat.token_types(document.ids)
    whole = {
        "input_ids": document.ids,
        "labels": labels_of(document.ids, spans_mask(document.targets, len(document.ids))),
        "position_ids": family.positions(types, family.joined(document.media), family.facts),
        "mm_token_type_ids": types,
    }
    return shifted(whole)


@pytest.mark.parametrize("kind", FAMILIES)
@settings(max_examples=150)
@given(st.lists(documents(), min_size=1, max_size=5), st.sampled_from([1, 2, 3, 8]), st.booleans())
def test_together_is_one_by_one(kind: str, several: list[Expanded], align: int, fake_image: bool) -> None:
    family: Any = FAMILIES[kind]
    pack = build_pack(7, list(map(told, several)), several, family, fake_image=fake_image, align=align)
    rendered = [one_by_one(one, family) for one in several]
    media = [family.joined(one.media) for one in several]
    is_faked = fake_image and not any(one.media for one in several)
    if is_faked:
        fake = fake_image_sample(family)
        rendered.append(fake.per_token)
        media.append(fake.media)
    expected = end_to_end(rendered, padding_id=family.chat.padding_id, align=align) | {
        name: np.concatenate([own[name] for own in media]) for name in family.media
    }
    assert pack.fake_image == is_faked
    assert list(pack.arrays) == list(expected)
    for name, values in expected.items():
        assert pack.arrays[name].dtype == values.dtype, name
        assert pack.arrays[name].shape == values.shape, name
        assert np.array_equal(pack.arrays[name], values), name


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_spans(mask: list[bool]) -> None:
    trained = np.array(mask)
    assert np.array_equal(disjoint_spans_mask(mask_spans(trained), len(mask)), trained)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=4))
def test_spans_of_labels_after_the_shift(masks: list[list[bool]]) -> None:
    spans = [mask_spans(np.array(mask)) for mask in masks]
    labels = [shifted({"labels": labels_of(np.arange(len(mask)), np.array(mask))})["labels"] for mask in masks]
    found = shifted_spans_together(np.concatenate(spans), np.array([len(own) for own in spans]))
    assert found == [mask_spans(own != IGNORE).tolist() for own in labels]


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_rows_of_text_are_laid_out_as_their_arrays(several: list[list[tuple[int, bool]]]) -> None:
    """What the token store has as bytes, and at any address."""
    columns = [[np.array(column) for column in zip((0, False), *text, strict=True)] for text in several]
    texts = [Expanded(ids=ids.astype(np.int32), targets=mask_spans(own), media=()) for ids, own in columns]
    kept = [
        Measured(ids=one.ids, targets=one.targets, media=(), tokens=len(one.ids) - 1, visual_tokens=0, media_bytes=0)
        for one in texts
    ]
    rows = [text_row(7, memoryview(b"x" + _packed(7, one))[1:]) for one in kept]
    assert None not in rows and [row.tokens for row in rows] == [one.tokens for one in kept]
    expected = laid_out(texts, DEMO)
    for mixed in (rows, [*rows[:1], *texts[1:]]):
        assert all(np.array_equal(values, expected[name]) for name, values in laid_out(mixed, DEMO).items())


def test_what_is_no_row_of_text_is_left_to_others() -> None:
    ids = np.arange(3, dtype=np.int32)
    text = Measured(ids=ids, targets=ids[:2].reshape(1, 2), media=(), tokens=2, visual_tokens=0, media_bytes=0)
    packed = _packed(7, text)
    found = text_row(7, memoryview(packed))
    assert found is not None and (found.form, found.loss, dict(found.num_media)) == (text.form, text.loss, NO_MEDIA)
    assert found.ids == ids.tobytes() and found.targets == ids[:2].tobytes()
    medium = MeasuredMedia(ref=MediaRef(kind="image", path=",[]]"), grid=(1, 1, 1))
    damaged = packed[:30] + bytes([packed[30] ^ 1]) + packed[31:]
    for number, content in [(8, packed), (7, damaged), (7, packed[:-1]), (7, b""), (7, b",[]]"),
                            (7, _packed(7, replace(text, media=(medium,))))]:  # fmt: skip
        assert text_row(number, memoryview(content)) is None


def test_pictures_are_laid_out_as_patches() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    view = in_patches(pixels[None], 14, 2, 1)
    assert view.base is not None and np.shares_memory(view, pixels)
    array = DEMO.media["pixel_values"]
    assert np.array_equal(join_rows([view], array), patchify(pixels, 14, 2))
    assert np.array_equal(join_rows([view, patchify(pixels, 14, 2)], array), np.tile(patchify(pixels, 14, 2), (2, 1)))
