"""What a PackView says of a pack: exactly the trained tokens are marked, and every token is accounted for."""

from importlib import import_module

import numpy as np
import pytest
from helpers import TinyData, packs_of, tiny_config
from shown_packs import HARMLESS, HOSTILE, pack_of, view_of

from neatpack.format.layout import IGNORE
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.view.document import MediaRun, TextRun
from neatpack.pipeline.view.of_pack import pack_view
from neatpack.pipeline.view.tokens import decoder_of

ASKED = [("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n", False), ("So.<|im_end|>", True), ("\n", False)]


def marked(document):
    return "".join(text for text, _ in document.pieces())


def test_the_trained_tokens_are_marked_and_no_others():
    (document,) = view_of(pack_of(ASKED)).documents
    # The line break after the last turn is cut off by the shift and trained on nowhere: it is not stored.
    assert marked(document) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n⟦So.<|im_end|>⟧"
    runs = [(run.text, run.is_trained, run.is_special) for run in document.runs]
    assert runs == [
        ("<|im_start|>", False, True), ("user\nWhy?", False, False), ("<|im_end|>", False, True), ("\n", False, False),
        ("<|im_start|>", False, True), ("assistant\n", False, False), ("So.", True, False), ("<|im_end|>", True, True),
    ]  # fmt: skip


def test_the_token_that_the_shift_cuts_off_is_shown_if_it_is_trained_on():
    (document,) = view_of(pack_of(ASKED[:2])).documents
    assert marked(document).endswith("\n⟦So.<|im_end|>⟧")
    assert (document.target_tokens, sum(run.tokens for run in document.runs)) == (3, document.tokens + 1)


def test_marks_are_those_of_the_labels():
    """Of a mask that changes at every token, and of one with the first and the last token in it."""
    ids = list(range(40, 60))
    for trained in ([at % 2 == 1 for at in range(20)], [at in (1, 2, 19) for at in range(20)], [True] * 20):
        pack = pack_of((ids, trained))
        (document,) = view_of(pack, decoded=False).documents
        found = [(int(id_), run.is_trained) for run in document.runs for id_ in run.text.split()]
        expected = list(zip(ids, [False, *trained[1:]], strict=True))  # nothing predicts the first token
        assert found == (expected if trained[-1] else expected[:-1])
        assert sum(is_trained for _, is_trained in found) == np.count_nonzero(pack.arrays["labels"] != IGNORE)


def test_figures():
    view = view_of(pack_of(ASKED, ASKED[:2], align=12), title="pack 7 of made")
    assert view.figures == "2 documents, 48 tokens of 64, 0 visual, 6 trained on; family qwen2_vl"
    first, second = view.documents
    assert first.title == "document 0: made row 0" and second.title == "document 1: made row 1"
    assert (first.tokens, first.padding) == (16, 8) and (second.tokens, second.padding) == (15, 9)
    assert view.lengths == (24, 24)
    assert first.figures == (
        "16 tokens, 0 visual, 3 trained on, 8 of padding; positions 0–15 in time, 0–15 in height, 0–15 in width"
    )
    alone = view_of(pack_of(ASKED, ASKED[:2]), only=1)
    assert [document.position for document in alone.documents] == [1] and alone.lengths == (16, 15)
    copy = view_of(pack_of(ASKED, dataset="a", row=3, repeat=2, id="x7")).documents[0]
    assert copy.title == "document 0: a row 3, copy 2 (id x7)"


def test_hostile_text_is_harmless_wherever_it_stands():
    pack = pack_of([(HOSTILE, False), (HOSTILE, True)], dataset="a\x1b[2J", id="\ud800\n⟦")
    (document,) = view_of(pack, title="pack\r7", places=["/d\x07/f.jsonl:3"]).documents
    assert marked(document) == f"{HARMLESS}⟦{HARMLESS}⟧"
    assert document.title == "document 0: a⟨U+001B⟩[2J row 0 (id ⟨U+D800⟩⟨U+000A⟩⟨U+27E6⟩)"
    assert document.place == "/d⟨U+0007⟩/f.jsonl:3"


def test_a_character_that_the_mask_cuts_is_told_broken(demo_family):
    ids = demo_family.chat.tokenizer("漢")["input_ids"]
    assert len(ids) > 1, "no token of its own"
    (document,) = view_of(pack_of(([40, *ids], [False, False, *[True] * (len(ids) - 1)]))).documents
    text = marked(document)
    assert "\ufffd⟦\ufffd" in text and text.endswith("⟧") and "漢" not in text
    (document,) = view_of(pack_of(([40, *ids], [False, *[True] * len(ids)]))).documents
    assert marked(document).endswith("⟦漢⟧")


def packed_documents(folder, family_name, *rows):
    """The documents of the one pack of some rows, by a family's test processor."""
    processor = import_module(f"processors.{family_name}").make(folder / "processor")
    family = load_family(ProcessorKey(processor=str(processor)))
    data = TinyData(folder / "data")
    for add in rows:
        add(data)
    run_pack(tiny_config(data.write(), folder / "out", processor=str(processor), pack_size=8192))
    (pack,) = packs_of(folder / "out")
    decoder = decoder_of(family.chat.tokenizer)
    view = pack_view("t", pack, family.media, family.described(), pack_size=8192, decoder=decoder, known={})
    return {document.row: document for document in view.documents}


