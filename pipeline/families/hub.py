"""Where a processor is: a directory, a folder of a store, the cache of the Hugging Face hub, or the hub. Asked before
anything else of it.

transformers asks the hub for every file by itself, five times each, and says so: two minutes without a network.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from functools import lru_cache
from pathlib import Path

from neatpack.storage.location import Location
from neatpack.storage.private_folders import private_folder
from neatpack.storage.uris import is_stored, redact_uri

from ..config import UserError

PATIENCE = 10  # seconds for the hub to answer anything
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")  # "gpt2", "Qwen/Qwen2.5-VL-7B-Instruct"; what else has a slash is a path
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
TELLING = ("tokenizer_config.json", "tokenizer.json")  # a cache without them has been used for something else

logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def check_processor(processor: str) -> bool:
    """Whether its files are to be taken from the cache alone, for the hub is out of reach. Refuses what is nowhere."""
    if os.path.isdir(processor):
        return False
    if is_stored(processor):
        if not _files_of(processor):
            raise UserError(
                f"--processor {redact_uri(processor)}: nothing is there; give the folder of its files",
                code="processor-missing",
                processor=redact_uri(processor),
            )
        return False
    if os.path.exists(processor):
        raise UserError(
            f"--processor {processor}: is a file; give the directory that it lies in, or a hub id",
            code="processor-missing",
            processor=redact_uri(processor),
            file=processor,
        )
    if not HUB_ID.fullmatch(processor) or processor.startswith("."):
        raise UserError(
            f"--processor {processor}: no such directory; correct it, or give a hub id: owner/name",
            code="processor-missing",
            processor=redact_uri(processor),
        )
    try:
        from huggingface_hub import constants
    except ModuleNotFoundError:  # it comes with transformers, and whoever needs that says so
        return False
    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        why = "the hub is not asked, for HF_HUB_OFFLINE is set"
    elif _answers(endpoint):
        return False
    else:
        why = f"the hub ({endpoint}) is not reachable"
    if _is_cached(processor):
        logger.info("--processor %s: %s; taken from the cache, %s", processor, why, constants.HF_HUB_CACHE)
        return True
    download = f"hf download {processor} --exclude '*.safetensors' --local-dir DIR"
    raise UserError(
        f"--processor {processor}: no directory here, {why}, and it is not in the cache ({constants.HF_HUB_CACHE}); "
        f"where there is a network, `{download}`, bring DIR here and give its path; or bring such a cache, and set "
        "HF_HUB_CACHE to it",
        code="processor-missing",
        processor=redact_uri(processor),
        cache=constants.HF_HUB_CACHE,
    )


def processor_here(processor: str) -> str:
    """A processor's directory or hub id; of one in a store, a copy on this machine, made once for all its processes."""
    if not is_stored(processor):
        return processor
    files = _files_of(processor)
    told = [(str(file), size, changed) for file, size, changed in files]
    name = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
    copy = private_folder("processors") / name  # a processor may bring code
    if not copy.is_dir():
        with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
            for file, *_ in files:
                target = Path(folder, "copy", file.relative_to(Location.parse(processor)))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
            with contextlib.suppress(FileExistsError, OSError):  # another process was faster
                Path(folder, "copy").rename(copy)
    if not copy.is_dir():
        raise UserError(
            f"--processor {redact_uri(processor)}: cannot be copied to {copy}",
            code="processor-missing",
            folder=str(copy),
        )
    return str(copy)


def stamped_files(processor: str) -> list[Location] | None:
    """All files that a processor may be made of, which are another if it is. None: the hub may have others by now."""
    if is_stored(processor):
        return [file for file, *_ in _files_of(processor)]
    folder = Path(processor)
    if not folder.is_dir():
        if not check_processor(processor):
            return None
        from huggingface_hub import constants

        folder = Path(constants.HF_HUB_CACHE, f"models--{processor.replace('/', '--')}")
    return [file for file, *_ in Location.parse(folder).files()]


def _files_of(processor: str) -> list[tuple[Location, int, int]]:
    """Files of a processor in a store, with their sizes and when they were changed; the model's weights stay there."""
    try:
        listed = Location.parse(processor).files()
    except ValueError as error:
        raise UserError(f"--processor: {error}", code="uri-invalid", name="--processor") from None
    return [found for found in listed if not found[0].name.endswith(WEIGHTS)]


def _is_cached(processor: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(processor, name), str) for name in TELLING)


def _answers(endpoint: str) -> bool:
    """Whatever it answers: a refusal is an answer, too. Through the proxy that the environment names, if it does."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # it is there; whose certificates are right is for others to say
    except OSError:  # a time-out while it answers
        return False
    return True
