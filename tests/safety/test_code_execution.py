"""Rows, processors and outputs bring text that looks like code: none of it runs."""

import io
import json
import pickle
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, TinyData, assert_verified, tiny_config
from support.errors import printed_code

from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Example, Skip
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


ESCAPES = {
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "messages": "{{ messages.append.__self__.__class__.__init__.__globals__ }}",
    "namespace": "{% set n = namespace() %}{{ n.__init__.__globals__['__builtins__'].open('MARK', 'w') }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "import": "{% import '/etc/hostname' as x %}{{ x }}",
    "include": "{% include '/etc/hostname' %}",
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_template_of_a_processor_is_sandboxed(escape: str, tmp_path: Path) -> None:
    processor = tmp_path / "processor"
    shutil.copytree(DEMO_PROCESSOR, processor)
    (processor / "chat_template.jinja").write_text(ESCAPES[escape].replace("MARK", str(tmp_path / "mark")))
    data = TinyData(tmp_path / "data").text("Why?", "So.")
    command = ["pack", "--meta", str(data.write()), "--processor", str(processor), "--out", str(tmp_path / "out")]
    assert main([*command, "--engine", "inline"]) in (1, 2)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("escape", ESCAPES)
def test_template_in_a_row_is_text(escape: str, tmp_path: Path) -> None:
    text = ESCAPES[escape]
    family = family_for(ProcessorKey(processor=str(DEMO_PROCESSOR)))
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    example = convert({"messages": turns}, Dataset(name="d"))
    assert isinstance(example, Example)
    (measured,) = measure([example], family)
    assert not isinstance(measured, Skip)
    assert family.chat.tokenizer.decode(measured.ids).count(text) == 2


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    """As members of a tar, as media, as arrays of objects, and in the files of a processor."""
    content, mark = pickle.dumps(Touch(tmp_path / "mark")), tmp_path / "mark"
    objects = io.BytesIO()
    np.save(objects, np.array([Touch(mark)]), allow_pickle=True)
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "a.tar", "w") as tar:
        said = json.dumps({"text": "a"}).encode()
        for name, inside in {"json": said, "pyd": content, "pkl": content, "pth": content, "npy": objects.getvalue(),
                             "jpg": content}.items():  # fmt: skip
            member = tarfile.TarInfo(f"0.{name}")
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
    (data / "meta.json").write_text(json.dumps({"d": {"file_name": "a.tar", "format": "document"}}))
    processor = tmp_path / "processor"
    shutil.copytree(DEMO_PROCESSOR, processor)
    for name in ("pytorch_model.bin", "tokenizer.pkl", "model.pth"):
        (processor / name).write_bytes(content)
    run_pack(tiny_config(data / "meta.json", tmp_path / "out", processor=str(processor), max_skipped=1.0))
    (line,) = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    assert line["reason"] == "bad_media" and not mark.exists()


def test_code_of_a_processor_is_not_loaded_unasked(tmp_path: Path) -> None:
    """By auto_map, of a tokenizer or a processor."""
    for number, file in enumerate(("tokenizer_config.json", "preprocessor_config.json", "config.json")):
        processor = tmp_path / f"processor-{number}"
        shutil.copytree(DEMO_PROCESSOR, processor)
        found = json.loads((processor / file).read_text())
        code = {"AutoTokenizer": ["bad.Bad", "bad.Bad"], "AutoProcessor": "bad.Bad", "AutoConfig": "bad.Bad",
                "AutoImageProcessor": "bad.Bad"}  # fmt: skip
        (processor / file).write_text(json.dumps(found | {"auto_map": code}))
        (processor / "bad.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Bad: pass\n")
        with suppress(UserError):
            load_family(ProcessorKey(processor=str(processor)))
        assert not (tmp_path / "mark").exists(), file


def test_yaml_makes_no_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tag in ("!!python/object/apply:os.system", "!!python/object/new:subprocess.Popen", "!!python/name:os.system"):
        (tmp_path / "a.yaml").write_text(f"meta: {tag} ['touch {tmp_path / 'mark'}']\n")
        assert main(["pack", "--config", str(tmp_path / "a.yaml")]) == 2
        assert printed_code(capsys.readouterr().err) == "config-unreadable" and not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["a; touch MARK", "$(touch MARK)", "`touch MARK`", "| touch MARK", "pipe:touch MARK"])
def test_names_reach_no_shell(name: str, tmp_path: Path) -> None:
    """webdataset opens "pipe:…" by a shell; none of this is handed to it."""
    data = TinyData(tmp_path / "data")
    hostile = name.replace("MARK", "../mark")
    data.row([("user", "<image>?"), ("assistant", "x")], images=[hostile], id=hostile)
    data.row([("user", "<video>?"), ("assistant", "x")], videos=[hostile])
    data.text("Why?", "So.")
    run_pack(tiny_config(data.write(), tmp_path / "out", max_skipped=1.0))
    assert not list(tmp_path.rglob("mark"))
