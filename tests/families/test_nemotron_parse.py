"""Nemotron-Parse is known and refused: it cannot be packed."""

import pytest
from helpers import tiny_config
from processors import nemotron_parse

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
    with pytest.raises(
        UserError, match="nemotron_parse cannot be packed: it is an encoder-decoder.*nemotron_parse_coll"
    ):
        run(config)
    assert not (tmp_path / "out" / "shards").exists()


def test_the_command_says_so(processor, tiny, tmp_path, capsys):
    meta = tiny.text("Hi?", "Yes.").write()
    code = main(
        ["pack", "--meta", str(meta), "--processor", processor, "--out", str(tmp_path / "o"), "--engine", "inline"]
    )
    assert code == 2
    assert "cannot be packed" in capsys.readouterr().err


def test_online_it_is_given(processor):
    files = processor_files(processor)
    assert not files.tokenizer.chat_template
    assert isinstance(chosen_family(ProcessorKey(processor=processor), files, online=True), NemotronParse)


def test_other_families_still_need_a_chat_template(processor):
    with pytest.raises(UserError, match="has no chat template"):
        chosen_family(ProcessorKey(processor=processor, family="qwen2_vl"), processor_files(processor))
