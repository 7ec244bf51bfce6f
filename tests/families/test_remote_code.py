"""A processor whose tokenizer is Python code of its own, as Kimi's published ones are: run only if it is trusted."""

import json
import sys
from base64 import b64encode

import pytest
from helpers import TinyData, documents_of, picture, tiny_config
from processors import kimi_vl
from support.errors import raises
from transformers import AutoTokenizer

from neatpack import PackedShards
from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

# Characters as tokens, and special ones as the vocabulary has them.
CODE = """
import json
from pathlib import Path
from transformers import PreTrainedTokenizer


class LetterTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "characters.json"}

    def __init__(self, vocab_file, **kwargs):
        self.ids = json.loads(Path(vocab_file).read_text())
        self.characters = {number: character for character, number in self.ids.items()}
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return len(self.ids)

    def get_vocab(self):
        return {**self.ids, **self.added_tokens_encoder}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.ids.get(token, 0)

    def _convert_id_to_token(self, index):
        return self.characters[index]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""


@pytest.mark.parametrize("trusted", [False, True])
def test_a_vocabulary_that_would_be_split_otherwise_is_refused(trusted, tmp_path):
    """Kimi's tiktoken.model without its code: transformers would convert it, with splits of its own."""
    folder = kimi_vl.make(tmp_path / "kimi")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tiktoken.model").write_text("".join(f"{b64encode(bytes([n])).decode()} {n}\n" for n in range(256)))
    with raises(UserError, "processor-code", processor=str(folder)):
        load_family(ProcessorKey(processor=str(folder), trust_remote_code=trusted))


@pytest.fixture
def processor(tmp_path, monkeypatch):
    """Kimi-VL's, with that tokenizer in place of its own."""
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)  # of a test before, whose files are gone
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = kimi_vl.make(tmp_path / "kimi")
    fast = AutoTokenizer.from_pretrained(str(folder))
    special = [token.content for token in fast.added_tokens_decoder.values()]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenization_characters.py").write_text(CODE)
    characters = {chr(code): code for code in range(1, 512)} | {"\0": 0}
    (folder / "characters.json").write_text(json.dumps(characters))
    config = {"tokenizer_class": "LetterTokenizer", "additional_special_tokens": special, "pad_token": special[0],
              "auto_map": {"AutoTokenizer": ["tokenization_characters.LetterTokenizer", None]}}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_it_is_not_run_unasked(processor):
    with raises(UserError, "processor-code", processor=processor):
        load_family(ProcessorKey(processor=processor))


def test_trusted_it_packs(processor, tmp_path):
    data = TinyData(tmp_path / "data").text("Who?", "Me.").image(60, 90)
    picture(data.folder / "more.png", 40, 40)
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=processor, trust_remote_code=True))
    manifest = Manifest.read(out)
    assert verify_ledger(out, manifest) + verify_shard(out, manifest, 0) == []
    assert manifest.counts.packed == 2
    family = load_family(ProcessorKey(processor=processor, trust_remote_code=True))
    answers = set()
    for pack in PackedShards(out):
        for document in documents_of(out, pack):
            labels = document["labels"]
            answers.add(family.chat.tokenizer.decode(labels[labels != -100].tolist()))
    assert answers >= {"Me.<|im_end|>", "That.<|im_end|>"}


def test_the_fingerprint_is_of_vocabulary_and_code(processor, tmp_path):
    key = ProcessorKey(processor=processor, trust_remote_code=True)
    assert load_family(key).fingerprint == load_family(key).fingerprint
    before = load_family(key).fingerprint
    characters = tmp_path / "kimi" / "characters.json"
    characters.write_text(characters.read_text().replace('"a": 97', '"a": 600'))
    assert load_family(key).fingerprint != before
