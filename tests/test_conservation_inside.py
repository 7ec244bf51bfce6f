"""What test_conservation.py proves by internals."""

from support.conversations_drawn import LIKELY

from neatpack.pipeline.ingest.formats import FORMATS


def test_every_format_is_here():
    assert LIKELY.keys() == FORMATS.keys()
