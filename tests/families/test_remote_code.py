"""A processor whose tokenizer is Python code of its own, as Kimi's published ones are: run only if it is trusted."""

import json
import shutil
import sys
from base64 import b64encode

import pytest
from processors import kimi_vl
from support.commands import assert_verified
from support.data import TinyData, picture
from support.errors import raises
from support.packed import documents_of, tiny_config
from transformers import AutoTokenizer

from neatpack import PackedShards, UserError, run_pack

pytestmark = pytest.mark.net

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
def test_a_vocabulary_that_would_be_split_otherwise_is_refused(trusted, tiny, tmp_path):
    """Kimi's tiktoken.model without its code: transformers would convert it, with splits of its own."""
    folder = kimi_vl.make(tmp_path / "kimi")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tiktoken.model").write_text("".join(f"{b64encode(bytes([n])).decode()} {n}\n" for n in range(256)))
    with raises(UserError, "processor-code", processor=str(folder)):
        run_pack(tiny_config(tiny.text("Who?", "Me.").write(), tmp_path / "out", processor=str(folder),
                             trust_remote_code=trusted))  # fmt: skip


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


def test_it_is_not_run_unasked(processor, tiny, tmp_path):
    with raises(UserError, "processor-code", processor=processor):
        run_pack(tiny_config(tiny.text("Who?", "Me.").write(), tmp_path / "out", processor=processor))


def test_trusted_it_packs(processor, tmp_path):
    data = TinyData(tmp_path / "data").text("Who?", "Me.").image(60, 90)
    picture(data.folder / "more.png", 40, 40)
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=processor, trust_remote_code=True))
    assert assert_verified(out).counts.packed == 2
    tokenizer = AutoTokenizer.from_pretrained(processor, trust_remote_code=True)
    answers = set()
    for pack in PackedShards(out):
        for document in documents_of(out, pack):
            labels = document["labels"]
            answers.add(tokenizer.decode(labels[labels != -100].tolist()))
    assert answers >= {"Me.<|im_end|>", "That.<|im_end|>"}


def test_the_fingerprint_is_of_vocabulary_and_code(processor, tiny, tmp_path):
    meta, found = tiny.text("Who?", "Me.").write(), []
    changes = {
        "first": ("", ""),
        "same": ("", ""),
        "vocabulary": ('"a": 97', '"a": 600'),
        "code": ("(text)", "(text,)"),
    }
    for name, (old, new) in changes.items():
        copy = shutil.copytree(processor, tmp_path / name)
        for file in ("characters.json", "tokenization_characters.py"):
            (copy / file).write_text((copy / file).read_text().replace(old, new))
        run_pack(tiny_config(meta, tmp_path / f"out-{name}", processor=str(copy), trust_remote_code=True))
        found.append(assert_verified(tmp_path / f"out-{name}").identity.processor)
    assert found[0] == found[1] and len(set(found)) == 3
