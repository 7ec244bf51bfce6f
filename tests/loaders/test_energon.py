"""An exported output through Megatron-Energon itself: every pack once, the same tensors, resumed exactly."""

import gc
import shutil
import sys
from functools import partial
from itertools import islice

import pytest
import torch
from places import RECIPE_PACKAGES
from support.commands import main
from support.data import TinyData, mixed_rows, picture
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import PackedShards, neat_packed_vlm_collater, run_pack
from neatpack.loaders.energon import cook_pack

sys.path.append(str(RECIPE_PACKAGES))
energon = pytest.importorskip(
    "megatron.energon", reason="Energon is not in .venv/recipes, where the Makefile installs it"
)

from megatron.energon.errors import reraise_exception  # noqa: E402

pytestmark = [pytest.mark.trainer, pytest.mark.net]


@pytest.fixture(scope="module", autouse=True)
def frozen_again():
    """What tests/conftest.py has frozen: loaders of Energon's own commands thaw it, for all tests after them."""
    yield
    gc.freeze()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("energon")
    data = mixed_rows(TinyData(folder / "data"), num_text=40, num_images=36)
    run_pack(tiny_config(data.write(), folder / "out", pack_size=384))
    assert main(["export", "energon", str(folder / "out")]) == 0
    return folder / "out"


class Packs(energon.DefaultTaskEncoder):  # type: ignore[name-defined,misc]
    """Batches are lists of packs as they were cooked."""

    def __init__(self, pixels="bf16"):
        super().__init__()
        self.cookers = [energon.Cooker(energon.stateless(partial(cook_pack, pixels=pixels)))]

    @energon.stateless
    def batch(self, samples):
        return list(samples)


class Batches(energon.DefaultTaskEncoder):  # type: ignore[name-defined,misc]
    """As docs/API.md has it, and the numbers of the packs."""

    cookers = [energon.Cooker(cook_pack)]

    @energon.stateless
    def batch(self, samples):
        return [sample["pack"] for sample in samples], neat_packed_vlm_collater(samples)


def loader(out, rank=0, world_size=1, *, num_workers=0, encoder=None, shuffle=None, shard_iters=1, batch_size=1):
    dataset = energon.get_train_dataset(
        out,
        worker_config=energon.WorkerConfig(
            rank=rank, world_size=world_size, num_workers=num_workers, global_error_handler=reraise_exception
        ),
        batch_size=batch_size,
        shuffle_buffer_size=shuffle,
        max_samples_per_sequence=None,
        parallel_shard_iters=shard_iters,
        repeat=False,
        task_encoder=encoder or Packs(),
    )
    # Energon would look for garbage in every worker, and thaw what tests/conftest.py has frozen: no matter of packs.
    return energon.get_savable_loader(dataset, watchdog_timeout_seconds=None, gc_collect_every_n_steps=0)


def numbers(batches):
    return [pack["pack"] for batch in batches for pack in batch]


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (3, 2)])
def test_every_pack_comes_once_per_epoch(out, world_size, num_workers):
    """Energon cuts the packs into as many even runs as there are ranks times workers, wherever shards end."""
    shares = [numbers(loader(out, rank, world_size, num_workers=num_workers)) for rank in range(world_size)]
    packs = PackedShards(out).reader.packs.tolist()
    assert sum(map(sorted, shares), []) == packs, "each rank a run of them, in an order of its own"


def same(ours, theirs):
    """Equal, and of the same type, however nested."""
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if hasattr(ours, "table"):
        return torch.equal(ours.table, theirs.table) and (ours.repeat, ours.counts) == (theirs.repeat, theirs.counts)
    return bool(ours == theirs)


@pytest.mark.parametrize("pixels", ["bf16", "fp32", "uint8"])
def test_a_cooked_sample_is_the_item_of_packed_shards(out, pixels):
    packs = PackedShards(out, pixels=pixels)
    for (sample,) in loader(out, encoder=Packs(pixels)):
        cooked = {key: value for key, value in sample.items() if not key.startswith("__")}
        assert same(packs.pack(sample["pack"]), cooked)
        assert sample["__key__"] == f"{sample['pack']:09d}"


def test_pixels_that_are_stored_coded_are_restored(tmp_path):
    data = TinyData(tmp_path / "data")
    for number in range(6):
        picture(data.folder / f"{number}.jpg", 300, 400 + 40 * number, seed=number, quality=80)
        data.row([("user", "<image>What?"), ("assistant", f"It is {number}.")], images=[f"{number}.jpg"])
    run_pack(tiny_config(data.write(), tmp_path / "out", pixels="source"))
    assert main(["export", "energon", str(tmp_path / "out")]) == 0
    packs, seen = PackedShards(tmp_path / "out", pixels="uint8"), 0
    for (sample,) in loader(tmp_path / "out", encoder=Packs("uint8")):
        cooked = {key: value for key, value in sample.items() if not key.startswith("__")}
        assert same(packs.pack(sample["pack"]), cooked)
        seen += 1
    assert seen == packs.reader.num_packs


