"""What `pip install neatpack`, `neatpack[online]` and `neatpack[pack]` give, really installed, in environments
that have nothing else; and what works with no install at all."""

import json
import math
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from install.environment import (
    SOURCES,
    build_wheel,
    build_wheel_from_sdist,
    copy_checkout,
    make_environment,
    requirements_of,
    run,
)
from places import DEMO_PROCESSOR, ROOT
from support.data import TinyData, mixed_rows
from support.errors import prints_code
from support.outputs import files_of
from support.packed import tiny_config

import neatpack
from neatpack import run_pack

pytestmark = [pytest.mark.cluster, pytest.mark.net]

FLAGS = ("--processor", DEMO_PROCESSOR, "--pack-size", "512", "--shard-mb", "1", "--group-size", "4")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory):
    """pip install neatpack"""
    return make_environment(tmp_path_factory.mktemp("bare"), requirements_of(wheel), wheel)


@pytest.fixture(scope="session")
def meta(tmp_path_factory):
    return mixed_rows(TinyData(tmp_path_factory.mktemp("data")), num_text=20, num_images=6).write()


@pytest.fixture(scope="session")
def packed(meta, tmp_path_factory):
    """The output of this checkout, its pixels stored as by default."""
    out = tmp_path_factory.mktemp("packed") / "out"
    run_pack(tiny_config(meta, out, pixels=""))
    return out


@pytest.fixture
def nowhere(tmp_path):
    """An empty folder to work in."""
    (tmp_path / "nowhere").mkdir()
    return tmp_path / "nowhere"


