"""Code that the recipes share: command line, process group, model and checkpoint. Copy it along with a recipe."""

import argparse
import json
import os

import torch
import torch.distributed as dist
from transformers import AutoModelForImageTextToText

GPU = torch.cuda.is_available()
PIXELS = "bf16" if GPU else "fp32"  # the dtype of the model


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="output of `neatpack pack`")
    parser.add_argument("--model", required=True, help="folder or hub name of the model to train")
    parser.add_argument("--checkpoint", default="checkpoint", help="where to save, and to resume from if it exists")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000, help="for trainers without epochs")
    parser.add_argument("--lr", type=float, default=1e-5)
    return parser.parse_args()


def start():
    """Join the process group that torchrun describes, and return the device of this rank."""
    dist.init_process_group()
    if not GPU:
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def load_model(folder):
    """Load the weights, in bfloat16 on a GPU and in float32 on a CPU."""
    dtype = torch.bfloat16 if GPU else torch.float32
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.train()


def to_device(batch, device):
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


def save(path, step, **parts):
    """Write the states on rank 0, whole or not at all: a kill while saving keeps the previous checkpoint."""
    if dist.get_rank() == 0:
        torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, f"{path}.part")
        os.replace(f"{path}.part", path)


def resume(path, **parts):
    """Load the states, and return the step after which they were saved, or 0 without a checkpoint."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path, map_location="cpu")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(saved["step"])


def report(step, loss):
    """Print one line of JSON on rank 0."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": loss}), flush=True)
