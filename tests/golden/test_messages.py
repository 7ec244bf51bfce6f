"""Every error that users meet has a code, and the wording of all messages is in one file.

`python tests/golden/messages.py` writes the file again.
"""

from pathlib import Path

from golden.messages import list_messages, raised_without_code

# OutputError, ShardError, BadRow and the errors of single media have a code by their class.
KINDS = ("UserError", "LoaderError", "ItemError", "MachineError", "NeatpackError")


def test_every_error_has_a_code() -> None:
    assert raised_without_code(KINDS) == []


def test_messages_are_those_of_the_snapshot() -> None:
    snapshot = Path(__file__).with_name("messages.txt").read_text().splitlines()
    assert list_messages() == snapshot, "run: python tests/golden/messages.py"
