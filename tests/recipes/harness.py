"""Runs a recipe of jobs/recipes unchanged, records what its model gets, and kills it after a step.

    python tests/recipes/harness.py RECIPE ARGUMENTS…

$NEATPACK_SEEN: a file that gets one line of JSON per forward pass, with a digest of each pack.
$NEATPACK_KILL_AT: the step after which this process is killed, its checkpoint saved.
"""

import hashlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parents[2] / "jobs" / "recipes"
sys.path.insert(0, str(RECIPES))

import common  # type: ignore[import-not-found]  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import TrainerCallback, trainer  # noqa: E402

load_model, report = common.load_model, common.report


class ReportSaves(TrainerCallback):
    """Reports the steps of Trainer, which prints its own log."""

    loss = 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.loss = logs.get("loss", self.loss)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        report_or_die(state.global_step, self.loss)


def load_recorded_model(folder: str) -> Any:
    model = load_model(folder)

    def record(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        packs = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in inputs["input_ids"]]
        with open(os.environ["NEATPACK_SEEN"], "a") as file:  # one short line: whole, even with several ranks
            file.write(json.dumps({"rank": rank(), "packs": packs}) + "\n")

    if "NEATPACK_SEEN" in os.environ:
        model.register_forward_pre_hook(record, with_kwargs=True)
    return model


def report_or_die(step: int, loss: float) -> None:
    report(step, loss)
    if step == int(os.environ.get("NEATPACK_KILL_AT", "0")):
        if dist.is_initialized():
            dist.barrier()  # every rank has saved: some trainers write a checkpoint in several files
        os.kill(os.getpid(), signal.SIGKILL)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


if __name__ == "__main__":
    common.load_model, common.report = load_recorded_model, report_or_die
    trainer.DEFAULT_CALLBACKS.append(ReportSaves)
    sys.argv = sys.argv[1:]
    runpy.run_path(str(RECIPES / f"{sys.argv[0]}.py"), run_name="__main__")
    # torch destroys gloo's process group at exit while it holds the GIL that a thread of gloo may wait for: a deadlock,
    # seen once in some hundred runs.
    sys.stdout.flush()
    os._exit(0)
