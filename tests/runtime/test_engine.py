"""Both engines: results in order, errors as they were raised, and what tasks log in the driver's log."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from neatpack.pipeline.config import UserError
from neatpack.pipeline.records import MediaError
from neatpack.pipeline.runtime.engine import Engine, RayEngine, TaskTraceback, engine

# Tasks are functions inside functions: Ray sends those by value, so that its workers need not import this file.


@pytest.fixture(scope="module", params=["inline", "ray"])
def running(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine(request.param, num_workers=1) as started:
        yield started


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records if record.name.startswith("neatpack")]


def test_results_come_in_the_order_of_the_items(running: Engine) -> None:
    def square(number: int) -> int:
        return number * number

    assert running.run(square, [(3,), (1,), (2,)], title="square") == [9, 1, 4]
    assert running.run(square, [], title="square") == []


@pytest.mark.parametrize("kind", [UserError, ValueError])
def test_errors_are_raised_as_they_were(running: Engine, kind: type[Exception]) -> None:
    def fail(number: int) -> int:
        if number == 2:
            raise kind(f"number {number}")
        return number

    with pytest.raises(kind, match="number 2") as caught:
        running.run(fail, [(1,), (2,)], title="fail")
    assert type(caught.value) is kind
    from_worker = isinstance(running, RayEngine) and kind is ValueError
    assert isinstance(caught.value.__cause__, TaskTraceback) == from_worker
    assert not from_worker or "in fail" in str(caught.value.__cause__)


def test_an_error_of_the_kernel_says_which_and_where(running: Engine, tmp_path: Path) -> None:
    def fail() -> None:
        open(tmp_path / "absent" / "file", "wb")  # noqa: SIM115 (does not open)

    with pytest.raises(FileNotFoundError) as caught:
        running.run(fail, [()], title="fail")
    assert (caught.value.errno, str(caught.value.filename)) == (errno.ENOENT, str(tmp_path / "absent" / "file"))


def test_an_error_that_cannot_travel_sends_its_words(running: Engine) -> None:
    """Pickle would call MediaError with one argument, and it takes two."""

    def fail() -> None:
        raise MediaError("bad_media", "cat.png: cut")

    with pytest.raises(Exception, match=r"^(MediaError: )?cat\.png: cut$") as caught:
        running.run(fail, [()], title="fail")
    assert type(caught.value) is (RuntimeError if isinstance(running, RayEngine) else MediaError)


def test_warnings_of_tasks_are_logged_once_each(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def complain(number: int) -> None:
        logger = logging.getLogger("neatpack.pipeline.somewhere")
        logger.warning("the disk is slow")
        logger.info("not asked for")
        if number == 1:
            logger.error("row %d is odd", number)

    running.run(complain, [(0,), (1,), (2,)], title="complain")
    assert sorted(messages(caplog)) == [
        ("ERROR", "row 1 is odd"),
        ("WARNING", "the disk is slow"),
        ("WARNING", "the disk is slow (3 times in all)"),
    ]
    assert caplog.records[0].name == "neatpack.pipeline.somewhere"


def test_a_task_that_fails_has_its_warnings_logged(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        logging.getLogger("neatpack.pipeline.somewhere").warning("it will not end well")
        raise ValueError("as was said")

    with pytest.raises(ValueError, match="as was said"):
        running.run(fail, [()], title="fail")
    assert messages(caplog) == [("WARNING", "it will not end well")]


def test_info_is_logged_where_it_is_asked_for(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def tell() -> None:
        logging.getLogger("neatpack.pipeline.somewhere").info("half way")
        logging.getLogger("neatpack.pipeline.somewhere").debug("not asked for")

    with caplog.at_level(logging.INFO, logger="neatpack"):
        running.run(tell, [()], title="tell", unit="tale")
    start, inside, end = messages(caplog)
    assert (start, inside) == (("INFO", "tell: 1 tale"), ("INFO", "half way"))
    assert end[1].startswith("tell: 1 tale done in ")


def test_a_traceback_comes_along(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def recover() -> None:
        try:
            raise OSError("gone")
        except OSError:
            logging.getLogger("neatpack.pipeline.somewhere").warning("went on without", exc_info=True)

    running.run(recover, [()], title="recover")
    (message,) = [text for _, text in messages(caplog)]
    assert message.startswith("went on without\nTraceback")
    assert message.endswith("OSError: gone")


def test_workers_are_silent(running: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    def shout() -> int:
        if prints:
            print("printed in a worker")
        logging.getLogger("neatpack.pipeline.somewhere").info("logged in a worker")
        return 1

    prints = isinstance(running, RayEngine)  # in this process it would be this process that prints
    assert running.run(shout, [()], title="shout") == [1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("running", ["ray"], indirect=True)  # in-process, a crash is the end
def test_a_crashed_worker_is_tried_again(running: Engine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def crash_once() -> str:
        import os

        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return "done"

    assert running.run(crash_once, [()], title="crash") == ["done"]


def test_variables_come_with_each_task_and_go_with_it(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a Ray that runs already; the tasks of another run in the same worker do not see them."""
    monkeypatch.delenv("NEATPACK_TEST", raising=False)

    def seen(_: int) -> str | None:
        import os

        return os.environ.get("NEATPACK_TEST")

    kind = "ray" if isinstance(running, RayEngine) else "inline"
    with engine(kind, num_workers=1, env={"NEATPACK_TEST": "here"}) as other:
        assert other.run(seen, [(0,), (1,)], title="look") == ["here", "here"]
    assert running.run(seen, [(0,), (1,)], title="look") == [None, None]
