"""Both engines: results in order, errors as they were raised, and what tasks log in the driver's log."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neatpack.pipeline.config import UserError
from neatpack.pipeline.records import MediaError
from neatpack.pipeline.runtime.calls import Call, TaskTraceback, Waiting
from neatpack.pipeline.runtime.engine import Engine, RayEngine, engine

# Tasks are functions inside functions: Ray sends those by value, so that its workers need not import this file.


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.on_ray)])
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


@pytest.mark.on_ray
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


# ---------------------------------------------------------------- calls that follow, and what is begun when


def test_what_follows_from_a_result(running: Engine) -> None:
    def half(number: int) -> int:
        return number // 2

    found: dict[int, int] = {}

    def then(call: Call, result: int) -> Iterator[Call]:
        found[call.arguments[0]] = result
        if result:
            yield Call(function=half, arguments=(result,))

    running.flow([Call(function=half, arguments=(9,)), Call(function=half, arguments=(20,))], then, title="halve")
    assert found == {9: 4, 4: 2, 2: 1, 1: 0, 20: 10, 10: 5, 5: 2}


def test_short_calls_share_a_task(running: Engine) -> None:
    """Each has its result and its log; the first error of one is raised."""

    def process(number: int) -> tuple[int, int]:
        import os

        if number < 0:
            raise ValueError(f"number {number}")
        return number, os.getpid()

    results = running.run(process, [(number,) for number in range(5)], title="x", seconds=[0.01] * 5)
    assert [number for number, _ in results] == [0, 1, 2, 3, 4]
    assert len({process for _, process in results}) == 1
    with pytest.raises(ValueError, match="number -1"):
        running.run(process, [(1,), (-1,), (2,)], title="x", seconds=[0.01] * 3)


def test_short_calls_may_be_done_here(running: Engine) -> None:
    import os

    def process() -> int:
        import os

        return os.getpid()

    where: dict[str, int] = {}

    def then(call: Call, result: int) -> tuple[Call, ...]:
        where[call.key] = result
        return ()

    calls = [
        Call(function=process, arguments=(), seconds=0.1, here=True, key="here"),
        Call(function=process, arguments=(), seconds=0.1, key="there"),
    ]
    running.flow(calls, then, title="x")
    assert where["here"] == os.getpid()
    assert (where["there"] == os.getpid()) == (not isinstance(running, RayEngine))


def waiting(*seconds: float) -> Waiting:
    return Waiting((Call(function=len, arguments=(), seconds=each) for each in seconds), longest_first=True)


def bundles(queue: Waiting, num_workers: int) -> list[list[float]]:
    found = []
    while calls := queue.bundle(num_workers):
        found.append([call.seconds for call in calls])
    return found


def test_the_longest_are_first_and_about_equal_ones_in_their_order() -> None:
    assert bundles(waiting(1.0, 9.0, 1.9, 2.0, 15.0, 1.1), 1) == [[9.0], [15.0], [2.0], [1.0], [1.9], [1.1]]


def test_a_task_has_a_second_of_work_and_less_where_little_is_left() -> None:
    assert bundles(waiting(*[0.25] * 32), 2)[:3] == [[0.25] * 4, [0.25] * 3, [0.25] * 3]
    assert {len(calls) for calls in bundles(waiting(*[0.25] * 32), 64)} == {1}
    assert bundles(waiting(*[0.01] * 12), 64) == [[0.01] * 10, [0.01] * 2]
    assert bundles(waiting(0.0, 0.0), 1) == [[0.0], [0.0]], "of which nobody knows how long they take"


def test_what_follows_is_begun_first() -> None:
    queue = waiting(1.0, 8.0)
    queue.add(Call(function=len, arguments=(), seconds=0.5))
    assert [queue.take().seconds for _ in range(3)] == [0.5, 8.0, 1.0]


@pytest.mark.parametrize(("memory", "asked"), [(0, 512 << 20), (1 << 20, 513 << 20), (1 << 40, 3 << 30), (-1, None)])
def test_a_task_asks_for_no_more_memory_than_the_largest_node_has(memory: int, asked: int | None) -> None:
    """A dead node has none, and one that tells of none is asked for none."""
    options: dict[str, Any] = {}

    class Cluster:
        def nodes(self) -> list[dict[str, Any]]:
            sizes = [(True, 1 << 30), (True, 3 << 30), (False, 9 << 30)] if asked is not None else []
            return [{"Alive": alive, "Resources": {"memory": float(size)}} for alive, size in sizes]

        def remote(self, **given: Any) -> Any:
            options.update(given)
            return lambda function: function

    RayEngine({}, Cluster(), num_workers=2)._task(memory)
    assert options["memory"] == (asked or 0)
    assert options["scheduling_strategy"] == "SPREAD"


@pytest.mark.on_ray
@pytest.mark.parametrize("running", ["ray"], indirect=True)
def test_workers_are_warmed(running: Engine, tmp_path: Path) -> None:
    """What fails there is told by who needs it."""
    assert isinstance(running, RayEngine)
    mark = tmp_path / "mark"

    def warm() -> None:
        mark.touch()
        raise ValueError("cold")

    running.warm(Call(function=warm, arguments=()))
    running.wait_until_warm()
    assert mark.exists()
