"""Text of data sets made harmless for terminals and pages, and unambiguous beside our own marks.

What a text may hold is anybody's choice: escape sequences that move the cursor or rename the window, characters that
turn the direction of all that follows, line breaks that forge a line of ours. Such characters are written out, as
⟨U+001B⟩; and so are the four brackets that we mark things with. So whatever stands in ⟦ ⟧ or ⟨ ⟩ was put there by us.
"""

import re
import unicodedata

TRAINED = ("⟦", "⟧")
TOLD = ("⟨", "⟩")  # around what stands for something else: a medium, a character
# Other joiners and direction marks shape words of living scripts; these two do no harm beyond their word.
_JOINERS = "\u200c\u200d"
_KEPT = "\n\t"
# Controls, formats (directions, soft hyphens, tags), surrogates without their half, private and unassigned characters
# (a font may draw anything for them), line and paragraph separators.
_WRITTEN_OUT = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_SUSPECT = re.compile(r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0373]")  # the rest need not be looked up


def safe(text: str) -> str:
    """A text of several lines: line breaks and tabs stay."""
    return _SUSPECT.sub(lambda found: _written(found[0]), text)


def safe_line(text: str) -> str:
    """A name, an id, a path: one line."""
    return re.sub(r"[\n\t]", lambda found: _named(found[0]), safe(text))


def _written(character: str) -> str:
    if character in (*TRAINED, *TOLD):
        return _named(character)
    if character in _KEPT or character in _JOINERS or unicodedata.category(character) not in _WRITTEN_OUT:
        return character
    return _named(character)


def _named(character: str) -> str:
    return f"{TOLD[0]}U+{ord(character):04X}{TOLD[1]}"
