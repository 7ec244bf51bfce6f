"""`alpaca`: {"instruction": "…", "input": "…", "output": "…", "system": "…", "history": [["…", "…"]]}."""

from ..dialect import Columns
from .messages import ROW_REASONING
from .prompt_response import FIELDS, read
from .said import Format, Row

COLUMNS = Columns(prompt="instruction", query="input", response="output", history="history")


def fits(row: Row) -> bool:
    return isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str)


FORMAT: Format = Format(read=read, fits=fits, columns=COLUMNS, fields=FIELDS, keys=ROW_REASONING)
