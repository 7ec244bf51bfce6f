"""jobs/recipes/energon.py: trained through Energon itself; what is stopped goes on as if nothing had happened."""

import json
import os
import subprocess
import sys

import pytest
import torch
from helpers import DEMO_PROCESSOR, ROOT, TinyData, mixed_rows, tiny_config
from transformers import AutoConfig, AutoModelForImageTextToText

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack

pytest.importorskip("megatron.energon", reason="Energon is not here: pip install 'megatron-energon>=7.4,<8'")


def lines(out, *arguments):
    command = [sys.executable, str(ROOT / "jobs" / "recipes" / "energon.py"), str(out), "--model", str(DEMO_PROCESSOR)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_recipe_learns_and_resumes_exactly(tmp_path):
    data, out = mixed_rows(TinyData(tmp_path / "data"), num_text=16, num_images=8), tmp_path / "out"
    run_pack(tiny_config(data.write(), out, pack_size=384))
    assert main(["export", "energon", str(out)]) == 0
    whole = lines(out, "--steps", "12")
    assert [line["step"] for line in whole] == list(range(1, 13))
    losses = [line["loss"] for line in whole]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])

    checkpoint = str(tmp_path / "energon.pt")
    assert lines(out, "--steps", "5", "--checkpoint", checkpoint) == whole[:5]
    assert lines(out, "--steps", "12", "--checkpoint", checkpoint) == whole[5:]

    # The first loss is that of one of the packs, with targets that are shifted once.
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(DEMO_PROCESSOR)).float()
    packs = PackedShards(out)
    expected = []
    for number in packs.reader.packs.tolist():
        batch = neat_packed_vlm_collater([packs.pack(number)])
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch).logits
        expected.append(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())))
    assert min(abs(loss - losses[0]) for loss in expected) < 1e-4
    assert len(expected) > 3 and max(expected) - min(expected) > 1e-3, "packs can be told from each other"
