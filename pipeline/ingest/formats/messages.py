"""`messages`: a list of turns with role and content, OpenAI's way; by columns and tags, any other names for them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...records import Role, Skip
from ..dialect import Dialect, Tags
from ..media import is_unicode, json_name, shown
from .said import Format, Row, Said, Spoken, bad_row, column_of, keys_of, media_of, text_of
from .texts import is_list_text, parsed
from .tools import tool_calls_of, tools_of

FIELDS = ("messages", "images", "videos", "audios", "system", "tools")
# Roles that need no tag, unless a tag claims the name for another.
OTHER_ROLES: dict[str, Role] = {"developer": "system", "tool": "tool", "function": "tool", "observation": "tool"}
# And what else user and assistant are called, where the meta JSON names no tags: sets of Qwen's have `from` and `user`,
# raw ShareGPT has the name of each site. Tags that a user gives are taken at their word.
SHAREGPT_TAGS = Tags(role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt")
USUAL_TAGS = (Tags(), SHAREGPT_TAGS)
USUAL_ROLES: dict[str, Role] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
}
# A role of some ShareGPT sets: an assistant whose content is a call, as JSON; and OpenAI's key before `tool_calls`.
CALL = "function_call"
REASONING = ("reasoning_content", "reasoning", "thinking")
# A column of the row with what the assistant thought before its answer, and what is a setting and no thought.
ROW_REASONING = (*REASONING, "rationale", "cot")
_SETTINGS = frozenset(("on", "off", "none", "low", "medium", "high", "true", "false", "yes", "no"))
TRAINED = ("loss", "weight")
HONOURED = (*TRAINED, *REASONING, "tool_calls", CALL, "name", "tool_call_id")


def read(row: Row, dialect: Dialect) -> Said | Skip:
    column = column_of(row, dialect.columns.messages)
    messages = row.get(column)
    if not isinstance(messages, list):
        messages = _listed(messages)
    if messages is None:
        return bad_row(_no_turns(row, column))
    if not messages:
        return bad_row("empty conversation")
    names, turns = _names(dialect.tags, dialect.ignore_keys), []
    for number, message in enumerate(messages):
        turn = _turn(message, number, column, names)
        if isinstance(turn, Skip):
            return turn
        turns.append(turn)
    system = system_of(row, dialect)
    if isinstance(system, Skip):
        return system
    if system and any(turn.role == "system" for turn in turns):
        return bad_row(f"both a column {dialect.columns.system!r} and a turn of role 'system'; remove one of the two")
    tools = tools_of(row, dialect.columns.tools)
    if isinstance(tools, Skip):
        return tools
    reasoning = reasoning_of(row)
    if isinstance(reasoning, Skip):
        return reasoning
    if reasoning:
        turns = _with_reasoning(turns, reasoning)
    return Said((*system, *turns), media_of(row, dialect.columns), tools)


def reasoning_of(row: Row, taken: Collection[str] = ()) -> str | Skip:
    """Return the text of a reasoning column of the row, or "". `taken`: columns that are read as something else."""
    found = {
        name: value
        for name in ROW_REASONING
        if isinstance(value := row.get(name), str) and value.strip() and name not in taken
        if value.strip().lower() not in _SETTINGS
    }
    if len(set(found.values())) > 1:
        listed = " and ".join(map(repr, found))
        return bad_row(f'columns {listed} differ; remove all but one, or list them under "ignore_columns"')
    text = next(iter(found.values()), "")
    return (
        text
        if is_unicode(text)
        else bad_row(f"column {next(iter(found))!r}: not Unicode text: half of a surrogate pair")
    )


def _with_reasoning(turns: list[Spoken], reasoning: str) -> list[Spoken]:
    """Of a row with one turn of the assistant, without reasoning of its own. Whose it is of several, no row says."""
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    if len(answers) != 1 or turns[answers[0]].reasoning:
        return turns
    return [turn._replace(reasoning=reasoning) if number in answers else turn for number, turn in enumerate(turns)]


def _listed(messages: Any) -> list[Any] | None:
    """Turns as tables have them: a text that is JSON, where they know no lists; or {"role": [...], "content": [...]},
    which is how `datasets` stores a Sequence of objects. None: they are none of these."""
    if isinstance(messages, str):
        messages = parsed(messages)
    if not isinstance(messages, Mapping):
        return messages if isinstance(messages, list) else None
    columns = list(messages.values())
    texts = [value for column in columns if isinstance(column, list) for value in column]
    if not columns or not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return None
    if not all(value is None or isinstance(value, str) for value in texts):
        return None  # parts, whose media would be found at other places of the row
    return [dict(zip(messages, values, strict=True)) for values in zip(*columns, strict=True)]


def system_of(row: Row, dialect: Dialect) -> tuple[Spoken, ...] | Skip:
    """The turn that a column of that name is, if it has text."""
    text = text_of(row, dialect.columns.system)
    if isinstance(text, Skip):
        return text
    if not is_unicode(text):
        return bad_row(f"column {dialect.columns.system!r}: not Unicode text: half of a surrogate pair")
    return (Spoken(role="system", content=text, label="the system turn"),) if text else ()


def _no_turns(row: Row, column: str) -> str:
    if row.get(column) is None and column not in row:
        remedy = 'name its columns, or give its format ("format" of the data set; see docs/DATA.md)'
        return f"column {column!r} is absent; expected a list of turns; the row has {keys_of(row)}: {remedy}"
    return f"column {column!r} is a JSON {json_name(row.get(column))}; expected a list of turns"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """What a data set calls roles and keys of turns: the same for all its rows, so it is worked out once."""

    tags: Tags
    roles: dict[str, Role]
    told: str  # of these, the first names of each, for messages
    is_usual: bool  # nobody gave tags: a role may begin with a capital letter
    plain: frozenset[str]  # keys of a turn that says nothing beside its role and content
    ignored: frozenset[str]
    known: frozenset[str]


@cache
def _names(tags: Tags, ignore_keys: tuple[str, ...]) -> _Names:
    named: dict[str, Role] = {tags.user_tag: "user", tags.assistant_tag: "assistant", tags.system_tag: "system"}
    others = {name: role for name, role in OTHER_ROLES.items() if name not in named}
    is_usual = tags in USUAL_TAGS
    own = (tags.role_tag, tags.content_tag)
    return _Names(
        tags=tags,
        roles={**(USUAL_ROLES if is_usual else {}), **named, **others},
        told=", ".join((*named, *others)),
        is_usual=is_usual,
        plain=frozenset(own),
        ignored=frozenset(ignore_keys).difference(own),
        known=frozenset((*own, *HONOURED)),
    )


def _turn(message: Any, number: int, column: str, names: _Names) -> Spoken | Skip:
    tags, roles = names.tags, names.roles
    if type(message) is dict and message.keys() == names.plain:  # nearly all: nothing is to be left out or looked up
        tag, content = message[tags.role_tag], message[tags.content_tag]
        if type(content) is str and type(tag) is str and tag in roles and is_unicode(content):
            return Spoken(roles[tag], content, (column, number, tags.content_tag), f"turn {number}")
    if not isinstance(message, Mapping):
        return bad_row(f"turn {number} is a JSON {json_name(message)}; expected an object")
    turn = {key: value for key, value in message.items() if value is not None and key not in names.ignored}
    tag, content = turn.get(tags.role_tag), turn.get(tags.content_tag)
    role = roles.get(tag.lower() if names.is_usual else tag) if isinstance(tag, str) else None
    if tag == CALL and role is None:
        calls = tool_calls_of(content) if isinstance(content, str) else ()
        if not calls or isinstance(calls, str):
            return bad_row(f"turn {number}: its content is no call; expected JSON, {{'name': …, 'arguments': {{…}}}}")
        return Spoken(role="assistant", content="", tool_calls=calls, label=f"turn {number}")
    if role is None:
        return bad_row(f"turn {number}: unknown role {shown(tag)}; known: {names.told}")
    extras = _extras(turn, role)
    if isinstance(extras, str):
        return bad_row(f"turn {number}: {extras}")
    if content is None and (extras.get("tool_calls") or extras.get("reasoning")):
        content = ""  # OpenAI has null beside calls
    if not isinstance(content, str | list):
        problem = f"is a JSON {json_name(content)}" if tags.content_tag in message else "is absent"
        return bad_row(f"turn {number}: {tags.content_tag!r} {problem}; expected a text or a list of parts")
    if isinstance(content, str) and not is_unicode(content):
        return bad_row(f"turn {number}: not Unicode text: half of a surrogate pair")
    return Spoken(
        role=role,
        content=content,
        at=(column, number, tags.content_tag),
        label=f"turn {number}",
        unknown=tuple([str(key) for key in turn if key not in names.known]),
        **extras,
    )


def _extras(turn: Mapping[str, Any], role: Role) -> dict[str, Any] | str:
    """What a turn says beside role and content, by the fields of Spoken; or what is wrong with it."""
    extras: dict[str, Any] = {}
    if turn.keys().isdisjoint(HONOURED):
        return extras
    for key in (key for key in TRAINED if key in turn):
        if not isinstance(turn[key], bool | int | float) or turn[key] not in (0, 1):
            return f"{key!r} is {shown(turn[key])}; expected 0 or 1 (shares of a loss are not supported)"
        if extras.setdefault("loss", bool(turn[key])) != bool(turn[key]):
            return "'loss' and 'weight' contradict each other"
    thoughts = {key: turn[key] for key in REASONING if key in turn}
    for key, thought in thoughts.items():
        if not isinstance(thought, str) or not is_unicode(thought):
            return f"{key!r} is a JSON {json_name(thought)}; expected Unicode text"
        if extras.setdefault("reasoning", thought) != thought:
            return f"{' and '.join(map(repr, thoughts))} differ; remove one of them"
    if CALL in turn and turn.get("tool_calls"):
        return f"both {CALL!r} and 'tool_calls'; remove one of the two"
    calls = tool_calls_of(turn.get(CALL) or turn.get("tool_calls"))
    if isinstance(calls, str):
        return calls
    if calls:
        extras["tool_calls"] = calls
    for key, name in (("name", "name"), ("tool_call_id", "call_id")):
        if key in turn:
            if not isinstance(turn[key], str) or not is_unicode(turn[key]):
                return f"{key!r} is a JSON {json_name(turn[key])}; expected Unicode text"
            extras[name] = turn[key]
    own = {"reasoning": "assistant", "tool_calls": "assistant", "name": "tool", "call_id": "tool"}
    for name, owner in own.items():
        if extras.get(name) and role != owner:
            key = {"call_id": "tool_call_id"}.get(name, name)
            return f'{key!r} in a turn of role {role!r} is not used; remove it, or list it under "ignore_keys"'
    return extras


def turns_in(row: Row, *columns: str) -> list[Mapping[str, Any]]:
    """The turns of a row in any of the columns, as far as they are objects: to tell formats apart."""
    for column in columns:
        value = row.get(column)
        value = _listed(value) if isinstance(value, Mapping) or is_list_text(value) else value
        if isinstance(value, list) and value:
            return [turn for turn in value if isinstance(turn, Mapping)]
    return []


def fits(row: Row) -> bool:
    turns = turns_in(row, "messages", "conversation", "conversations")
    return bool(turns) and all("role" in turn for turn in turns)


FORMAT: Format = Format(read=read, fits=fits, fields=FIELDS, keys=ROW_REASONING)
