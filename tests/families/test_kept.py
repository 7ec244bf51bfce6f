"""What is proved about a tokenizer is found out by one process of a job, and read by the others."""

from pathlib import Path

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR
from transformers import AutoTokenizer

from neatpack.pipeline.families import kept
from neatpack.pipeline.families.kept import kept_encoder
from neatpack.pipeline.families.tokens import encoder_of, proved

TEXTS = ["Hello  world", "<|im_start|>user\ne\u0301 中文\n", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))


@pytest.fixture
def found_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whenever something is proved."""
    times: list[str] = []

    def counted(tokenizer):
        times.append("proved")
        return proved(tokenizer)

    monkeypatch.setattr(kept, "proved", counted)
    return times


def test_it_is_proved_once(tokenizer, tmp_path: Path, found_out: list[str]) -> None:
    expected = encoder_of(tokenizer).encode(TEXTS)
    for _ in range(3):
        encoder = kept_encoder(tokenizer, tmp_path / "new")
        assert encoder.engine == "tiktoken"
        assert all(map(np.array_equal, encoder.encode(TEXTS), expected))
    assert found_out == ["proved"]
    (file,) = (tmp_path / "new").iterdir()
    assert kept._read(file.read_bytes()) == proved(tokenizer), "every field of it"


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:200] + b"\xff" + b[201:]])
def test_a_file_that_is_not_whole_is_none(tokenizer, tmp_path: Path, found_out: list[str], damage) -> None:
    kept_encoder(tokenizer, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert kept_encoder(tokenizer, tmp_path).engine == "tiktoken"
    assert found_out == ["proved"] * 2 and file.read_bytes() == whole


def test_that_it_could_not_be_proved_is_kept_too(tmp_path: Path, found_out: list[str]) -> None:
    """A special token that begins like another: which of them is found first differs."""
    changed = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    changed.add_special_tokens({"additional_special_tokens": ["<|im_start|>x"]})
    assert [kept_encoder(changed, tmp_path).engine for _ in range(2)] == ["tokenizers"] * 2
    assert found_out == ["proved"]


def test_another_tokenizer_or_another_code_is_another_proof(
    tokenizer, tmp_path: Path, found_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    other.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    kept_encoder(tokenizer, tmp_path)
    assert kept_encoder(other, tmp_path).encode(["<|new|>"])[0].tolist() == [len(tokenizer)]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    kept_encoder(tokenizer, tmp_path)
    assert found_out == ["proved"] * 3 == ["proved"] * len(list(tmp_path.iterdir()))
