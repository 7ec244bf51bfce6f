"""How rows of data sets are written: a file for each format, and a line here.

A format makes of a row what it says (`said.py`), with media as the row names them; `example.py` makes an Example of
that. What is only other names for columns and roles is a preset of those.
"""

from . import alpaca, cauldron, document, llava, messages, prompt_response, sharegpt, vsft
from .said import Format

# In the order in which they are told apart: see `detect`.
FORMATS: dict[str, Format] = {
    "vsft": vsft.FORMAT,
    "messages": messages.FORMAT,
    "sharegpt": sharegpt.FORMAT,
    "llava": llava.FORMAT,
    "cauldron": cauldron.FORMAT,
    "alpaca": alpaca.FORMAT,
    "prompt_response": prompt_response.FORMAT,
    "document": document.FORMAT,
}
ALIASES = {"openai": "messages"}
AUTO = "auto"  # told from the first rows
