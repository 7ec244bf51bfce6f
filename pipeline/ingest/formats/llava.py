"""`llava`: ShareGPT's turns, with the columns `image`, `video` and `audio`, one entry or a list."""

from ...records import Skip
from ..dialect import Columns, Dialect
from . import messages
from .messages import FIELDS, ROW_REASONING, SHAREGPT_TAGS as TAGS
from .said import Format, Row, Said
from .sharegpt import has_turns

COLUMNS = Columns(messages="conversations", images="image", videos="video", audios="audio")


def read(row: Row, dialect: Dialect) -> Said | Skip:
    """LLaVA's own sets of videos (LLaVA-Video-178K) have <image> in the question: its trainer knows no other tag."""
    said = messages.read(row, dialect)
    return said._replace(image_is_video=True) if isinstance(said, Said) and said.media.get("video") else said


# Rows without a medium fit, too: a set of pictures has some.
FORMAT: Format = Format(read=read, fits=has_turns, columns=COLUMNS, tags=TAGS, fields=FIELDS, keys=ROW_REASONING)
