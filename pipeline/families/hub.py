"""Where a processor is: a directory, the cache of the Hugging Face hub, or the hub. Asked before anything else of it.

transformers asks the hub for every file by itself, five times each, and says so: two minutes without a network.
"""

import logging
import os
import re
import ssl
import urllib.error
import urllib.request
from functools import lru_cache

from ..config import UserError

PATIENCE = 10  # seconds for the hub to answer anything
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")  # "gpt2", "Qwen/Qwen2.5-VL-7B-Instruct"; what else has a slash is a path
TELLING = ("tokenizer_config.json", "tokenizer.json")  # a cache without them has been used for something else

logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def check_processor(processor: str) -> bool:
    """Whether its files are to be taken from the cache alone, for the hub is out of reach. Refuses what is nowhere."""
    if os.path.isdir(processor):
        return False
    if os.path.exists(processor):
        raise UserError(f"--processor {processor}: is a file; give the directory that it lies in, or a hub id")
    if not HUB_ID.fullmatch(processor) or processor.startswith("."):
        raise UserError(f"--processor {processor}: no such directory; correct it, or give a hub id: owner/name")
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
        "HF_HUB_CACHE to it"
    )


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
