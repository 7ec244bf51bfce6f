"""Every block of commands or Python in README.md and docs/ is run, and what it shows as printed is what is printed.

A block runs in a folder of its own with small data of the kinds that the pages speak of. Lines are commands; or, where
some begin with `$ `, those are, and the lines behind each are its output. In an output … stands for anything, alone on
a line for any lines. `# exit code 1` behind a command is the exit code it has, else 0. What cannot run here is listed
below, with the reason: a block that is neither run nor listed fails.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doc_pages import NAMES, PAGES, Block, blocks_of, inline_code
from places import DEMO_PROCESSOR, RECIPE_PACKAGES, ROOT
from support.commands import main
from support.data import picture
from support.packed import tiny_config
from tiny_models import tiny_model

from jobs.demo.make_data import make_demo
from neatpack import run_pack

pytestmark = pytest.mark.net

# Blocks that are not run, by page and first line.
NOT_RUN = {
    ("README.md", "$ make demo"): "tests/demo/test_demo.py runs it, and compares what it prints",
    (
        "COMMANDS.md",
        "ray job submit --working-dir . -- python pipeline/pack.py --meta /data/meta.json --processor "
        "/models/qwen --out /data/packed",
    ): "needs a cluster: tests/test_ray_job.py starts one and submits this line",
    (
        "STORAGE.md",
        "neatpack pack --meta s3://data/meta.json --processor s3://models/qwen --out s3://data/packed",
    ): "needs buckets: tests/test_stores.py has one, and packs from and to it",
}
# Drawings and formulas; and what other tests take apart.
TEXTS = {
    ("ARCHITECTURE.md", "meta.json ──ingest──▶ Example ──measure──▶ Measured (token store) ──plan──▶ Plan"),
    ("FAMILY.md", "    InternVL.name: InternVL,"),  # tests/test_docs.py
    ("DATA.md", "sharing packs:"),  # a table of `neatpack inspect`: tests/test_composition.py
    ("FORMAT.md", "OUT/"),  # tests/test_docs.py
    ("FORMAT.md", "restored[row, c, k, i] = t[c, b[row, c, i]]      c < channels, k < r, i < area"),
}
ELSEWHERE = ("python internvl", "python reader", "python thumbnails", "names")  # held by other tests
# What the pages say, and what stands for it here.
SUBSTITUTIONS = {
    "Qwen/Qwen2.5-VL-7B-Instruct": str(DEMO_PROCESSOR),
    "--holdout 0.01": "--holdout 0.2",  # of forty rows
    "num_workers=4": "num_workers=1",  # on two cores
}
# Pages that look into the output of `make demo`, and where they do it.
OF_THE_DEMO = {"REPORT.md": ".", "SHOW.md": "demo-out"}
RUNNING = ("pack", "plan", "split")  # commands that run on Ray unless they are told


def rows(folder: Path) -> None:
    """meta.json and what it names: forty rows about pictures, of which one is broken; texts and other files beside."""
    picture(folder / "images" / "cat.png", 60, 90)
    picture(folder / "images" / "dog.png", 120, 48)
    coco = [
        {
            "image": ("cat.png", "dog.png")[number % 2],
            "conversations": [
                {"from": "human", "value": f"<image>\nWhat is number {number}?"},
                {"from": "gpt", "value": "A cat or a dog. " * (number % 7 + 1)},
            ],
        }
        for number in range(40)
    ]
    coco[5]["image"] = "gone.png"
    text = [
        {"messages": [{"role": "user", "content": f"Count to {n}."}, {"role": "assistant", "content": "1, 2, 3 " * n}]}
        for n in range(1, 31)
    ]
    for name, found in (("coco.jsonl", coco), ("text.jsonl", text)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in found))
    (folder / "meta.json").write_text(json.dumps({"coco": {"file_name": "coco.jsonl", "media_dir": "images"}}))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """The data, and packed/, an output of them that `datasets` can load."""
    folder = tmp_path_factory.mktemp("docs")
    rows(folder)
    run_pack(tiny_config(folder / "meta.json", folder / "packed"))
    assert main(["export", "hub-card", str(folder / "packed")]) == 0
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """Write demo-out as `make demo` leaves it, and another output next to it."""
    folder = tmp_path_factory.mktemp("demo") / "demo-out"
    meta = make_demo(folder / "data")
    config = tiny_config(meta, folder / "packed", pack_size=2048, shard_mb=16, group_size=512)
    run_pack(config)
    less = {"pack_size": 1024, "overlong": "truncate", "max_packs": 38, "datasets": ("shapes", "charts", "text")}
    run_pack(replace(config, out=str(folder / "smaller"), **less))
    return folder.parent


def names_of(block: Block, folder: Path) -> dict[str, object]:
    """What a block of Python takes for given."""
    if block.page == "README.md":
        return {"model": tiny_model("qwen2_5_vl"), "checkpoint": None, "optimizer": None, "save": lambda *_: None}
    if "Trainer(" in block.body:
        from transformers import Trainer, TrainingArguments

        args = TrainingArguments(str(folder / "run"), use_cpu=True, report_to=[], max_steps=1, disable_tqdm=True)
        return {"model": tiny_model("qwen2_5_vl"), "args": args, "Trainer": Trainer}
    if "wrap_vlm_collate_for_pp" in block.body:
        return {"model": tiny_model("qwen2_5_vl")}
    if "world_size" in block.body:
        return {"model": tiny_model("qwen2_5_vl"), "rank": 0, "world_size": 1}
    if "lengths/meta.json" in block.body:
        write = ["--meta", "meta.json", "--processor", str(DEMO_PROCESSOR), "--work", "w", "--write-lengths", "lengths"]
        assert main(["plan", *write, "--engine", "inline"]) == 0
    return {}


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
TO_RUN = [block for block in BLOCKS if block.info in ("", "python") and block.name not in NOT_RUN]


@pytest.mark.parametrize("block", TO_RUN, ids=lambda block: f"{block.page}-{block.number}")
def test_the_block_runs(block, request, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    if block.page in OF_THE_DEMO:
        folder = request.getfixturevalue("demo") / OF_THE_DEMO[block.page]
        monkeypatch.chdir(folder)
        run_commands(block, capsys, f"{folder}/", "")
        return
    world = request.getfixturevalue("world")
    needs_output = "packed" in block.body and "--out packed" not in block.body
    folder = tmp_path / "here"
    shutil.copytree(world, folder, ignore=None if needs_output else shutil.ignore_patterns("packed"))
    for example in (each for each in BLOCKS if each.page == block.page and each.file):
        if not (folder / example.file).exists():
            (folder / example.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / example.file).write_text(example.body, encoding="utf-8")
    monkeypatch.chdir(folder)
    if block.info == "python":
        run_python(block, folder)
    else:
        run_commands(block, capsys, str(folder), "/data")


def run_commands(block: Block, capsys: pytest.CaptureFixture[str], folder: str, shown: str) -> None:
    """`shown`: what the page has for the folder."""
    for command, expected in commands_of(block.body):
        capsys.readouterr()
        code = run_command(command)
        printed = "".join(capsys.readouterr()).replace(folder, shown)
        asked = re.search(r"# exit code (\d)$", command)
        assert code == (int(asked[1]) if asked else 0), printed
        if expected:
            assert re.fullmatch(pattern(expected), printed), f"{command}\nprinted\n{printed}\nand not\n{expected}"


def run_python(block: Block, folder: Path) -> None:
    if "megatron.energon" in block.body:
        sys.path.append(str(RECIPE_PACKAGES))
        pytest.importorskip("megatron.energon", reason="Energon is not in .venv/recipes")
    names = names_of(block, folder)
    exec(compile(substituted(block.body), f"{block.page}, block {block.number}", "exec"), names)


def commands_of(body: str) -> list[tuple[str, str]]:
    """(a command, what it prints); "" where the block does not show it."""
    lines = body.replace("\\\n", " ").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [(line, "") for line in lines if line.strip()]
    found: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        else:
            command, printed = found[-1]
            found[-1] = command, f"{printed}{line}\n"
    return found


def run_command(line: str) -> int:
    program, *words = shlex.split(substituted(line), comments=True)
    if program == "neatpack":
        return main([*words, *(["--engine", "inline"] if words[0] in RUNNING else [])])
    if (program, words[0]) == ("python", "pipeline/pack.py"):
        words = [str(ROOT / words[0]), *words[1:], "--engine", "inline"]
        return subprocess.run([sys.executable, *words], check=False).returncode
    raise AssertionError(f"{line}: nothing here can run this; make it run, or add it to NOT_RUN with the reason")


def substituted(text: str) -> str:
    for said, stands in SUBSTITUTIONS.items():
        text = text.replace(said, stands)
    return text


def pattern(expected: str) -> str:
    """… alone on a line: any lines; elsewhere: anything on its line."""
    lines = [
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in expected.splitlines()
    ]
    return "".join(lines)


def test_a_block_is_of_a_kind_that_is_held_to_something():
    for block in BLOCKS:
        if block.info == "text":
            assert block.name in TEXTS, f"{block.name}: not in TEXTS; an output belongs behind its command, after $"
        else:
            kind = block.info.split()[0] if block.info else ""
            known = block.info in ("", "python", *ELSEWHERE) or kind in ("json", "jsonl", "yaml")
            assert known, f"{block.name}: a block of the kind {block.info!r} is run by no test"
        if block.info.split() and block.info.split()[0] == "json":
            json.loads(block.body)


def test_what_is_listed_is_there():
    assert set(NOT_RUN) <= {block.name for block in BLOCKS if not block.info}
    assert {block.name for block in BLOCKS if block.info == "text"} == TEXTS


def test_a_dataset_info_of_llama_factory_is_translated_as_the_table_says():
    files = {block.file: block.body for block in BLOCKS if block.page == "FROM.md"}
    entries = json.loads(files["dataset_info.json"])
    for entry in entries.values():
        entry["format"] = entry.pop("formatting", "alpaca")
    assert entries == json.loads(files["llama_factory.json"])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_targets_of_make_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    fenced = [line for block in blocks_of(page) if not block.info for line in block.body.splitlines()]
    for line in [*inline_code(page), *fenced]:
        if found := re.match(r"make ([\w-]+)", line):
            assert found[1] in targets, line


def test_a_wrong_output_is_found():
    assert re.fullmatch(pattern("a … b\n…\nz\n"), "a 1 2 b\nc\nd\nz\n")
    assert not re.fullmatch(pattern("a … b\n"), "a 1\nb\n")
    assert not re.fullmatch(pattern("9 packs\n"), "8 packs\n")
    assert commands_of("$ x \\\n  y\n1\n$ z\n") == [("x    y", "1\n"), ("z", "")]
    with pytest.raises(AssertionError, match="add it to NOT_RUN"):
        run_command("curl example.org")
