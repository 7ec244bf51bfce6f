"""Nemotron-Parse: reads a page into text. Known, so that it is refused with a reason; it cannot be packed."""

from typing import Self

from .base import Family, ProcessorFiles, ProcessorKey
from .chat import Chat, ChatFormat

NOT_PACKABLE = (
    "it is an encoder-decoder: the page goes to the encoder, the decoder starts from a task prompt, and there is "
    "no chat template; documents laid end to end would all see one page. Train it unpacked, with the online "
    "nemotron_parse_collate_fn of neatpack"
)


class NemotronParse(Family):
    name = "nemotron_parse"
    processor_classes = ("NemotronParseProcessor",)

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        none = ChatFormat(assistant_header="", end_of_turn="", placeholders={})
        return cls(Chat(none, files.tokenizer, source=files.source, takes=()))
