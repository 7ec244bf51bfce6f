"""A conversation put together from pieces is what the chat template writes; a template that looks at it is rendered."""

from typing import Any

import pytest
from helpers import DEMO_PROCESSOR, SHARED
from hypothesis import given, settings, strategies as st

from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.families.slots import Slots
from neatpack.pipeline.families.template import _compiled

REAL = ("qwen2.5-vl", "qwen3-vl", "internvl3", "phi4-mm", "kimi-vl", "gemma4", "glm4.5v", "qwen3.5", "llava-onevision")
WRITES = "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"


def parts(role: str, *texts: str | None) -> dict[str, Any]:
    """None is a picture."""
    content = [{"type": "image"} if text is None else {"type": "text", "text": text} for text in texts]
    return {"role": role, "content": content}


class Jinja:
    """A template as transformers compiles it."""

    def __init__(self, source: str) -> None:
        self.chat_template, self.names = source, {"bos_token": "<s>", "tools": None}
        self.compiled: Any = _compiled(self)  # type: ignore[arg-type]
        self.slots = Slots(self.compiled, source, self.names)

    def get_chat_template(self) -> str:
        return self.chat_template

    def rendered(self, messages: list[dict[str, Any]]) -> str:
        text: str = self.compiled.render(self.names, messages=messages)
        return text


ASKED = [parts("user", None, "Who?", ""), parts("assistant", "Tom.")]


def test_texts_are_put_where_the_template_writes_them() -> None:
    jinja = Jinja(WRITES)
    assert jinja.slots.text(ASKED) == jinja.rendered(ASKED) == "[user]Who?[assistant]Tom."
    assert jinja.slots.text([parts("user", None, "\0001\0", "")]) == "[user]\0001\0", "whatever is in them"
    assert jinja.slots.text([]) == ""


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ messages[1].content[0].text }}{{ messages[0].content[1].text }}", "Tom.Who?"),
        ("{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = m.content[0].text %}{% endfor %}"
         "{{ ns.last }}{{ ns.last }}", "Tom.Tom."),
        ("{% if messages[1].content[0].text is string %}{{ bos_token }}{% endif %}", "<s>"),
        ("{% for m in messages[1:] %}{{ m['content'][0]['text'] }}{{ loop.index }}{% endfor %}", "Tom.1"),
    ],
)  # fmt: skip
def test_in_any_order_and_number(source: str, written: str) -> None:
    jinja = Jinja(source)
    assert jinja.slots.text(ASKED) == jinja.rendered(ASKED) == written


TEXT = "messages[1].content[0].text"


@pytest.mark.parametrize(
    "expression",
    [
        "{{ TEXT | trim }}", "{{ TEXT | tojson }}", "{{ TEXT | length }}", "{{ TEXT.strip() }}", "{{ TEXT[0] }}",
        "{{ TEXT[:2] }}", "{{ TEXT ~ 'a' }}", "{{ TEXT + 'a' }}", "{{ 'a' + TEXT }}", "{{ TEXT * 2 }}",
        "{{ '%s' % TEXT }}", "{{ '%s' % (TEXT,) }}", "{{ [TEXT] }}", "{{ messages[1] }}", "{{ messages[1].content }}",
        "{% if TEXT %}a{% endif %}", "{% if not TEXT %}a{% endif %}", "{% if TEXT == 'Tom.' %}a{% endif %}",
        "{% if 'T' in TEXT %}a{% endif %}", "{% if TEXT in 'Tom.' %}a{% endif %}",
        "{% if TEXT not in bos_token %}a{% endif %}", "{% if TEXT in ['Tom.'] %}a{% endif %}",
        "{% if TEXT < 'U' %}a{% endif %}",
        "{% for letter in TEXT %}{{ letter }}.{% endfor %}", "{{ 'a' if TEXT else 'b' }}", "{{ {TEXT: 1} }}",
        "{% if TEXT is sequence %}a{% endif %}", "{% if TEXT is iterable %}a{% endif %}", "{{ TEXT is eq 'Tom.' }}",
        "{{ {'Tom.': 'a'}[TEXT] }}", "{{ messages[TEXT] }}", "{% set x %}{{ TEXT }}{% endset %}{{ x }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{% if m(TEXT) == 'Tom.' %}a{% endif %}", "{{ strftime_now('%s') }}",
        "{{ TEXT or 'a' }}", "{{ raise_exception(TEXT) }}",
    ],
)  # fmt: skip
def test_a_template_that_does_more_than_writing_them_is_rendered(expression: str) -> None:
    assert Jinja(expression.replace("TEXT", TEXT)).slots.text(ASKED) is None


def test_a_branch_that_looks_is_no_matter_where_it_is_not_taken() -> None:
    jinja = Jinja(
        "{% if messages[0].role == 'tool' %}{{ messages[0].content | tojson }}{% else %}b{% endif %}" + WRITES
    )
    assert jinja.slots.text(ASKED) == jinja.rendered(ASKED)
    assert jinja.slots.text([parts("tool", "a")]) is None


def test_other_messages_are_rendered() -> None:
    jinja = Jinja(WRITES)
    for content in (["a"], [{"type": "text", "text": "a", "b": 1}], [{"type": "image", "image": "a"}], [{"type": "x"}]):
        assert jinja.slots.text([{"role": "user", "content": content}]) is None


@pytest.fixture(scope="module", params=["demo", *REAL])
def real(request) -> Jinja:
    folder = DEMO_PROCESSOR if request.param == "demo" else SHARED / "processors" / request.param
    if not folder.is_dir():
        pytest.skip(f"../shared/processors/{request.param} is not here")
    tokenizer = family_for(str(folder)).chat.tokenizer
    jinja = Jinja(tokenizer.get_chat_template())
    jinja.names.update(tokenizer.special_tokens_map)
    known = jinja.slots.text([parts("user", "a"), parts("assistant", "b")]) is not None
    assert known == (request.param not in ("gemma4", "glm4.5v", "qwen3.5", "llava-onevision"))
    return jinja


WORDS = st.one_of(
    st.text(max_size=20), st.sampled_from(["", " ", "\n a ", "<think>a</think>b", "<image>", "\0001\0", "{{ 1 }}"])
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.lists(WORDS | st.none(), max_size=3)), max_size=4
    )
)
@settings(max_examples=60, deadline=None)
def test_real_templates(real: Jinja, turns: list[tuple[str, list[str | None]]]) -> None:
    messages = [parts(role, *texts) for role, texts in turns]
    text = real.slots.text(messages)
    if text is not None:
        assert text == real.rendered(messages)
