"""Ids as text: the same by tokenizer.json alone as by transformers, and no token is left out."""

import json
import shutil

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, SHARED
from support.errors import raises
from transformers import AutoTokenizer

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.safe import safe
from neatpack.pipeline.view.tokens import decoder_of, load_decoder

REAL = ("qwen2.5-vl", "qwen3-vl", "gemma4", "kimi-k2.5", "llava-onevision", "internvl3", "phi4-mm")
TEXT = "A cat's  café,\n\n  größe 漢字 😀 <|im_end|> 3.14 def f():\n\treturn 1"


@pytest.mark.parametrize("name", ["demo", *REAL])
def test_tokenizer_json_reads_as_transformers_does(name):
    folder = DEMO_PROCESSOR if name == "demo" else SHARED / "processors" / name
    if not folder.is_dir():
        pytest.skip(f"../shared/processors/{name} is not here")
    decoder, tokenizer = load_decoder(str(folder)), family_for(str(folder)).chat.tokenizer  # as AutoTokenizer gives it
    slow = decoder_of(tokenizer)
    rng = np.random.default_rng(0)
    texts = [tokenizer(TEXT)["input_ids"], *rng.integers(0, len(tokenizer), (50, 40)).tolist()]
    for ids in texts:
        assert decoder.text(ids) == slow.text(ids)
    assert safe(TEXT.split()[0]) in decoder.text(texts[0])
    assert decoder.special == slow.special
    assert decoder.added == slow.added
    # Runs of a document are decoded one by one: that must not cost a space or a character.
    ids = tokenizer("A cat  sat.\n On a mat", add_special_tokens=False)["input_ids"]
    whole = decoder.text(ids)
    assert all(decoder.text(ids[:cut]) + decoder.text(ids[cut:]) == whole for cut in range(1, len(ids)))


def test_unknown_ids_are_named():
    decoder = load_decoder(str(DEMO_PROCESSOR))
    first = decoder.text([40])
    assert decoder.text([40, 10**6, -1, 40]) == f"{first}⟨token 1000000⟩⟨token -1⟩{first}"


def test_tokens_of_the_config_are_known(tmp_path):
    """Where tokenizer.json lacks them."""
    folder = shutil.copytree(DEMO_PROCESSOR, tmp_path / "p")
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.setdefault("added_tokens_decoder", {})["99999"] = {"content": "<|more|>", "special": True}
    file.write_text(json.dumps(config))
    decoder = load_decoder(str(folder))
    assert decoder.text([40, 99999]) == load_decoder(str(DEMO_PROCESSOR)).text([40]) + "<|more|>"
    assert 99999 in decoder.special


def test_other_kinds_of_vocabularies_are_read_by_transformers(tmp_path):
    folder = shutil.copytree(DEMO_PROCESSOR, tmp_path / "p")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]))
    ids = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))("a red circle, größe")["input_ids"]
    assert load_decoder(str(folder)).text(ids) == "a red circle, größe"


def test_what_is_no_tokenizer_is_an_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with raises(UserError, "processor-unsupported", file="tokenizer.json"):
        load_decoder(str(tmp_path))
    with raises(UserError, "processor-missing", processor="nobody/nothing"):
        load_decoder("nobody/nothing")
    with raises(UserError, "processor-missing", processor=f"{tmp_path}/gone"):
        load_decoder(str(tmp_path / "gone"))
