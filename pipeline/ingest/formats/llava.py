"""`llava`: ShareGPT's turns, with the columns `image`, `video` and `audio`, one entry or a list."""

from ..dialect import Columns
from .messages import FIELDS, read
from .said import Format
from .sharegpt import TAGS, has_turns

COLUMNS = Columns(messages="conversations", images="image", videos="video", audios="audio")

# Rows without a medium fit, too: a set of pictures has some.
FORMAT = Format(read=read, fits=has_turns, columns=COLUMNS, tags=TAGS, fields=FIELDS)
