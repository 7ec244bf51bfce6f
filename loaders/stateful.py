"""States of torchdata's StatefulDataLoader, which knows of workers, as states of the dataset, which do not."""

from collections.abc import Mapping
from typing import Any


def global_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The position over all ranks that a StatefulDataLoader's state stands for; a state of a dataset is left as it is.

    Each loader worker counts what it gave out of the batches that the consumer has got.
    """
    if "_snapshot" not in state:
        return state.get("dataset_state", state)  # type: ignore[no-any-return]
    workers = [worker["dataset_state"] for worker in state["_snapshot"]["_worker_snapshots"].values()]
    first = workers[0]
    items = sum(worker["yielded"] for worker in workers) + state["_steps_since_snapshot"] * first["batch_size"]
    kept = {key: value for key, value in first.items() if key in ("seed", "epoch", "num_packs", "mix")}
    return {**kept, "position": first["position"] + items * first["world_size"]}
