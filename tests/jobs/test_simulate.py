"""What is simulated does not depend on how many processes do it."""

import pytest

from jobs.simulate import Job, Partition, in_order


def figures(partition: Partition) -> tuple[object, ...]:
    return (
        partition.num_packs,
        partition.num_tokens,
        str(partition.encoders),
        str(partition.cost),
        partition.trend,
        partition.groups.tolist(),
        partition.rest.tolist(),
    )


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    jobs = [Job(number=at, num_samples=3000 + at, capacity=4096, group_size=64) for at in range(3)]
    alone, together = (list(map(figures, in_order(jobs, workers))) for workers in (1, 2))
    assert alone == together
    assert len({each[0] for each in alone}) > 1, "partitions differ, so their order is seen"