def output_of(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


# The wheel


def test_the_wheel_has_every_file_of_the_source_and_no_other(wheel):
    expected = {
        (path.relative_to(ROOT) if folder == "neatpack" else "neatpack" / path.relative_to(ROOT)).as_posix()
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"neatpack/py.typed", "neatpack/loaders/online/__init__.py"} <= expected
    with zipfile.ZipFile(wheel) as content:
        found = {
            name for name in content.namelist() if not name.startswith(f"neatpack-{neatpack.__version__}.dist-info/")
        }
    assert found == expected


def test_source_archive_builds_the_same_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as expected, zipfile.ZipFile(build_wheel_from_sdist(tmp_path)) as found:
        assert sorted(found.namelist()) == sorted(expected.namelist())


def test_training_needs_six_packages(wheel):
    assert {requirement.name for requirement in requirements_of(wheel)} == {
        "numpy",
        "pyarrow",
        "torch",
        "pillow",
        "simplejpeg",
        "zlib-ng",
    }


# pip install neatpack


def test_nothing_else_is_there(bare, nowhere):
    modules = ["ray", "transformers", "av", "tiktoken", "yaml", "tqdm", "datasets", "pytest", "neatpack", "torch"]
    code = (
        f"import json; from importlib.util import find_spec; print(json.dumps([m for m in {modules} if find_spec(m)]))"
    )
    assert json.loads(output_of(bare / "python", "-c", code, cwd=nowhere)) == ["neatpack", "torch"]


def test_a_project_with_its_own_loaders_and_pipeline_trains_from_shards(bare, packed, tmp_path):
    project = shutil.copytree(
        ROOT / "tests" / "install" / "project", tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")
    )
    trained = json.loads(output_of(bare / "python", "train.py", packed, cwd=project))
    assert trained["own"] == [str(project / "loaders" / "__init__.py"), str(project / "pipeline.py")]
    losses = trained["losses"]
    assert len(losses) >= 8
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.8 * losses[0]


def test_version_and_help_need_no_extra(bare, nowhere):
    assert output_of(bare / "neatpack", "--version", cwd=nowhere) == f"neatpack {neatpack.__version__}\n"
    assert "pack the data sets of a meta JSON into shards" in output_of(bare / "neatpack", "--help", cwd=nowhere)
    assert "--pack-size" in output_of(bare / "neatpack", "pack", "--help", cwd=nowhere)


@pytest.mark.parametrize("more", [(), ("--config", "run.yaml")])
def test_packing_says_what_to_install(bare, meta, nowhere, more):
    done = run(bare / "neatpack", "pack", "--meta", meta, "--out", "out", *FLAGS, *more, cwd=nowhere)
    assert done.returncode == 2
    *_, said = done.stderr.splitlines()  # behind the first line of progress
    assert prints_code(said, "package-missing") and "pip install 'neatpack[pack]'" in said
    assert not any(nowhere.iterdir())


IMPORTS = {
    "from neatpack import run_pack": ("neatpack.run_pack", "pack"),
    "from neatpack import make_meta_dataset": ("neatpack.make_meta_dataset", "online"),
    "import neatpack; neatpack.qwen2_5_collate_fn": ("neatpack.qwen2_5_collate_fn", "online"),
    "import neatpack.loaders.online": ("neatpack.loaders.online", "online"),
}


def test_an_import_says_what_to_install(bare, nowhere):
    code = f"""
for statement in {list(IMPORTS)}:
    try:
        exec(statement)
    except ModuleNotFoundError as error:
        assert error.__suppress_context__ or error.__context__ is None  # no second traceback
        print(error)
"""
    messages = output_of(bare / "python", "-c", code, cwd=nowhere).splitlines()
    for message, (what, extra) in zip(messages, IMPORTS.values(), strict=True):
        assert re.fullmatch(
            rf"{what} needs \w+, which is not installed: pip install 'neatpack\[{extra}\]'",
            message,
        )


# pip install 'neatpack[online]'


ONLINE = f"""
from neatpack import PreTokenizedDatasetWrapper, make_meta_dataset, neat_pack_dataset_vlm, neat_packed_vlm_collater
conversations = make_meta_dataset(meta)
samples = PreTokenizedDatasetWrapper(conversations, {str(DEMO_PROCESSOR)!r}, max_length=512)
packs = neat_pack_dataset_vlm(samples, pack_size=512, ds_raw=conversations)
tokens = neat_packed_vlm_collater([packs[0]])["input_ids"].tolist()
"""


def test_the_online_extra_is_enough_to_pack_online(wheel, meta, tmp_path, nowhere):
    online = make_environment(tmp_path / "online", requirements_of(wheel, "online"), wheel)
    here = {"meta": str(meta)}
    exec(ONLINE, here)
    code = f"import sys\nmeta = sys.argv[1]\n{ONLINE}\nprint(tokens)"
    assert json.loads(output_of(online / "python", "-c", code, meta, cwd=nowhere)) == here["tokens"]
    assert run(online / "python", "-c", "import ray", cwd=nowhere).returncode == 1


# pip install 'neatpack[pack]'


def assert_packs_alike(*program: str | Path, meta: Path, packed: Path, cwd: Path) -> None:
    """Both engines give the bytes that this checkout gave; at the same time, for Ray waits for seconds."""
    command = (*program, "--meta", meta, *FLAGS, "--num-workers", "1")
    with ThreadPoolExecutor() as threads:
        runs = {
            engine: threads.submit(output_of, *command, "--out", engine, "--engine", engine, cwd=cwd)
            for engine in ("inline", "ray")
        }
    for engine, done in runs.items():
        assert " packed + 0 skipped" in done.result()
        assert files_of(cwd / engine) == files_of(packed)


def test_the_installed_program_gives_the_same_bytes(wheel, meta, packed, tmp_path, nowhere):
    programs = make_environment(tmp_path / "pack", requirements_of(wheel, "pack"), wheel)
    assert_packs_alike(programs / "neatpack", "pack", meta=meta, packed=packed, cwd=nowhere)


def test_the_script_of_a_bare_checkout_gives_the_same_bytes(wheel, meta, packed, tmp_path, nowhere):
    """Ray's workers find the checkout, too, which is neither installed nor where we stand."""
    programs = make_environment(tmp_path / "without", requirements_of(wheel, "pack"))
    assert run(programs / "python", "-c", "import neatpack", cwd=nowhere).returncode == 1
    script = copy_checkout(tmp_path / "checkout") / "pipeline" / "pack.py"
    assert_packs_alike(programs / "python", script, meta=meta, packed=packed, cwd=nowhere)
