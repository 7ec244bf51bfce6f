"""The chat template of a tokenizer, called directly: `apply_chat_template` copies what it is given, twice the work."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .slots import Slots

if TYPE_CHECKING:  # a loader that renders pictures imports families, and no tokenizer
    from transformers import PreTrainedTokenizerBase

Template = Callable[[list[dict[str, Any]], Sequence[Any]], str]  # messages and tools -> text
_PLAIN = {"role", "content"}  # keys of a message that transformers hands on as they are


# What expressions of a template raise, beside Jinja's own errors, of values that they do not expect: a text added to a
# number, a filter that does not take a list, a macro that calls itself too often.
_RAISED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def template_of(tokenizer: "PreTrainedTokenizerBase") -> Template:
    """Messages must be of plain JSON types, as `Chat.messages` makes them. Whatever goes wrong in the template is a
    jinja2.TemplateError: one conversation cannot be written, and others can."""
    from jinja2 import TemplateError

    written = _written_by(tokenizer)

    def text(messages: list[dict[str, Any]], tools: Sequence[Any]) -> str:
        try:
            return written(messages, tools)
        except _RAISED as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    return text


def _written_by(tokenizer: "PreTrainedTokenizerBase") -> Template:

    def whole(messages: list[dict[str, Any]], tools: Sequence[Any]) -> str:
        text = tokenizer.apply_chat_template(messages, tools=list(tools) or None, tokenize=False)
        assert isinstance(text, str)
        return text

    compiled = _compiled(tokenizer)
    if compiled is None:
        return whole
    names = {**tokenizer.special_tokens_map, "tools": None, "documents": None, "add_generation_prompt": False}
    slots = Slots(compiled, tokenizer.get_chat_template(), names)

    def direct(messages: list[dict[str, Any]], tools: Sequence[Any]) -> str:
        # Reasoning is known by several names, tools are checked, and no message at all is an error: transformers'.
        if tools or not messages or any([message.keys() != _PLAIN for message in messages]):
            return whole(messages, tools)
        text: str | None = slots.text(messages)
        return compiled.render(names, messages=messages) if text is None else text

    return direct


def _compiled(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """As transformers compiles it: in its sandbox, with its filters. None where it does so by another name."""
    from transformers.utils import chat_template_utils

    compile_ = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile_ is None or not isinstance(tokenizer.chat_template, str):
        return None
    return compile_(tokenizer.get_chat_template())
