"""What the processors of all families share: a tokenizer of the demo's vocabulary with other special tokens."""

import json
from pathlib import Path
from typing import Any

from places import DEMO_PROCESSOR
from transformers import AutoTokenizer


def write_processor(folder: Path, *, tokens: list[str], template: str, named: dict[str, str] | None = None,
                    **files: dict[str, Any]) -> Path:  # fmt: skip
    """A processor directory; `tokens` are added as special ones, `named` are attributes of the tokenizer (image_token).

    files: preprocessor_config={...} and so on, each written as JSON.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": tokens}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    if named:
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"extra_special_tokens": named}, indent=1))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1))
    return folder
