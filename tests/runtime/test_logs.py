"""Log lines of tasks: collected, passed on once, and shown as the commands show them."""

import logging

import pytest

from neatpack.pipeline.runtime.logs import LogLine, Relay, collected, logged_to_stderr

logger = logging.getLogger("neatpack.pipeline.somewhere")


def test_what_is_collected_goes_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    with collected(logging.INFO) as lines:
        logger.info("%d rows", 3)
        logger.debug("below the level")
        logging.getLogger("other").warning("not ours")
    assert lines == [LogLine("neatpack.pipeline.somewhere", logging.INFO, "3 rows")]
    assert [record.message for record in caplog.records] == ["not ours"]
    logger.warning("as before")
    assert caplog.records[-1].message == "as before"


@pytest.mark.parametrize("own", [logging.NOTSET, logging.INFO, logging.ERROR])
def test_the_level_is_that_asked_for_and_then_as_before(own: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the logger has one of its own, the same or another, or that of the root."""
    root = logging.getLogger("neatpack")
    before = root.level
    with caplog.at_level(logging.INFO):
        root.setLevel(own)
        try:
            with collected(logging.INFO) as lines:
                logger.info("told")
                logger.debug("below the level")
            assert [line.message for line in lines] == ["told"]
            assert root.level == own
        finally:
            root.setLevel(before)


def test_a_message_is_passed_on_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow, odd = (LogLine(logger.name, logging.WARNING, text) for text in ("100% slow", "odd"))
    relay = Relay()
    relay.pass_on([slow])
    relay.pass_on([odd, slow])
    assert [record.message for record in caplog.records] == ["100% slow", "odd"]
    relay.summarize()
    assert [record.message for record in caplog.records[2:]] == ["100% slow (2 times in all)"]


@pytest.mark.parametrize(("verbosity", "shown"), [(0, "W"), (1, "WI"), (2, "WID"), (5, "WID")])
def test_verbosity(verbosity: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logged_to_stderr(verbosity):
        logger.warning("one")
        logger.info("two")
        logger.debug("three")
    logger.info("after")
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert "".join(line[0] for line in lines) == shown
    assert [line[11:] for line in lines] == ["one", "two", "three"][: len(shown)]
