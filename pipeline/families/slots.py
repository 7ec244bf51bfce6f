"""A chat template that looks at no text, as pieces: what it writes around the texts of a conversation of some form.

The form of a conversation are its roles and the kinds of its parts. Most templates write texts as they are, wherever
those come, and ask about nothing but the form: then what they write around them is found out once for each form, and
conversations of that form are strings put together.

That a template does so for a form is not assumed but seen: it is rendered with stand-ins in the place of the texts,
which can be written and asked for their type, and raise at anything else. Jinja hands them on untouched by the few
kinds of expressions that are known here; a template with any other is rendered, and so is a form for which it calls a
filter. Each stand-in that was turned into text must come out, in that order, and nothing else may have been.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

# Nodes of Jinja that hand values on, compare them, or write them. Left out are those that make a text of them on the
# way (~, {% set %}…{% endset %}, macros, calls of methods) and those whose result is not a matter of the form (time).
_NODES = frozenset(
    {
        "Add", "And", "Assign", "Break", "Compare", "CondExpr", "Const", "Continue", "Filter", "For", "Getattr",
        "Getitem", "If", "Keyword", "List", "NSRef", "Name", "Neg", "Not", "Operand", "Or", "Output", "Slice", "Sub",
        "Template", "TemplateData", "Test", "Tuple",
    }
)  # fmt: skip
_CALLED = frozenset({"namespace", "raise_exception"})
_TESTS = frozenset({"string", "defined", "undefined", "none", "mapping", "sequence", "iterable", "boolean", "number"})
_KINDS = frozenset({"text", "image", "video", "audio"})
_MARK = re.compile("\0([0-9]+)\0")  # what a stand-in writes
MAX_FORMS = 1000  # that are kept; conversations of many turns may all differ

Form = tuple[tuple[str, tuple[str, ...] | None], ...]  # of each turn, its role and the kinds of its parts; None: a text


class _Looked(BaseException):
    """A template did more with a text than writing it. Not an Exception: Jinja's tests take those for an answer."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise _Looked


class _Text(str):
    """Stands for any text."""

    def __str__(self) -> str:
        fields = object.__getattribute__(self, "__dict__")
        fields["written"].append(fields["number"])
        return f"\0{fields['number']}\0"

    def __getattribute__(self, name: str) -> Any:
        return _Text if name == "__class__" else _refuse()


for _name in (
    "add", "radd", "mul", "rmul", "mod", "rmod", "eq", "ne", "lt", "le", "gt", "ge", "hash", "contains", "len", "bool",
    "iter", "reversed", "getitem", "format", "repr", "index", "int", "float", "reduce_ex",
):  # fmt: skip
    setattr(_Text, f"__{_name}__", _refuse)


def _stand_in(number: int, written: list[int]) -> _Text:
    """`written`: is told the number whenever it is made a text."""
    text = _Text()
    object.__setattr__(text, "number", number)
    object.__setattr__(text, "written", written)
    return text


class _Pieces(NamedTuple):
    """What is written before the first text, and then each text by its number with what is written behind it."""

    first: str
    rest: tuple[tuple[int, str], ...]


class Slots:
    """Of one template."""

    def __init__(self, compiled: Any, source: str, names: dict[str, Any]) -> None:
        """`compiled` from `source`; `names`: what it is rendered with beside messages."""
        self._names, self._found = names, dict[Form, _Pieces | None]()
        self._probing = _probing(compiled.environment, source)

    def text(self, messages: Sequence[dict[str, Any]]) -> str | None:
        """A conversation by the template; None where it must be rendered. Messages have role and content alone."""
        if self._probing is None:
            return None
        form, texts = _form(messages)
        if form is None:
            return None
        if form not in self._found:
            if len(self._found) >= MAX_FORMS:
                return None
            self._found[form] = self._seen(form, len(texts))
        pieces = self._found[form]
        if pieces is None:
            return None
        return "".join([pieces.first, *[part for number, piece in pieces.rest for part in (texts[number], piece)]])

    def _seen(self, form: Form, num_texts: int) -> _Pieces | None:
        """None where the template looks at the texts."""
        from jinja2 import TemplateError

        written: list[int] = []
        texts = iter([_stand_in(number, written) for number in range(num_texts)])
        messages = [
            {"role": role, "content": next(texts) if kinds is None else [_item(kind, texts) for kind in kinds]}
            for role, kinds in form
        ]
        assert self._probing is not None
        try:
            first, *rest = _MARK.split(self._probing.render(self._names, messages=messages))
        except (_Looked, TemplateError, TypeError, ValueError):  # refused by the template, or by a filter of it
            return None
        numbers = list(map(int, rest[::2]))
        return _Pieces(first, tuple(zip(numbers, rest[1::2], strict=True))) if numbers == written else None


def _item(kind: str, texts: Iterator[_Text]) -> dict[str, Any]:
    return {"type": kind, "text": next(texts)} if kind == "text" else {"type": kind}


def _form(messages: Sequence[dict[str, Any]]) -> tuple[Form | None, list[str]]:
    """And the texts in order. None: there is more in it than roles, texts and media."""
    form: list[tuple[str, tuple[str, ...] | None]] = []
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        if type(content) is str:
            texts.append(content)
            form.append((message["role"], None))
            continue
        kinds: list[str] = []
        for item in content:
            kind = item.get("type") if type(item) is dict else None
            if kind not in _KINDS or len(item) != (2 if kind == "text" else 1):
                return None, []
            if kind == "text":
                texts.append(item["text"])
            kinds.append(kind)
        form.append((message["role"], tuple(kinds)))
    return tuple(form), texts


def _probing(environment: Any, source: str) -> Any:
    """The template with filters that refuse; None where it has nodes that are not known here."""
    from jinja2 import nodes

    for node in environment.parse(source).find_all(nodes.Node):
        if isinstance(node, nodes.Call):
            if not isinstance(node.node, nodes.Name) or node.node.name not in _CALLED:
                return None
        elif type(node).__name__ not in _NODES or (isinstance(node, nodes.Compare) and _looks_inside(node)):
            return None
    probing = environment.overlay()
    probing.filters = dict.fromkeys(environment.filters, _refuse)
    probing.tests = {name: test if name in _TESTS else _refuse for name, test in environment.tests.items()}
    return probing.from_string(source)


def _looks_inside(node: Any) -> bool:
    """Whether it may ask for one text within another: a string does not tell what it is asked for that it is."""
    from jinja2 import nodes

    inside = [operand.expr for operand in node.ops if operand.op in ("in", "notin")]
    return not isinstance(node.expr, nodes.Const) and not all(isinstance(e, nodes.List | nodes.Tuple) for e in inside)
