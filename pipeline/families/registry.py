"""FAMILIES, one line per model family, and the loading of a processor as one of them."""

import json
import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neatpack.errors import add_fields
from neatpack.storage.uris import redact_uri

from ..config import UserError
from ..records import MASKED_LAYERS
from .base import Family, ProcessorFiles, ProcessorKey
from .default import Default
from .gemma3 import Gemma3
from .gemma4 import Gemma4
from .glm4v import Glm4V
from .hub import check_processor, processor_here
from .idefics3 import Idefics3
from .internvl import InternVL
from .kimi_k25 import KimiK25
from .kimi_vl import KimiVL
from .llava_onevision import LlavaOnevision
from .mistral3 import Mistral3
from .nemotron_parse import NOT_PACKABLE, NemotronParse
from .phi4_mm import Phi4MM
from .qwen2_5_omni import Qwen25Omni
from .qwen2_vl import Qwen2Videos, Qwen2VL
from .qwen3_omni import Qwen3Omni
from .qwen3_vl import Qwen3VL
from .smolvlm import SmolVLM

# transformers takes two seconds to import: what loads a processor imports it, and who checks an output does without.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

FAMILIES: dict[str, type[Family]] = {
    Qwen2VL.name: Qwen2VL,
    Qwen3VL.name: Qwen3VL,
    Qwen3Omni.name: Qwen3Omni,
    Qwen25Omni.name: Qwen25Omni,
    Gemma4.name: Gemma4,
    Gemma3.name: Gemma3,
    Glm4V.name: Glm4V,
    KimiVL.name: KimiVL,
    KimiK25.name: KimiK25,
    LlavaOnevision.name: LlavaOnevision,
    InternVL.name: InternVL,
    Mistral3.name: Mistral3,
    Idefics3.name: Idefics3,
    SmolVLM.name: SmolVLM,
    Phi4MM.name: Phi4MM,
    NemotronParse.name: NemotronParse,
    Default.name: Default,
}
# Kimi's: "Hello world, don't we'll" is 5 tokens by its own code, and 7 by what transformers makes of the file.
OTHER_SPLITS = (
    "--processor {}: its vocabulary is a tiktoken.model, which transformers would split into other tokens than the "
    "model's own code does, without a word; give --trust-remote-code to run that code, if you trust it, or a folder "
    "with a tokenizer.json that splits as it does"
)
REFUSED = {NemotronParse.name: NOT_PACKABLE}  # known, and why they cannot be packed


@lru_cache(maxsize=2)
def family_for(key: ProcessorKey | str) -> Family:
    """As `load_family`, once in a process: a tokenizer takes half a second."""
    return load_family(ProcessorKey(processor=key) if isinstance(key, str) else key)


def load_family(key: ProcessorKey) -> Family:
    """The family that serves a processor (by its class name, or as told), with its tokenizer and configs loaded."""
    with add_fields(processor=redact_uri(key.processor)):
        here = processor_here(key.processor)
        return chosen_family(key, processor_files(here, trust_remote_code=key.trust_remote_code))


def chosen_family(key: ProcessorKey, files: ProcessorFiles, *, online: bool = False) -> Family:
    """The family as told or by the class name.

    Online, one that cannot be packed will do, and a class that no other family serves is the default family's: its
    limits are those of the processor that the user would have called anyway.
    """
    family = _family_class(key, files, online)
    if family.name in REFUSED:
        if not online:
            raise UserError(
                f"--processor {key.processor}: {family.name} cannot be packed: {REFUSED[family.name]}",
                code="processor-unsupported",
                family=family.name,
            )
    elif not files.tokenizer.chat_template:
        raise UserError(
            f"--processor {key.processor}: has no chat template", code="processor-unsupported", missing="chat_template"
        )
    built = family.load(files, key)
    built.recurrent_layers = recurrent_layers(files.model)
    if isinstance(built.video, Qwen2Videos) and built.video.spans_clip:
        logger.info(
            "--processor %s: its config has neither a rate nor a number of frames, so videos are sampled as by "
            "qwen-vl-utils: %s. --video-fps all takes every frame", key.processor, built.video.sampling,
        )  # fmt: skip
    if key.use_audio_in_video and not (built.video and built.video.sound):
        raise UserError(
            f"--use-audio-in-video: {built.name} takes no sound from videos; leave it out",
            code="option-conflict",
            option="use_audio_in_video",
            family=built.name,
        )
    if key.empty_thought and not isinstance(built, Gemma4):
        raise UserError(
            f"--empty-thought: {built.name} has no thinking channel of Gemma 4's; leave it out",
            code="option-conflict",
            option="empty_thought",
            family=built.name,
        )
    if key.float_pixels and not isinstance(built, Default):
        raise UserError(
            f"--float-pixels: {built.name} makes its pixels itself, of bytes; leave it out",
            code="option-conflict",
            option="float_pixels",
            family=built.name,
        )
    return built


