"""The view in a terminal and in a pipe: the same marks, and nothing in a text that acts on the terminal."""

import re

import numpy as np
from shown_packs import HARMLESS, HOSTILE, pack_of, view_of

from neatpack.pipeline.view.lines import in_lines, levels, mask_cells
from neatpack.pipeline.view.terminal import half_blocks, terminal_text

ASKED = [("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n", False), ("So.<|im_end|>", True), ("\n", False)]
OURS = re.compile(r"\x1b\[[0-9;]*m")  # colours, and nothing else
PLAIN = """\
pack 7 of made
2 documents, 31 tokens of 64, 0 visual, 6 trained on; family qwen2_vl
note: a note
⟦…⟧ trained on; ⟨…⟩ stands for tokens of a medium, or for a character or token that has no text

attention: each token sees itself and those before it in its own document
  █▄
  ███▄
  █████▄
  ███████▄
  █████████▄
  ███████████▄
  █████████████▄
  ███████████████▄
                  █▄
                  ███▄
                  █████▄
                  ███████▄
                  █████████▄
                  ███████████▄
                  █████████████▄
                  ▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀

document 0: made row 0
  data.jsonl:1
  16 tokens, 0 visual, 3 trained on; positions 0–15 in time, 0–15 in height, 0–15 in width
│ <|im_start|>user
│ Why?<|im_end|>
│ <|im_start|>assistant
│ ⟦So.<|im_end|>⟧

document 1: made row 1
  15 tokens, 0 visual, 3 trained on; positions 0–14 in time, 0–14 in height, 0–14 in width
│ <|im_start|>user
│ Why?<|im_end|>
│ <|im_start|>assistant
│ ⟦So.<|im_end|>⟧
"""


def test_plain_text():
    view = view_of(pack_of(ASKED, ASKED[:2]), notes=["a note"], places=["data.jsonl:1"])
    assert terminal_text(view) == PLAIN


def test_colours_add_nothing_but_colours():
    view = view_of(pack_of(ASKED, ASKED[:2]), notes=["a note"], places=["data.jsonl:1"])
    coloured = terminal_text(view, colours=True)
    assert OURS.sub("", coloured) == PLAIN
    assert "\x1b[1;32m⟦\x1b[0m\x1b[32mSo.\x1b[0m\x1b[2;32m<|im_end|>\x1b[0m\x1b[1;32m⟧\x1b[0m" in coloured


def test_hostile_text_does_nothing():
    view = view_of(pack_of([(HOSTILE, False), (HOSTILE, True)], dataset="\x1b[2J", id="\n│ ⟦"))
    for options in ({}, {"colours": True, "thumbnails": True}, {"colours": True, "width": 40}):
        text = OURS.sub("", terminal_text(view, **options))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]", text)
        text.encode()
    assert f"│ {HARMLESS}⟦{HARMLESS}⟧\n" in terminal_text(view)


def test_a_text_cannot_forge_a_line_of_ours():
    """Each of its lines has the gutter before it."""
    view = view_of(pack_of([("a\ndocument 9: none\n  note: none", False), ("b\n", True)]))
    assert [line for line in terminal_text(view).splitlines() if "none" in line] == [
        "│ document 9: none", "│   note: none⟦b",
    ]  # fmt: skip


def test_lines_fit_the_terminal():
    pieces = [("abcdef", "text"), ("漢字漢", "trained"), ("\nx\ty", "text"), ("e\u0301" * 3, "mark")]
    assert in_lines(pieces, None) == [
        [("abcdef", "text"), ("漢字漢", "trained")], [("x\ty", "text"), ("e\u0301" * 3, "mark")],
    ]  # fmt: skip
    assert in_lines(pieces, 5) == [
        [("abcde", "text")], [("f", "text"), ("漢字", "trained")], [("漢", "trained")],
        [("x\t", "text")], [("y", "text"), ("e\u0301" * 3, "mark")],
    ]  # fmt: skip
    view = view_of(pack_of([(HOSTILE, True)]))
    assert max(map(len, OURS.sub("", terminal_text(view, colours=True, width=50)).splitlines())) <= 51  # one combines


def test_the_attention_mask():
    assert mask_cells([2, 2], 4).tolist() == [[0, -1, -1, -1], [0, 0, -1, -1], [-1, -1, 1, -1], [-1, -1, 1, 1]]
    assert mask_cells([1], 4).tolist() == [[0]]
    assert mask_cells([4, 4], 2).tolist() == [[0, -1], [-1, 1]]
    assert mask_cells([1] * 100, 3).diagonal().tolist() == [0, 33, 66]
    assert mask_cells([], 3).shape == (0, 0)


def test_half_blocks_are_the_pixels():
    pixels = np.array([[[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]], [[0, 0, 0], [9, 9, 9]]], np.uint8)
    assert list(half_blocks([pixels])) == [
        "\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m▀\x1b[38;2;1;2;3m\x1b[48;2;7;8;9m▀\x1b[0m",
        "\x1b[38;2;0;0;0m▀\x1b[38;2;9;9;9m▀\x1b[0m",
    ]
    assert list(half_blocks([pixels[:2], pixels]))[1].startswith("    \x1b[38;2;0;0;0m▀")  # a shorter one has ended


def test_a_sound_is_its_loudest_places():
    assert levels(np.array([0.0, 0.5, 0.25, 1.0]), 2) == [0.5, 1.0]
    assert levels(np.zeros(0), 5) == []
