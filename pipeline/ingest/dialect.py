"""How the rows of a data set are spelled: the names of columns, of keys and of roles."""

from dataclasses import dataclass
from typing import Literal

from neatpack.format.layout import MediaKind

from .media import ANYWHERE, MediaFolders

Placeholders = Literal["strict", "lenient", "text"]
MEDIA_COLUMNS: dict[str, MediaKind] = {"images": "image", "videos": "video", "audios": "audio"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Under which keys of a row its content is. A format uses some of them; "": it has several names to look for."""

    messages: str = "messages"
    images: str = "images"
    videos: str = "videos"
    audios: str = "audios"
    system: str = "system"
    tools: str = "tools"
    prompt: str = ""
    query: str = ""  # text that follows the prompt
    response: str = ""
    history: str = ""  # [[question, answer], …] before the prompt
    text: str = ""  # of a document


@dataclass(frozen=True, kw_only=True, slots=True)
class Tags:
    role_tag: str = "role"
    content_tag: str = "content"
    user_tag: str = "user"
    assistant_tag: str = "assistant"
    system_tag: str = "system"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """All that the reading of a row depends on, besides its format."""

    columns: Columns = Columns()
    tags: Tags = Tags()
    folders: MediaFolders = ANYWHERE
    ignore_keys: tuple[str, ...] = ()  # keys of turns and parts that mean nothing for training
    placeholders: Placeholders = "strict"  # text: tags are text like any other
    needs_target: bool = True  # a row without anything to learn from is of no use; online it may be asked about