def test_batches_are_those_of_the_collater(out):
    packs = PackedShards(out)
    for numbers, batch in loader(out, encoder=Batches(), batch_size=2):
        assert same(neat_packed_vlm_collater([packs.pack(number) for number in numbers]), batch)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_of_a_loader_resumes_exactly(out, tmp_path, num_workers):
    """Shuffled over shards and in a buffer; the state goes through a file, as a checkpoint does."""
    make = partial(loader, out, 1, 2, num_workers=num_workers, shuffle=4, shard_iters=2)
    whole = numbers(make())
    assert whole != sorted(whole)
    begun = make()
    steps = iter(begun)
    first = numbers(islice(steps, 3))
    torch.save(begun.save_state_rank(), tmp_path / "state.pt")
    again = make()
    again.restore_state_rank(torch.load(tmp_path / "state.pt", weights_only=False))
    assert first + numbers(again) == whole
    assert first + numbers(steps) == whole, "and the one that was saved goes on, too"


def test_energon_prepare_writes_the_same(out, tmp_path):
    """What the export writes is what Energon's own command does, but for its version and the index for joins."""
    from click.testing import CliRunner
    from megatron.energon.epathlib import EPath
    from megatron.energon.eyaml import load_yaml
    from megatron.energon.flavors.webdataset.metadata import WebdatasetMeta
    from megatron.energon.tools.prepare import command

    copy = tmp_path / "copy"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns(".nv-meta", "*.idx", "work"))
    done = CliRunner().invoke(
        command,
        [
            str(copy),
            "--non-interactive",
            "--split-ratio",
            "1,0,0",
            "--sample-type",
            "CrudeWebdataset",
            "--num-workers=1",
        ],
    )
    assert done.exit_code == 0, done.output
    ours, theirs = files_of(out), files_of(copy)
    places = [name for name in ours if name.endswith(".idx")]
    assert len(places) > 1 and [ours[name] for name in places] == [theirs[name] for name in places]

    def read(files, name):
        return load_yaml(files[f".nv-meta/{name}"])

    assert read(ours, "dataset.yaml") == read(theirs, "dataset.yaml")
    assert read(ours, ".info.json")["shard_counts"] == read(theirs, ".info.json")["shard_counts"]
    trained = [WebdatasetMeta.from_config(EPath(folder), split_part="train").split_part_files for folder in (out, copy)]
    assert trained[0] == trained[1] == [name.removesuffix(".idx") for name in places]


@pytest.mark.parametrize(
    ("arguments", "answers", "said"),
    [
        (["lint"], "", ["Checking the index files...", "Skipping empty split part val"]),
        (
            ["info"],
            "",
            ["TextSample <megatron.energon.TextSample>", "* `train`: 100%, {packs} samples in {shards} shards"],
        ),
        (["preview", "--split-parts", "train"], "y\nn\n", ["Sample 1\n - __key__ (<class 'str'>): '000000001'"]),
    ],
    ids=["lint", "info", "preview"],
)
def test_the_commands_of_energon_take_it(out, arguments, answers, said):
    """With the config that is written for them: on crude samples, which training cooks, each of them fails."""
    from click.testing import CliRunner
    from megatron.energon.cli.main import main as energon_command

    command, *rest = arguments
    done = CliRunner().invoke(energon_command, [command, "--dataset-config", "tools.yaml", *rest, str(out)], answers)
    assert done.exit_code == 0, (done.output, done.exception)
    shards = len(list((out / "shards").glob("*.tar")))
    for words in said:
        assert words.format(packs=len(PackedShards(out).reader.packs), shards=shards) in done.output


def test_lint_finds_an_index_that_is_wrong(out, tmp_path):
    from click.testing import CliRunner
    from megatron.energon.cli.main import main as energon_command

    copy = tmp_path / "copy"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("work"))
    places = copy / "shards" / "pack-000000.tar.idx"
    places.write_bytes(places.read_bytes()[:-8])
    done = CliRunner().invoke(energon_command, ["lint", "--dataset-config", "tools.yaml", str(copy)])
    assert done.exit_code == 1 and "Error in shard shards/pack-000000.tar" in done.output


def test_energon_prepare_adds_the_index_for_joins(out, tmp_path):
    from click.testing import CliRunner
    from megatron.energon.tools.prepare import command

    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    done = CliRunner().invoke(command, [str(copy), "--tar-index-only", "--num-workers=1"])
    assert done.exit_code == 0, done.output
    before, after = files_of(out), files_of(copy)
    assert set(after) - set(before) == {".nv-meta/index.sqlite", ".nv-meta/index.uuid"}
    assert {name: after[name] for name in before} == before
