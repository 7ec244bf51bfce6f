"""What the recipes share: their command line, a tiny random model, and a line of JSON per step.

Recipes train on CPUs (gloo), so that anyone can run them; what matters is the same on GPUs.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForImageTextToText  # noqa: E402

ADAMW = {"lr": 3e-3, "weight_decay": 0.0}


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="a finished output of neatpack")
    parser.add_argument("--model", default=str(ROOT / "jobs" / "demo" / "processor"), help="where its config.json is")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="for trainers that know no epochs")
    parser.add_argument("--checkpoint", required=True, help="saved after every step, and resumed from")
    torch.set_num_threads(1)
    return parser.parse_args()


def tiny_model(folder: str) -> Any:
    """A model with the config's shape and random weights, always the same."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")
    return noting(model.float().train())


def noting(model: Any) -> Any:
    """Let a model write down in the file $NEATPACK_SEEN, if there is one, what it is given: a digest per pack."""
    if seen := os.environ.get("NEATPACK_SEEN"):

        def note(_: Any, __: Any, inputs: dict[str, Any]) -> None:
            packs = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in inputs["input_ids"]]
            with open(seen, "a") as file:  # one short line: whole, even with several ranks
                file.write(json.dumps({"rank": rank(), "packs": packs}) + "\n")

        model.register_forward_pre_hook(note, with_kwargs=True)
    return model


def report(step: int, loss: float) -> None:
    """A line on rank 0. $NEATPACK_KILL_AT: the step after which this process dies, as by a power cut."""
    if rank() == 0:
        print(json.dumps({"step": step, "loss": loss}), flush=True)
    if step == int(os.environ.get("NEATPACK_KILL_AT", "0")):
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # every rank has saved: some trainers write a checkpoint in several files
        os.kill(os.getpid(), signal.SIGKILL)


def save(path: str, step: int, **parts: Any) -> None:
    """States by rank 0. Whole or not at all: a kill while saving leaves the checkpoint before."""
    if rank() == 0:
        torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, f"{path}.part")
        os.replace(f"{path}.part", path)


def resumed(path: str, **parts: Any) -> int:
    """The step that was saved last, with its states loaded; 0 at the beginning."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(saved["step"])


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
