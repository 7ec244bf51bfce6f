"""`prompt_response`: a question and its answer, in two columns. `alpaca` is the same with other names and more text."""

from ...records import Role, Skip
from ..dialect import Columns, Dialect
from ..media import is_unicode, json_name
from .messages import ROW_REASONING, reasoning_of, system_of
from .said import Format, Row, Said, Spoken, bad_row, keys_of, media_of, text_of
from .texts import is_list_text, parsed
from .tools import tools_of

PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("question", "response"),
    ("problem", "solution"),
)
HISTORY = "history"  # as ms-swift and ChatGLM have it
FIELDS = ("prompt", "query", "response", "history", "system", "tools", "images", "videos", "audios")


def read(row: Row, dialect: Dialect) -> Said | Skip:
    columns = _pair(row, dialect.columns)
    texts = {}
    for column in columns:
        if not isinstance(row.get(column), str):
            problem = f"is a JSON {json_name(row[column])}" if column in row else "is absent"
            return bad_row(f"column {column!r} {problem}; expected a text; the row has {keys_of(row)}")
        texts[column] = row[column]
    prompt, response = columns
    more = text_of(row, dialect.columns.query)
    if isinstance(more, Skip):
        return more
    system, before = system_of(row, dialect), _history(row, dialect.columns.history)
    if isinstance(system, Skip):
        return system
    if isinstance(before, str):
        return bad_row(f"column {dialect.columns.history or HISTORY!r}: {before}")
    asked = "\n".join(filter(None, (texts[prompt], more)))
    if not (is_unicode(asked) and is_unicode(texts[response])):
        return bad_row(f"column {prompt!r} or {response!r}: not Unicode text: half of a surrogate pair")
    spoken: list[tuple[Role, str]] = [*before, ("user", asked), ("assistant", texts[response])]
    turns = [Spoken(role=role, content=text, label=f"turn {number}") for number, (role, text) in enumerate(spoken)]
    reasoning = reasoning_of(row, (*columns, dialect.columns.query))
    if isinstance(reasoning, Skip):
        return reasoning
    turns[-1] = turns[-1]._replace(reasoning=reasoning)
    tools = tools_of(row, dialect.columns.tools)
    if isinstance(tools, Skip):
        return tools
    return Said(turns=(*system, *turns), media=media_of(row, dialect.columns), tools=tools, media_first=True)


def _pair(row: Row, columns: Columns) -> tuple[str, str]:
    """Names of the two columns: those that are given, else the known pair of which the row has the most."""
    fitting = [
        (prompt, response)
        for prompt, response in PAIRS
        if columns.prompt in ("", prompt) and columns.response in ("", response)
    ]

    def num_there(pair: tuple[str, str]) -> int:
        return sum(row.get(column) is not None for column in pair)

    # Where none is whole, the one of which the row has a half: it is the other half that is missing.
    prompt, response = max(fitting or PAIRS[:1], key=num_there)  # the first of equals
    return columns.prompt or prompt, columns.response or response


def _history(row: Row, column: str) -> list[tuple[Role, str]] | str:
    """What was said before; or what is wrong with it. Where nobody names the column, a text in it is of another kind:
    a patient's history, say."""
    value = row.get(column or HISTORY) or []
    value = parsed(value) if is_list_text(value) else value
    if not isinstance(value, list) and not column:
        return []
    if not isinstance(value, list):
        return f"a JSON {json_name(value)}; expected [[question, answer], …]"
    turns: list[tuple[Role, str]] = []
    for number, pair in enumerate(value):
        good = isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) and is_unicode(t) for t in pair)
        if not good:
            return f"entry {number} is no [question, answer]"
        turns += [("user", pair[0]), ("assistant", pair[1])]
    return turns


def fits(row: Row) -> bool:
    return any(all(isinstance(row.get(column), str) for column in pair) for pair in PAIRS)


KEYS = (*dict.fromkeys(key for pair in PAIRS for key in pair), HISTORY, *ROW_REASONING)
FORMAT: Format = Format(read=read, fits=fits, fields=FIELDS, keys=KEYS)
