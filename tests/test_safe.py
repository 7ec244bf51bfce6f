"""Text of data sets cannot do anything, nor pass for a mark of ours."""

import re
import sys
import unicodedata

from shown_packs import HARMLESS, HOSTILE

from neatpack.pipeline.safe import safe, safe_line


def test_what_acts_is_written_out():
    assert safe(HOSTILE) == HARMLESS
    assert safe("two\nlines\tand a tab") == "two\nlines\tand a tab"
    assert safe_line("two\nlines\ta tab") == "two⟨U+000A⟩lines⟨U+0009⟩a tab"
    assert safe("\ud800 alone") == "⟨U+D800⟩ alone"
    assert safe("Größe, 漢字, नमस्ते, می‌خواهم, 👩‍🚀, ½ ≤ x") == "Größe, 漢字, नमस्ते, می‌خواهم, 👩‍🚀, ½ ≤ x"


def test_every_character_is_printable_or_written_out():
    """The shortcut for common characters leaves none out."""
    kept = {"\n", "\t", "\u200c", "\u200d"}
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        written = safe(character)
        acts = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        if (acts and character not in kept) or character in "⟦⟧⟨⟩":
            assert written == f"⟨U+{number:04X}⟩", hex(number)
        else:
            assert written == character, hex(number)


def test_marks_are_ours_alone():
    assert re.sub(r"⟨U\+[0-9A-F]{4,6}⟩", "", safe("⟦⟧⟨⟩⟦a⟧⟨U+0041⟩")) == "aU+0041"
