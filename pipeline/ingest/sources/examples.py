"""Examples made of rows one at a time: nothing is read, decoded or converted before it is asked for."""

import bisect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neatpack.errors import NeatpackError, UserError
from neatpack.storage.files import open_regular

from ...media.image import rgb_image
from ...media.limits import limits
from ...records import MediaError, MediaRef
from ..lines import PROBLEM
from ..media import json_name
from ..media_paths import is_inside
from .sound import decoded_sound

Conversation = dict[str, Any]


class BadRow(NeatpackError, ValueError):
    """A row that is not as the rows of its data set are; says which column, what was got and what was expected."""

    code = "row-invalid"


class LazyList(Sequence[Conversation]):
    """What behaves as a list, and whose items are made when they are asked for: slices and sums of it are lazy, too."""

    def item(self, number: int) -> Conversation:
        """Item `number`, counted from 0."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self))[index]  # -1 is the last, and what is beyond raises IndexError
        return Slice(self, numbers) if isinstance(numbers, range) else self.item(numbers)

    def __add__(self, other: Sequence[Conversation]) -> "LazyList":
        return Sum((self, other)) if isinstance(other, Sequence) else NotImplemented

    def __radd__(self, other: Sequence[Conversation]) -> "LazyList":
        return Sum((other, self)) if isinstance(other, Sequence) else NotImplemented


class Slice(LazyList):
    def __init__(self, whole: LazyList, numbers: range) -> None:
        self.whole, self.numbers = whole, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def item(self, number: int) -> Conversation:
        return self.whole.item(self.numbers[number])


class Sum(LazyList):
    def __init__(self, pieces: tuple[Sequence[Conversation], ...]) -> None:
        self.pieces = pieces
        self.ends = list(itertools.accumulate(map(len, pieces)))

    def __len__(self) -> int:
        return self.ends[-1]

    def item(self, number: int) -> Conversation:
        piece = bisect.bisect_right(self.ends, number)
        return self.pieces[piece][number - (self.ends[piece - 1] if piece else 0)]


class Examples(LazyList):
    """A list of conversations (see `pipeline/ingest/conversation.py`) over the rows of a source.

    `convert(row, number)` gives the conversation with its media as they are stored. Indexing decodes them: pictures
    become PIL images, a sound becomes (samples, sampling rate). Packing takes `stored()` instead, and so the very bytes
    of the data set.
    """

    def __init__(
        self,
        name: str,
        rows: Any,
        columns: tuple[str, ...],
        convert: Callable[[Mapping[str, Any], int], Conversation],
        folders: tuple[str, ...] | None = None,
    ) -> None:
        """`folders`: those that rows may name media in; None: anywhere, for a program has made the rows."""
        self.name, self.rows, self._convert, self.folders = name, rows, convert, folders
        self.features = getattr(rows, "features", None) or {}
        absent = [column for column in columns if column not in self.features]
        if self.features and absent:
            raise UserError(
                f"{name}: no column {', '.join(map(repr, absent))}; expected {', '.join(columns)}, "
                f"got {', '.join(self.features)}",
                code="column-missing",
                source=name,
                columns=absent,
            )

    def __len__(self) -> int:
        return len(self.rows)

    def item(self, number: int) -> Conversation:
        try:
            return self._decoded(self._convert(self.rows[number], number))
        except (OSError, ValueError) as error:  # a file that is not there, or not what it seems
            fields = dict(error.fields) if isinstance(error, BadRow) else {}
            raise BadRow(f"{self.name} row {number}: {error}", source=self.name, row=number, **fields) from error

    def stored(self, folders: tuple[str, ...] | None = None) -> Iterator[Conversation]:
        """Every row with its media as bytes; one that cannot be converted is {PROBLEM: why}, and not lost. `folders`:
        in which media may be besides."""
        allowed = None if self.folders is None else (*self.folders, *(folders or ()))
        for number, row in enumerate(self.rows):
            try:
                yield _with_media(self._convert(row, number), lambda kind, value: embedded(value, allowed))
            except BadRow as error:
                yield {PROBLEM: f"{self.name}: {error}"}

    def _decoded(self, example: Conversation) -> Conversation:
        def decoded(kind: str, value: Any) -> Any:
            named = {"bytes": None, "path": value} if isinstance(value, str) else value
            is_named = isinstance(named, Mapping) and named.get("bytes") is None and named.get("array") is None
            if is_named and isinstance(named["path"], str):
                value = {"bytes": read_medium(named["path"], self.folders)}
            if kind == "image":
                return opened_picture(value)
            return decoded_sound(value, getattr(self.features.get(kind), "sampling_rate", None))

        return _with_media(example, decoded)


def _with_media(example: Conversation, change: Callable[[str, Any], Any]) -> Conversation:
    """A copy whose pictures (in turns) and sound (beside them) are changed."""

    def part(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "image": change("image", item["image"])} if "image" in item else item

    turns = [{**turn, "content": [part(item) for item in turn["content"]]} for turn in example["conversation"]]
    sound = {"audio": change("audio", example["audio"])} if "audio" in example else {}
    return {"conversation": turns, **sound}


def embedded(value: Any, folders: tuple[str, ...] | None) -> Any:
    """The bytes of a medium that `datasets` only names by its path (a folder of pictures); others stay as they are.

    A path that is relative, outside of `folders` (None: all are allowed) or cannot be read stays: relative ones start
    at the meta JSON's media_dir, and what is missing or not allowed then ends in the ledger as missing_media.
    """
    path = value.get("path") if isinstance(value, Mapping) and value.get("bytes") is None else None
    if not isinstance(path, str) or not os.path.isabs(path):
        return value
    try:
        return {"bytes": read_medium(path, folders), "path": path}
    except (OSError, ValueError):  # ValueError: outside, or a name that no file can have, with a zero byte in it
        return value


def read_medium(path: str, folders: tuple[str, ...] | None) -> bytes:
    """Read a regular file inside of `folders`. Raises OSError, and ValueError for what may not be read."""
    if folders is not None and not is_inside(path, folders):
        raise ValueError(f"{path!r} is outside of the folders of its data set")
    file, status = open_regular(path)
    with file:
        if status.st_size > limits().max_media_bytes:
            raise ValueError(f"{path}: {status.st_size} bytes, above --max-media-bytes {limits().max_media_bytes}")
        return file.read()


def opened_picture(value: Any) -> Any:
    """A PIL image, as displayed, of what a column holds: the file's bytes, alone or in {"bytes": …}, or its path."""
    if isinstance(value, Mapping):
        value = value["path"] if value.get("bytes") is None else value["bytes"]
    if isinstance(value, str):
        value = read_medium(value, None)  # not the path: an image that keeps its file open is one file too many
    if not isinstance(value, bytes):
        return value
    try:
        return rgb_image(MediaRef(kind="image", path="(picture in memory)", held=value))
    except MediaError as error:
        raise BadRow(f"not a readable picture: {error}") from error


def text_of(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise BadRow(f"column {column!r} is {_got(row, column)}; expected a text", column=column)
    return value


def medium_of(row: Mapping[str, Any], column: str) -> Any:
    value = row.get(column)
    empty = isinstance(value, Mapping) and not any(value.get(key) is not None for key in ("bytes", "path", "array"))
    if value is None or empty:
        raise BadRow(f"column {column!r} is {_got(row, column)}; expected a picture or a sound", column=column)
    return value


def _got(row: Mapping[str, Any], column: str) -> str:
    return f"a JSON {json_name(row[column])}" if column in row else "absent"


def asked_and_answered(*question: dict[str, Any] | str, answer: str) -> list[dict[str, Any]]:
    """One turn each; a text stands for its part."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in question]
    return [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
