"""Workers that come to the shared start at once: the moments between their reads and writes, one after another."""

from neatpack.loaders.position import Start


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
