"""What fails is replaced by seed, logged and counted."""

import pickle

import pytest
from conversations import asked
from support.errors import raises

from neatpack.loaders.online import RobustDatasetWrapper, make_robust_collate, pad_collate_fn

pytestmark = pytest.mark.net


# ---------------------------------------------------------------- RobustDatasetWrapper


class Moody:
    """Every third item fails."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index % 3 == 0:
            raise OSError(f"item {index} is broken")
        return index


def test_replacements_are_drawn_by_seed():
    first, second = (RobustDatasetWrapper(Moody(), seed=1) for _ in range(2))
    assert [first[i] for i in range(9)] == [second[i] for i in range(9)]
    assert [first[i] for i in (1, 2, 4, 5)] == [1, 2, 4, 5]
    assert all(first[i] % 3 for i in range(9))
    assert first.failures["OSError"] >= 3
    others = [[RobustDatasetWrapper(Moody(), seed=s)[0] for s in range(20)]]
    assert len(set(others[0])) > 1
    # the same whatever was asked before: a loader with another number of workers sees the same data
    assert RobustDatasetWrapper(Moody(), seed=1)[6] == first[6]


def test_retries_are_exhausted():
    class Broken(Moody):
        def __getitem__(self, index):
            raise OSError("all is broken")

    with raises(RuntimeError, "sample-retries", error="OSError", retries=3, sample=2):
        RobustDatasetWrapper(Broken(), max_retries=3)[2]
    with raises(RuntimeError, "sample-retries", error="OSError", retries=0, sample=2):
        RobustDatasetWrapper(Broken(), max_retries=0)[2]
    with raises(ValueError, "loader-argument", argument="max_retries", got=-1):
        RobustDatasetWrapper(Broken(), max_retries=-1)


def test_memory_errors_are_not_the_samples_fault():
    class Full(Moody):
        def __getitem__(self, index):
            raise MemoryError

    with pytest.raises(MemoryError):
        RobustDatasetWrapper(Full())[0]


def test_media_are_opened_in_the_worker(tmp_path, image):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    samples = [asked("A?", "B.", ("image", str(tmp_path / "broken.png"))), asked("C?", "D.", ("image", image))]
    loaded = RobustDatasetWrapper(samples, seed=0, max_retries=20)[0]
    assert loaded["conversation"][0]["content"][0]["image"].size == (90, 60)
    assert loaded["conversation"][1] == samples[1]["conversation"][1]
    assert RobustDatasetWrapper(samples, preload_media=False)[0] == samples[0]


def test_batches_are_drawn_anew():
    dataset = RobustDatasetWrapper(Moody())
    seen = []

    def picky(batch):
        seen.append(batch)
        if len(seen) < 3:
            raise ValueError("not these")
        return batch

    collate = dataset.robust_collate(picky)
    assert collate([1, 1]) == seen[2] != [1, 1]
    assert collate.failures == {"ValueError": 2}  # type: ignore[attr-defined]
    again = []

    def other(batch):
        again.append(batch)
        if len(again) < 3:
            raise ValueError("not these")
        return batch

    RobustDatasetWrapper(Moody()).robust_collate(other)([1, 1])
    assert again == seen, "by seed"
    assert pickle.loads(pickle.dumps(make_robust_collate(dataset, pad_collate_fn, 2))).max_retries == 2


def test_batches_that_never_work():
    def never(batch):
        raise ValueError("no")

    with raises(RuntimeError, "sample-retries", error="ValueError", retries=2):
        make_robust_collate(RobustDatasetWrapper(Moody()), never, max_retries=2)([1])
