"""`document`: text that is no conversation, with or without media.

    {"text": "… <image> …", "images": […]}                     tags take the media in order; without any, media first
    {"caption": "…", "image" | "images" | "url" | "video": …}  the medium, then its caption
    {"texts": ["…", null], "images": [null, "a.jpg"]}          OBELICS: one of the two at each place
    {"text_list": ["…"], "image_info": [{"image_name" | "raw_url": "…", "matched_text_index": 0}]}     MMC4
    {"content": [parts]}

Each is one turn of the role "document".
"""

from collections.abc import Mapping
from typing import Any

from neatpack.format.layout import MediaKind

from ...records import Skip
from ..dialect import Columns, Dialect
from ..media import is_unicode, json_name
from .said import Format, Named, Row, Said, Spoken, bad_row, column_of, keys_of, media_of, named

TEXTS = ("text", "caption")
PLACES = ("image_name", "path", "raw_url", "url")  # keys of MMC4's image_info; the file, where it was downloaded, first


def read(row: Row, dialect: Dialect) -> Said | Skip:
    if not dialect.columns.text:
        if isinstance(row.get("text_list"), list):
            return _sentences(row)
        if isinstance(row.get("texts"), list):
            return _interleaved(row, dialect.columns)
        if isinstance(row.get("content"), list):
            media = media_of(row, dialect.columns)
            return Said(turns=(Spoken(role="document", content=row["content"], at=("content",)),), media=media)
    return _text(row, dialect.columns)


def _text(row: Row, columns: Columns) -> Said | Skip:
    names = (columns.text,) if columns.text else TEXTS
    column = next((name for name in names if row.get(name) is not None), names[0])
    text = row.get(column)
    media: dict[MediaKind, tuple[Named, ...]] = media_of(row, columns)
    # Of a web page (FineWeb, C4: `text` and `url`) the URL is where the text came from, and no image.
    if column == "caption" and not media.get("image") and columns.images == "images":
        media["image"] = named(row, "url")
    if text is None and any(media.values()):
        text = ""  # ends as no_target, which says more
    if not isinstance(text, str):
        problem = f"is a JSON {json_name(text)}" if column in row else "is absent"
        return bad_row(f"column {column!r} {problem}; expected a text; the row has {keys_of(row)}")
    if not is_unicode(text):
        return bad_row(f"column {column!r}: not Unicode text: half of a surrogate pair")
    return Said(turns=(Spoken(role="document", content=text),), media=media, media_first=True)


def _interleaved(row: Row, columns: Columns) -> Said | Skip:
    column = column_of(row, columns.images)
    texts, images = row["texts"], row.get(column)
    if not isinstance(images, list) or len(images) != len(texts):
        return bad_row(f"columns 'texts' and {column!r} must be lists of one length, with null where the other has one")
    parts: list[Any] = []
    found: list[Named] = []
    for number, (text, entry) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (entry is None):
            both = "neither text nor picture" if text is None else "both a text and a picture"
            return bad_row(f"place {number} of 'texts' and {column!r} has {both}; expected one of the two")
        if text is not None:
            parts.append({"type": "text", "text": text})
        else:
            parts.append({"type": "image", "index": len(found)})
            found.append(Named(entry=entry, column=column, at=(column, number)))
    return Said(turns=(Spoken(role="document", content=parts),), media={"image": tuple(found)})


def _sentences(row: Row) -> Said | Skip:
    """Sentences that follow each other are one text, with a space between: that is how they were cut."""
    sentences, infos = row["text_list"], row.get("image_info") or []
    if not all(isinstance(sentence, str) for sentence in sentences) or not isinstance(infos, list):
        return bad_row("'text_list' must be a list of texts, and 'image_info' a list of objects")
    before: dict[int, list[int]] = {}
    found: list[Named] = []
    for number, info in enumerate(infos):
        index = info.get("matched_text_index") if isinstance(info, Mapping) else None
        key = next((key for key in PLACES if isinstance(info, Mapping) and info.get(key) is not None), None)
        if type(index) is not int or not 0 <= index < len(sentences) or key is None:
            return bad_row(
                f"'image_info' {number}: expected {' or '.join(PLACES)}, and a matched_text_index below "
                f"{len(sentences)}"
            )
        before.setdefault(index, []).append(number)
        found.append(Named(entry=info[key], column="image_info", at=("image_info", number, key)))
    parts: list[Any] = []
    together: list[str] = []
    for number, sentence in enumerate(sentences):
        if number in before and together:
            parts.append({"type": "text", "text": " ".join(together)})
            together = []
        parts += [{"type": "image", "index": index} for index in before.get(number, ())]
        together.append(sentence)
    if together:
        parts.append({"type": "text", "text": " ".join(together)})
    return Said(turns=(Spoken(role="document", content=parts),), media={"image": tuple(found)})


def fits(row: Row) -> bool:
    lists = isinstance(row.get("text_list"), list) or (
        isinstance(row.get("texts"), list) and isinstance(row.get("images"), list)
    )
    return lists or isinstance(row.get("content"), list) or any(isinstance(row.get(name), str) for name in TEXTS)


KEYS = (*TEXTS, "texts", "text_list", "image_info", "content", "url")
FORMAT: Format = Format(read=read, fits=fits, fields=("text", "images", "videos", "audios"), keys=KEYS)
