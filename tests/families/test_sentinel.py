"""Turn markers read off chat templates: those of the families, of common ones, and templates that have none."""

import pytest
from helpers import DEMO_PROCESSOR, SHARED
from processors import default, gemma4, kimi_vl, phi4_mm
from support.errors import raises
from transformers import AutoTokenizer

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.families.sentinel import derived_markers
from neatpack.pipeline.labels import TurnMarkers

TOKENS = ["<s>", "</s>", "[INST]", "[/INST]", "<|eot_id|>", "<|head|>", "<|/head|>"]
LOOP = "{% for m in messages %}"
PART = "{{ m['content'][0]['text'] }}"


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS}, replace_extra_special_tokens=False)
    return tokenizer


def derived(tokenizer, template):
    tokenizer.chat_template = template
    found = derived_markers(tokenizer)
    return tokenizer.decode(found.header), tokenizer.decode(found.end), found.tail


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-omni", "llava-onevision"])
def test_real_templates(name):
    path = SHARED / "processors" / name
    if not path.is_dir():
        pytest.skip(f"../shared/processors/{name} is not here")
    family = family_for(str(path))
    assert derived_markers(family.chat.tokenizer) == family.chat.markers


@pytest.mark.parametrize("make", [phi4_mm.make, phi4_mm.make_remote, kimi_vl.make, lambda _: DEMO_PROCESSOR])
def test_templates_of_the_families(make, tmp_path):
    family = load_family(ProcessorKey(processor=str(make(tmp_path / "p"))))
    assert derived_markers(family.chat.tokenizer) == family.chat.markers


def test_gemmas_declared_header_may_have_an_empty_thought_too(tmp_path):
    """Which the family itself writes, not the template."""
    made = str(gemma4.make(tmp_path / "p"))
    family = load_family(ProcessorKey(processor=made))
    found = derived_markers(family.chat.tokenizer)
    assert found == family.chat.markers
    thinking = load_family(ProcessorKey(processor=made, empty_thought=True)).chat.markers
    assert (found.end, found.header) == (thinking.end, thinking.header[: len(found.header)])


def test_a_plain_template(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(str(default.make(tmp_path / "p")))
    bot, end = tokenizer.convert_tokens_to_ids(["<|bot|>", "<|eot|>"])  # type: ignore[misc]
    assert derived_markers(tokenizer) == TurnMarkers(header=(bot,), end=end, tail=1)


def test_common_templates(tokenizer):
    llama = LOOP + "{{ '<|head|>' + m['role'] + '<|/head|>\n\n' }}" + PART + "{{ '<|eot_id|>' }}{% endfor %}"
    assert derived(tokenizer, llama) == ("<|head|>assistant<|/head|>", "<|eot_id|>", 1)
    mistral = (
        "{{ '<s>' }}" + LOOP + "{% if m['role'] == 'user' %}{{ '[INST] ' }}" + PART + "{{ '[/INST]' }}"
        "{% else %}{{ ' ' }}" + PART + "{{ '</s>' }}{% endif %}{% endfor %}"
    )  # fmt: skip
    assert derived(tokenizer, mistral) == ("[/INST]", "</s>", 0)
    words = LOOP + "{{ m['role'].upper() + ': ' }}" + PART + "{{ '</s>' }}{% endfor %}"
    assert derived(tokenizer, words) == ("ASSISTANT:", "</s>", 0)
    texts = LOOP + "{{ '<|head|>' + m['role'] + '\n' + m['content'] + '<|eot_id|>' }}{% endfor %}"
    assert derived(tokenizer, texts) == ("<|head|>assistant", "<|eot_id|>", 1)
    printed = LOOP + "{{ '<|head|>' ~ m['role'] ~ '\n' ~ m['content'] ~ '<|eot_id|>' }}{% endfor %}"
    assert derived(tokenizer, printed) == ("<|head|>assistant", "<|eot_id|>", 1)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        (LOOP + "{{ m['role'].upper() + ': ' }}" + PART + "{{ '\n' }}{% endfor %}", "end"),
        (LOOP + "{{ '<|head|>' + m['role'] }}" + PART + "{% endfor %}", "end"),
        (
            LOOP
            + "{{ '<|head|>' + m['role'] + (' ' + loop.index|string) + '\n' }}"
            + PART
            + "{{ '</s>' }}{% endfor %}",
            "header",
        ),
        (
            LOOP + "{{ '<|head|>' }}" + PART + "{{ '</s>' }}{% endfor %}",
            "header",
        ),
        (LOOP + "{{ '<|head|>' + m['role'] + '</s>' }}{% endfor %}", "texts"),
        ("{{ raise_exception('only alone') }}", "texts"),
    ],
)
def test_templates_without_stable_markers_are_refused(template, part, tokenizer):
    with raises(UserError, "processor-unsupported", part=part):
        derived(tokenizer, template)