def _family_class(key: ProcessorKey, files: ProcessorFiles, online: bool) -> type[Family]:
    if key.family:
        if key.family not in FAMILIES:
            raise UserError(
                f"--family {key.family}: unknown; known: {', '.join(FAMILIES)}",
                code="option-invalid",
                option="family",
                got=key.family,
            )
        return FAMILIES[key.family]
    for family in FAMILIES.values():
        if files.class_name in family.processor_classes:
            _check_model_type(key, files, family)
            return family
    if online:
        return Default
    raise UserError(
        f"--processor {key.processor}: no family serves processor class {files.class_name or '(none found)'}; "
        f"name one by --family: {', '.join(FAMILIES)}",
        code="processor-unsupported",
        class_name=files.class_name,
    )


def _check_model_type(key: ProcessorKey, files: ProcessorFiles, family: type[Family]) -> None:
    """The class of a processor says nothing of the model's positions."""
    model_type = files.model.get("model_type")
    if model_type and family.position_axes > 1 and model_type not in family.model_types:
        raise UserError(
            f"--processor {key.processor}: has a {files.class_name}, and its config.json is of a {model_type} (known: "
            f"{', '.join(family.model_types)}), so that the positions that the model takes are not known; name the "
            f"family: --family {family.name} counts them on {family.position_axes} axes, --family default 0, 1, 2 …",
            code="processor-unsupported",
            model_type=model_type,
            family=family.name,
        )


def recurrent_layers(model: dict[str, Any]) -> list[str] | None:
    """Kinds of layers in a text model that no attention mask reaches, by its config.json; None: it does not tell.

    Published configs list the kinds of their layers. Where one does not, transformers' class for it may know: Qwen3.5
    -> ["linear_attention"].
    """
    model = model.get("thinker_config") or model  # Qwen's Omnis have one around what is trained
    text = model.get("text_config") or model
    types = text.get("layer_types") or text.get("layers_block_type")
    model_type = str(text.get("model_type") or model.get("model_type"))
    if types is None:
        types = _layer_types(model_type, text)
    return None if types is None else sorted(set(types) - MASKED_LAYERS)


def _layer_types(model_type: str, text: dict[str, Any]) -> Iterable[str] | None:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    if model_type in CONFIG_MAPPING:
        try:
            return getattr(CONFIG_MAPPING[model_type](**text), "layer_types", None) or ()
        except (StrictDataclassError, TypeError, ValueError) as error:  # a config that this transformers cannot read
            logger.warning("config.json: whether the model has recurrent layers cannot be told: %s", error)
    return None


def processor_files(processor: str, *, trust_remote_code: bool = False) -> ProcessorFiles:
    """Of a directory or hub repository, as transformers looks for them: each part in its own file, or all in one."""
    saved = _read_config(processor, "processor_config.json")
    common = _read_config(processor, "preprocessor_config.json")
    return ProcessorFiles(
        source=processor,
        class_name=saved.get("processor_class") or common.get("processor_class") or "",
        tokenizer=_load_tokenizer(processor, trust_remote_code),
        image=saved.get("image_processor") or common,
        video=saved.get("video_processor") or _read_config(processor, "video_preprocessor_config.json"),
        audio=saved.get("feature_extractor") or saved.get("audio_processor") or common,
        processor=saved,
        model=_read_config(processor, "config.json"),
    )


def _load_tokenizer(processor: str, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    converts = _has(processor, "tiktoken.model") and not _has(processor, "tokenizer.json")
    if converts and not trust_remote_code:
        raise UserError(OTHER_SPLITS.format(processor), code="processor-code")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            processor, trust_remote_code=trust_remote_code, local_files_only=check_processor(processor)
        )
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"--processor {processor}: its tokenizer is Python code of its own; give --trust-remote-code to run "
                "it, if you trust it",
                code="processor-code",
            ) from error
        raise UserError(
            f"--processor {processor}: no tokenizer could be loaded: {error}", code="processor-missing"
        ) from error
    if converts and hasattr(tokenizer, "backend_tokenizer"):  # there was no code to run
        raise UserError(OTHER_SPLITS.format(processor), code="processor-code")
    if not tokenizer.chat_template:
        tokenizer.chat_template = _read_config(processor, "chat_template.json").get("chat_template")
    return tokenizer


def _has(processor: str, name: str) -> bool:
    from transformers.utils.hub import cached_file

    found = cached_file(
        processor,
        name,
        local_files_only=check_processor(processor),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found is not None


def _read_config(processor: str, name: str) -> dict[str, Any]:
    """A config file of a processor directory or hub repository; {} where it has none."""
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(
            processor,
            name,
            local_files_only=check_processor(processor),
            _raise_exceptions_for_missing_entries=False,
        )
    except OSError as error:
        raise UserError(
            f"--processor {processor}: neither a directory nor a reachable hub id: {error}", code="processor-missing"
        ) from error
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
