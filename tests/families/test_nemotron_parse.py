"""Nemotron-Parse is known and refused: it cannot be packed."""

import pytest
from helpers import tiny_config
from processors import nemotron_parse
from support.errors import printed_code, raises

from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.nemotron_parse import NemotronParse
from neatpack.pipeline.families.registry import chosen_family, processor_files
from neatpack.pipeline.run import run_pack, run_plan


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return str(nemotron_parse.make(tmp_path_factory.mktemp("nemotron") / "processor"))


@pytest.mark.parametrize("run", [run_pack, run_plan])
def test_packing_is_refused_with_the_reason(run, processor, tiny, tmp_path):
    config = tiny_config(tiny.text("Hi?", "Yes.").write(), tmp_path / "out", processor=processor)
    with raises(UserError, "processor-unsupported", family="nemotron_parse") as caught:
        run(config)
    assert "nemotron_parse_coll" in str(caught.error)
    assert not (tmp_path / "out" / "shards").exists()


def test_the_command_says_so(processor, tiny, tmp_path, capsys):
    meta = tiny.text("Hi?", "Yes.").write()
    code = main(
        ["pack", "--meta", str(meta), "--processor", processor, "--out", str(tmp_path / "o"), "--engine", "inline"]
    )
    assert code == 2
    assert printed_code(capsys.readouterr().err) == "processor-unsupported"


def test_online_it_is_given(processor):
    files = processor_files(processor)
    assert not files.tokenizer.chat_template
    assert isinstance(chosen_family(ProcessorKey(processor=processor), files, online=True), NemotronParse)


def test_other_families_still_need_a_chat_template(processor):
    with raises(UserError, "processor-unsupported", missing="chat_template"):
        chosen_family(ProcessorKey(processor=processor, family="qwen2_vl"), processor_files(processor))
