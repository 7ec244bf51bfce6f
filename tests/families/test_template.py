"""A chat template that fails on a row: that row is named, and the others are packed."""

import shutil

import pytest
from places import DEMO_PROCESSOR
from support.commands import assert_verified
from support.data import TinyData
from support.outputs import read_ledger
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net

# What a template does with the first words of a question, by these words; of any other it writes the conversation.
FAILS = {
    "add": "{{ 1 + said }}",
    "divide": "{{ 1 // 0 }}",
    "undefined": "{{ nothing.at.all }}",
    "filter": "{{ said | round }}",
    "attribute": "{{ said | dictsort }}",
    "deep": "{% macro again(n) %}{{ again(n) }}{% endmacro %}{{ again(1) }}",
    "refuse": "{{ raise_exception('No such question.') }}",
}


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "processor"
    shutil.copytree(DEMO_PROCESSOR, folder)
    path = folder / "chat_template.jinja"
    branches = "".join(
        f"{{% {'if' if number == 0 else 'elif'} said == '{word}' %}}{fails}"
        for number, (word, fails) in enumerate(FAILS.items())
    )
    first = "{% set said = messages[-2].content[0].text if messages[-2].content is not string else '' %}"
    path.write_text(f"{first}{branches}{{% else %}}{path.read_text()}{{% endif %}}")
    return str(folder)


def test_a_row_on_which_the_template_fails_is_skipped_by_name(processor, tmp_path):
    data = TinyData(tmp_path / "data").text("What?", "First.")
    for word in FAILS:
        data.text(word, "Never.")
    data.text("And?", "Last.")
    config = tiny_config(data.write(), tmp_path / "out", processor=processor, max_skipped=1.0)
    run_pack(config)
    assert_verified(tmp_path / "out")
    lines = {line["row"]: line for line in read_ledger(tmp_path / "out")}
    assert [lines[row]["status"] for row in (0, 1 + len(FAILS))] == ["packed", "packed"]
    told = {}
    for row, word in enumerate(FAILS, 1):
        assert (lines[row]["status"], lines[row]["reason"]) == ("skipped", "bad_row"), word
        told[word] = lines[row]["detail"]
    for word, error in {
        "add": "TypeError",
        "divide": "ZeroDivisionError",
        "attribute": "AttributeError",
        "deep": "RecursionError",
    }.items():
        assert f"{error}: " in told[word], told
    assert told["refuse"].endswith(": No such question.")
    assert "'nothing' is undefined" in told["undefined"]
