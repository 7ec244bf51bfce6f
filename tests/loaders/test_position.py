"""Workers that come to the shared start at once: the moments between their reads and writes, one after another."""

from concurrent.futures import ThreadPoolExecutor

from neatpack.loaders.position import Draws, Start


def finished() -> Start:
    start = Start()
    for worker in range(2):
        start.note(start.enter(), worker, 2)
    return start


def meanwhile(monkeypatch, start, read, other):
    """`other` happens right after the next call of the method `read`."""
    real = getattr(start, read)

    def reading(*args):
        found = real(*args)
        monkeypatch.setattr(start, read, real)
        other()
        return found

    monkeypatch.setattr(start, read, reading)


def test_two_workers_that_both_find_an_epoch_finished_move_on_once(monkeypatch):
    start = finished()
    entered = []
    meanwhile(monkeypatch, start, "_is_finished", lambda: entered.append((start.enter(), start.epoch)))
    entered.append((start.enter(), start.epoch))
    assert entered == [(1, 1), (1, 1)]
    for worker in range(2):
        start.note(1, worker, 2)
    assert start.is_finished


def test_two_workers_that_load_one_state_at_once_begin_it_once(monkeypatch):
    for start in (Start(), finished()):
        meanwhile(monkeypatch, start, "_begun", lambda start=start: start.begin(3, 8))
        start.begin(3, 8)
        assert (start.enter(), start.epoch, start.position) == (1, 3, 8)


def test_draws_are_shared():
    draws = Draws(2)
    draws[1, 5] = 64
    assert (draws.get((1, 5)), draws.get((1, 7)), draws.get((0, 5)), draws.get((1, 4))) == (64, None, None, None)
    draws[1, 6] = 0
    assert (draws.get((1, 5)), draws.get((1, 6))) == (64, 0), "an epoch may end one pass and begin the next"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(draws.__setitem__, (0, 0), 3).result()
    assert draws.get((0, 0)) == 3