def media_tokens(document):
    return sum(run.tokens for run in document.runs if isinstance(run, MediaRun))


@pytest.mark.parametrize("family_name", ["qwen2_vl", "qwen3_vl", "gemma4", "internvl", "llava_onevision", "kimi_k25"])
def test_media_tokens_are_collapsed(tmp_path, family_name):
    from helpers import clip, picture

    def rows(data):
        data.image(60, 90)
        for number in range(2):
            picture(data.folder / f"b{number}.png", 40 + 30 * number, 80, seed=number)
        data.row([("user", "<image><image>Which?"), ("assistant", "One.")], images=["b0.png", "b1.png"])
        clip(data.folder / "a.mp4", frames=9)
        data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=["a.mp4"])
        data.row([("user", "<image>or <video>?"), ("assistant", "Both.")], images=["b0.png"], videos=["a.mp4"])

    documents = packed_documents(tmp_path, family_name, rows)
    for document in documents.values():
        assert media_tokens(document) == document.visual_tokens > 0
        known = [medium.tokens for medium in document.media if medium.tokens is not None]
        assert not known or sum(known) == document.visual_tokens
        assert sum(run.tokens for run in document.runs if isinstance(run, TextRun)) in (
            document.tokens - document.visual_tokens, document.tokens - document.visual_tokens + 1,
        )  # fmt: skip
    (one,) = documents[0].media
    width, height = one.size
    source = "90x60 -> " if family_name == "llava_onevision" else ""  # which alone stores it
    assert one.label == f"image 1: {source}{width}x{height}, {one.tokens} tokens"
    assert f"⟨{one.label}⟩" in marked(documents[0])
    labels = [run.label for run in documents[1].runs if isinstance(run, MediaRun)]
    if family_name == "llava_onevision":  # nothing parts the two
        assert labels == [f"images 1 to 2: {documents[1].visual_tokens} tokens together"]
    else:
        assert [label.split(":")[0] for label in labels] == ["image 1", "image 2"]
    (film,) = documents[2].media
    labels = [run.label for run in documents[2].runs if isinstance(run, MediaRun)]
    assert film.kind == "video" and film.tokens == documents[2].visual_tokens and len(film.pictures) >= 3
    if len(labels) > 1:
        assert labels[1].startswith(f"video 1, part 2 of {len(labels)}: ")
    still, film = documents[3].media
    first, *rest = (run.label for run in documents[3].runs if isinstance(run, MediaRun))
    assert first == still.label and {label[:7] for label in rest} == {"video 1"}
    assert (still.tokens, film.tokens) == (documents[1].media[0].tokens or still.tokens, documents[2].visual_tokens)


def test_tiles_that_stand_apart_are_parts_of_their_picture(tmp_path):
    """SmolVLM writes each tile by itself, between marks, and frames of videos by the token of pictures."""
    from helpers import clip, picture

    def rows(data):
        for number in range(2):
            picture(data.folder / f"{number}.png", 40 + 80 * number, 80, seed=number)
        clip(data.folder / "a.mp4", frames=3, rate=1)
        data.row([("user", "<image>or <video><image>?"), ("assistant", "All.")], images=["0.png", "1.png"],
                 videos=["a.mp4"])  # fmt: skip

    (document,) = packed_documents(tmp_path, "smolvlm", rows).values()
    labels = [run.label for run in document.runs if isinstance(run, MediaRun)]
    assert [label.partition(":")[0] for label in labels] == [
        *(f"image 1, part {part} of 7" for part in range(1, 8)),
        *(f"video 1, part {part} of 3" for part in range(1, 4)),
        *(f"image 2, part {part} of 7" for part in range(1, 8)),
    ]
    assert [(medium.kind, medium.tokens) for medium in document.media] == [("image", 28), ("image", 28), ("video", 12)]


def test_a_video_and_its_sound_are_one(tmp_path):
    """Qwen3-Omni writes tokens of a video and of its sound in turns."""
    from neatpack.pipeline.view.of_pack import _blocks

    types = np.array([0, 2, 2, 3, 3, 2, 2, 3, 0, 1, 1, 0, 3], np.uint8)
    found = [(block.start, block.stop, block.kind, block.with_sound) for block in _blocks(types)]
    assert found == [(1, 8, "video", True), (9, 11, "image", False), (12, 13, "audio", False)]


def test_the_fake_image_is_named(tiny, tmp_path, demo_family):
    tiny.text("Why?", "So.")
    run_pack(tiny_config(tiny.write(), tmp_path / "out"))
    (pack,) = packs_of(tmp_path / "out")
    view = view_of(pack)
    fake = view.documents[1]
    assert fake.title == "document 1: the fake image" and fake.target_tokens == 0
    assert marked(fake) == "<|vision_start|>⟨image 1: 28x28, 1 token⟩<|vision_end|>"
    assert (fake.media[0].pictures[0].pixels == 128).all()
