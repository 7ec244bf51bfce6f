"""jobs/recipes/: every trainer trains every pack once, by the loss of the documents alone, and survives a kill."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch
from places import RECIPE_PACKAGES, ROOT
from support.commands import main
from support.packed import documents_of, eight_packs
from tiny_models import save_model
from transformers import AutoModelForImageTextToText

from neatpack import PackedShards

pytestmark = [pytest.mark.trainer, pytest.mark.net]

HARNESS = ROOT / "tests" / "recipes" / "harness.py"
RECIPES = ["ddp", "fsdp2", "hf_trainer", "accelerate_loop", "lightning_fit", "torchtitan_loop", "nemo_loop", "trl_sft"]
NEEDS = {"nemo_loop": "nemo_automodel", "trl_sft": "trl", "energon_loop": "megatron"}
KILLED_AT = 5  # in the second epoch


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return eight_packs(tmp_path_factory.mktemp("recipes"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def packs(out):
    """Packs by the digest of what the model is given."""
    found = {digest(pack["input_ids"]): pack for pack in PackedShards(out, pixels="fp32", shuffle=False)}
    assert len(found) == 8, "four steps of two ranks"
    return found


def digest(ids):
    return hashlib.sha256(ids.numpy().tobytes()).hexdigest()


def arguments_of(recipe, out, model):
    """As a user gives them. Energon knows no epochs: eight steps are two."""
    return [recipe, str(out), "--model", str(model), "--checkpoint", "checkpoint", "--epochs", "2", "--steps", "8",
            "--save-every", "1", "--lr", "3e-3"]  # fmt: skip


def run(launcher, recipe, out, model, folder, *, processes=2, kill_at=0):
    """What the recipe prints, and what its model was given: a list of steps, each a list of digests."""
    seen, output = folder / f"seen-{kill_at}", folder / f"output-{kill_at}"
    environment = {"NEATPACK_SEEN": str(seen), "NEATPACK_KILL_AT": str(kill_at)}
    if package := NEEDS.get(recipe):
        if not (RECIPE_PACKAGES / package).is_dir():
            pytest.skip(f"{package} is not in .venv/recipes, where the Makefile installs it")
        environment["PYTHONPATH"] = str(RECIPE_PACKAGES)
    codes, printed = launcher.launch(
        HARNESS, [*arguments_of(recipe, out, model), "--checkpoint", folder / "checkpoint"], output,
        processes=processes, environment=environment,
    )  # fmt: skip
    assert any(codes) == bool(kill_at), f"exit codes {codes}\n{printed[0][-3000:]}"
    return what_came_out(printed[0], seen, processes)


def what_came_out(printed, seen, processes):
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"step"')]
    given = [json.loads(line) for line in seen.read_text().splitlines()]
    ranks = [[line["packs"] for line in given if line["rank"] == rank] for rank in range(processes)]
    steps = [sum(step, []) for step in zip(*ranks, strict=False)]
    return {line["step"]: line["loss"] for line in lines}, steps


@pytest.fixture(scope="module")
def whole(out, model, tmp_path_factory):
    """A run that nobody killed, by torchrun. All recipes train one model on the same steps: its losses are theirs."""
    folder = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(HARNESS), *arguments_of("ddp", out, model)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NEATPACK_SEEN": str(folder / "seen")}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    losses, steps = what_came_out(done.stdout, folder / "seen", 2)
    assert sorted(losses) == list(range(1, 9)) and len(steps) == 8
    return losses, steps


@torch.no_grad()
def loss_of_documents(folder, out, packs):
    """The mean over target tokens, each document alone through the unpacked HF path.

    Full ids and labels that are not shifted, no positions, no mask: the model makes them and shifts by itself.
    """
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    total = targets = 0.0
    for pack in packs:
        for document in documents_of(out, pack):
            labels = torch.cat([torch.tensor([-100]), document["labels"]])[None]
            last = document["labels"][-1:].clamp(min=0)  # where it is not trained on, any token will do
            inputs = {"input_ids": torch.cat([document["input_ids"], last])[None], "labels": labels}
            inputs["mm_token_type_ids"] = torch.cat([document["mm_token_type_ids"], torch.tensor([0])])[None]
            media = {key: document[key] for key in ("pixel_values", "image_grid_thw") if len(document[key])}
            number = int((labels != -100).sum())
            if number:
                total += float(model(**inputs, **media).loss) * number
                targets += number
    return total / targets


def test_first_loss_equals_that_of_the_documents_alone(out, model, packs, whole):
    losses, steps = whole
    assert losses[1] == pytest.approx(loss_of_documents(model, out, [packs[name] for name in steps[0]]), rel=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(launcher, recipe, out, model, packs, whole, tmp_path):
    expected, steps = whole
    before, seen = run(launcher, recipe, out, model, tmp_path, kill_at=KILLED_AT)
    # on one rank with two micro-steps: what comes out is the same
    after, rest = run(launcher, recipe, out, model, tmp_path, processes=1 if recipe == "torchtitan_loop" else 2)
    first = loss_of_documents(model, out, [packs[name] for name in seen[0]])
    assert before[1] == pytest.approx(first, rel=1e-5)
    losses = before | after
    assert sorted(before) == [1, 2, 3, 4, 5] and sorted(after) == [6, 7, 8]
    assert [losses[step] for step in sorted(losses)] == pytest.approx(list(expected.values()), rel=1e-5)
    trained = sum(seen, []) + sum(rest, [])
    assert Counter(trained) == {name: 2 for name in packs}, "every pack once an epoch"
    assert Counter(trained[:8]) == {name: 1 for name in packs}
    assert trained[:8] != trained[8:], "another order in the second epoch"


def test_hf_trainer_in_one_process(launcher, out, model, packs, tmp_path):
    losses, steps = run(launcher, "hf_trainer", out, model, tmp_path, processes=1)
    assert losses[1] == pytest.approx(loss_of_documents(model, out, [packs[steps[0][0]]]), rel=1e-5)
    assert sorted(losses) == list(range(1, 17))
    for epoch in (steps[:8], steps[8:]):
        assert Counter(sum(epoch, [])) == {name: 1 for name in packs}


def test_recipe_runs_as_its_first_lines_say(out, model, packs, tmp_path):
    """Without the harness: a command that a user types."""
    command = [sys.executable, str(ROOT / "jobs" / "recipes" / "hf_trainer.py"), str(out), "--model", str(model)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(found) for found in re.findall(r"'loss': '?([\d.]+)", done.stdout)]
    first = PackedShards(out, rank=0, world_size=1, pixels="fp32")
    pack = first.pack(int(first.order()[0]))
    assert len(losses) == len(packs)
    assert losses[0] == pytest.approx(loss_of_documents(model, out, [pack]), rel=1e-3), "it prints four digits"
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["checkpoint-8"]


def test_energon(launcher, out, model, packs, tmp_path_factory):
    """Its order is its own, so its losses are compared with its own."""
    assert main(["export", "energon", str(out)]) == 0
    expected, steps = run(launcher, "energon_loop", out, model, tmp_path_factory.mktemp("energon"))
    assert expected[1] == pytest.approx(loss_of_documents(model, out, [packs[name] for name in steps[0]]), rel=1e-5)
    assert Counter(sum(steps[:4], [])) == {name: 1 for name in packs}, "every pack once an epoch"
    assert Counter(sum(steps, [])) == {name: 2 for name in packs}
    folder = tmp_path_factory.mktemp("killed")
    before, seen = run(launcher, "energon_loop", out, model, folder, kill_at=KILLED_AT)
    after, rest = run(launcher, "energon_loop", out, model, folder)
    assert seen + rest == steps
    assert before | after == pytest.approx(expected, rel=1e-6)
