"""Text from data made harmless for terminals, logs and pages.

Data may hold escape sequences that move the cursor or rename the window, characters that reverse the direction of the
text after them, and line breaks that forge a line of ours. `harmless` writes such characters out, as ⟨U+001B⟩;
everything that a command prints, logs or puts into a page goes through it. `safe` also writes out the four brackets
that `neatpack show` marks things with: text inside ⟦ ⟧ or ⟨ ⟩ was put there by us.
"""

import html
import json
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
    return _on_one_line(safe(text))


def harmless(text: str) -> str:
    """Write out what acts in a terminal or a page; line breaks, tabs and the brackets of our own marks stay."""
    return _SUSPECT.sub(lambda found: found[0] if found[0] in (*TRAINED, *TOLD) else _written(found[0]), text)


def harmless_line(text: str) -> str:
    """`harmless`, with line breaks and tabs written out: data cannot forge a second line."""
    return _on_one_line(harmless(text))


def harmless_json(text: str) -> str:
    """Escape what acts in JSON made with `ensure_ascii=False`; the values stay the same for whoever parses it."""
    return _SUSPECT.sub(lambda found: found[0] if _is_plain(found[0]) else json.dumps(found[0])[1:-1], text)


def harmless_html(text: str) -> str:
    """Escape text for a page, direction controls included."""
    return html.escape(harmless(text))


def _on_one_line(text: str) -> str:
    return re.sub(r"[\n\t]", lambda found: _named(found[0]), text)


def _is_plain(character: str) -> bool:
    kept = character in _KEPT or character in _JOINERS
    return kept or unicodedata.category(character) not in _WRITTEN_OUT


def _written(character: str) -> str:
    is_mark = character in (*TRAINED, *TOLD)
    return _named(character) if is_mark or not _is_plain(character) else character


def _named(character: str) -> str:
    return f"{TOLD[0]}U+{ord(character):04X}{TOLD[1]}"
