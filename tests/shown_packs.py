"""Small packs made by hand, of the demo's tokens: what stands in them is known to the token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from places import DEMO_PROCESSOR

from neatpack.format.layout import IGNORE
from neatpack.format.members import Document, Pack
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.labels import labels_of, mask_spans, shifted
from neatpack.pipeline.render.pack import end_to_end
from neatpack.pipeline.view.document import PackView
from neatpack.pipeline.view.of_pack import Known, pack_view
from neatpack.pipeline.view.tokens import load_decoder


def pack_of(*documents: Any, align: int = 1, **said: Any) -> Pack:
    """A pack of documents, each of (text, whether it is trained on); or of (ids, the same of each), where no text would
    give them. said: of all documents."""
    family = family_for(str(DEMO_PROCESSOR))
    told, rendered = [], []
    for row, words in enumerate(documents):
        if isinstance(words[0], list):
            ids, trained = words
        else:
            pieces = [(family.chat.tokenizer(text)["input_ids"], is_trained) for text, is_trained in words]
            ids = [id_ for piece, _ in pieces for id_ in piece]
            trained = [is_trained for piece, is_trained in pieces for _ in piece]
        whole = np.array(ids, np.int32)
        types = np.zeros(len(whole), np.uint8)
        arrays = shifted({
            "input_ids": whole, "labels": labels_of(whole, np.array(trained)), "mm_token_type_ids": types,
            "position_ids": family.positions(types, family.joined([]), family.facts),
        })  # fmt: skip
        rendered.append(arrays)
        spans = tuple((start, stop) for start, stop in mask_spans(arrays["labels"] != IGNORE).tolist())
        told.append(
            Document(**{
                "dataset": "made", "row": row, "repeat": 0, "id": "", "form": "chat", "loss": "", "targets": spans,
                "tokens": len(whole) - 1, "visual_tokens": 0, "num_images": 0, "num_videos": 0, "num_audios": 0,
            } | said)
        )  # fmt: skip
    text = end_to_end(rendered, padding_id=family.chat.padding_id, align=align)
    return Pack(number=7, arrays=text | family.joined([]), documents=tuple(told), fake_image=False)


def view_of(pack: Pack, *, title: str = "pack 7 of made", decoded: bool = True, only: int | None = None,
            notes: Sequence[str] = (), places: Sequence[str] = ()) -> PackView:  # fmt: skip
    family = family_for(str(DEMO_PROCESSOR))
    return pack_view(
        title,
        pack,
        family.media,
        family.described(),
        pack_size=64,
        decoder=load_decoder(str(DEMO_PROCESSOR)) if decoded else None,
        known={at: Known(place=place) for at, place in enumerate(places)},
        only=only,
        notes=notes,
    )


# Whatever a data set may bring: escapes of terminals in both spellings, a window's title, what goes back in the line,
# tags and attributes, directions, our own marks, a character of another plane, nothing printable.
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J\rgone\b\b \x00<script>alert(1)</script>"
    "<img src=http://127.0.0.1:9/x onerror=alert(2)>\"'&amp;</span></div>--> \u202eevil\u202c \u2066 \u2028\u2029⟧ ⟦ "
    "⟨image 1⟩ \ue100 \U000e0041 \ufeff שלום \U0001f600 x\u0301\u200d."
)
HARMLESS = (
    "⟨U+001B⟩[31mred⟨U+001B⟩]0;title⟨U+0007⟩ ⟨U+009B⟩2J⟨U+000D⟩gone⟨U+0008⟩⟨U+0008⟩ ⟨U+0000⟩<script>alert(1)</script>"
    "<img src=http://127.0.0.1:9/x onerror=alert(2)>\"'&amp;</span></div>--> ⟨U+202E⟩evil⟨U+202C⟩ ⟨U+2066⟩ "
    "⟨U+2028⟩⟨U+2029⟩⟨U+27E7⟩ ⟨U+27E6⟩ ⟨U+27E8⟩image 1⟨U+27E9⟩ "
    "⟨U+E100⟩ ⟨U+E0041⟩ ⟨U+FEFF⟩ שלום \U0001f600 x\u0301\u200d."
)
