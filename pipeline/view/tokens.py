"""Token ids back to text, by a processor's tokenizer.

`tokenizers` reads tokenizer.json in a third of a second. transformers, which takes two seconds to import, is asked only
where there is no such file: tokenizers that are Python code, or vocabularies of other kinds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import UserError
from ..families.hub import processor_here
from ..safe import TOLD, safe


@dataclass(frozen=True, kw_only=True)
class Decoder:
    decode: Callable[[Sequence[int]], str]
    is_known: Callable[[int], bool]
    special: frozenset[int]  # ids that stand for no text
    added: frozenset[int]  # of tokens that are not of the vocabulary itself: the special ones, and others
    beyond: Mapping[int, str] = field(default_factory=dict)  # tokens that `decode` does not know of

    def text(self, ids: Sequence[int]) -> str:
        """What ids stand for, made safe. Those that the tokenizer does not know are written as numbers, not left out;
        bytes that are no whole character are U+FFFD."""
        pieces: list[str] = []
        known: list[int] = []
        for id_ in ids:
            if id_ not in self.beyond and self.is_known(id_):
                known.append(id_)
                continue
            unknown = f"{TOLD[0]}token {id_}{TOLD[1]}"
            pieces += [self._known(known), safe(self.beyond[id_]) if id_ in self.beyond else unknown]
            known = []
        return "".join([*pieces, self._known(known)])

    def _known(self, ids: Sequence[int]) -> str:
        return safe(self.decode(ids)) if ids else ""


def load_decoder(processor: str, *, trust_remote_code: bool = False) -> Decoder:
    """Raises UserError where the processor has no tokenizer that can be loaded."""
    processor = processor_here(processor)
    found = _file(processor, "tokenizer.json")
    if found is None:
        from ..families.registry import processor_files

        return decoder_of(processor_files(processor, trust_remote_code=trust_remote_code).tokenizer)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(found))
    except Exception as error:  # tokenizers raises bare Exceptions, and nothing else
        raise UserError(
            f"--processor {processor}: {found.name} is no tokenizer: {error}",
            code="processor-unsupported",
            processor=str(processor),
            file=found.name,
        ) from None
    added = _added(_file(processor, "tokenizer_config.json"))  # some have tokens beside their file
    own = tokenizer.get_added_tokens_decoder()
    special = {id_ for id_, token in own.items() if token.special}
    return Decoder(
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        is_known=lambda id_: id_ >= 0 and tokenizer.id_to_token(id_) is not None,
        special=frozenset(special | {id_ for id_, token in added.items() if token.get("special")}),
        added=frozenset({*own, *added}),
        beyond={id_: token["content"] for id_, token in added.items() if tokenizer.id_to_token(id_) is None},
    )


def decoder_of(tokenizer: Any) -> Decoder:
    """The decoder of a tokenizer of transformers."""
    return Decoder(
        decode=lambda ids: str(
            tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        ),
        is_known=lambda id_: 0 <= id_ < len(tokenizer),
        special=frozenset(id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special),
        added=frozenset(tokenizer.added_tokens_decoder),
    )


def _file(processor: str, name: str) -> Path | None:
    """A file of a processor's directory, or of a hub repository; None where it has none."""
    folder = Path(processor)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if folder.is_absolute():
        raise UserError(
            f"--processor {processor}: no such directory", code="processor-missing", processor=str(processor)
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(processor, name))
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        what = str(error).splitlines()[0][:200]
        raise UserError(
            f"--processor {processor}: neither a directory nor a reachable hub id: {what}",
            code="processor-missing",
            processor=str(processor),
        ) from None


def _added(config: Path | None) -> dict[int, dict[str, Any]]:
    if config is None:
        return {}
    try:
        found = json.loads(config.read_bytes()).get("added_tokens_decoder") or {}
        return {int(id_): token for id_, token in found.items() if isinstance(token.get("content"), str)}
    except (ValueError, AttributeError) as error:
        raise UserError(
            f"{config}: not the config of a tokenizer: {error}", code="processor-unsupported", file=str(config)
        ) from None
