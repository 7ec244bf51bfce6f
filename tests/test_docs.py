"""README.md and docs/ say what is so: their links and paths exist, their tables and examples are those of the code.

What their blocks of commands and Python do is seen in tests/test_doc_blocks.py, which runs them.
"""

import ast
import inspect
import json
import re
import shlex
import sys
import types
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from doc_pages import FENCE, NAMES, PAGES, inline_code, prose, text_of
from helpers import (
    ROOT,
    TinyData,
    assert_verified,
    clip,
    documents_of,
    mixed_rows,
    packs_of,
    picture,
    tiny_config,
    tone,
)
from transformers.loss.loss_utils import ForCausalLMLoss

import neatpack
from neatpack import (
    VLM_PP_MEDIA_KEY,
    PackedShards,
    neat_packed_vlm_collater,
    run_pack,
    wrap_vlm_collate_for_pp,
)
from neatpack.format.layout import Delivery, MediaArray
from neatpack.pipeline.cli import _parser
from neatpack.pipeline.families.registry import FAMILIES, family_for
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.media.pixels import resize_torch, tiles_of
from neatpack.pipeline.records import REASONS, MediaRef
from neatpack.pipeline.shard.verify import read_ledger


def blocks(name: str, info: str = "") -> list[tuple[str, str]]:
    """(what stands behind the ``` and the content) of the fenced blocks of a page, those of one kind or all."""
    return [(found, body) for found, body in FENCE.findall(text_of(name)) if not info or found == info]


def module_of(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


# The text itself


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", prose(found), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
            assert anchor in slugs, f"{target}: {slugs}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_paths_that_are_named_exist(page):
    """Inline code that looks like a path of the project."""
    for code in inline_code(page):
        if re.fullmatch(r"(pipeline|loaders|jobs|tests|docs|neatpack)/[\w./]+", code) and "NAME" not in code:
            assert (ROOT / code).exists(), code
        if re.fullmatch(r"(ingest|measure|media|families|plan|render|shard|runtime)/\w+\.py", code):
            assert (ROOT / "pipeline" / code).exists(), code


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_compiles(page):
    for info, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if info.split(" ")[0] == "python" and info != "python internvl":  # pieces of a file, tested as a whole
            compile(body, f"{page.name}: {info}", "exec")


def commands(page: Path) -> list[str]:
    fenced = [
        line
        for info, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if not info
        for line in body.replace("\\\n", " ").splitlines()
    ]
    found = []
    for line in [*fenced, *inline_code(page)]:
        line = line.strip().removeprefix("$ ")
        if "python pipeline/pack.py" in line:
            line = "neatpack pack" + line.split("python pipeline/pack.py", 1)[1]
        if re.match(r"neatpack (pack|plan|split|verify|show|skipped|export)\b", line):
            found.append(line)
    return found


@cache
def flags() -> set[str]:
    parser = _parser()
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    return {flag for each in commands.choices.values() for action in each._actions for flag in action.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_parse(page):
    parser = _parser()
    for line in commands(page):
        arguments = [word for word in shlex.split(line, comments=True)[1:] if word != "…"]
        if arguments in (["verify"], ["show"], ["skipped"], ["pack", "--help"]):
            continue  # named, not called
        parser.parse_args(arguments)
    for code in inline_code(page):
        if code.startswith("--"):
            assert code.split()[0] in flags(), code


def test_the_commands_are_found():
    assert len(commands(ROOT / "README.md")) >= 5


def test_the_families_are_the_registrys():
    table = text_of("docs/FAMILY.md").split("\n## The families\n")[1].split("\n## ")[0]
    rows = {name: row for row in table.splitlines() for name in re.findall(r"^\| `(\w+)` \|", row)}
    assert set(rows) == set(FAMILIES)


def test_the_reasons_are_the_records():
    section = text_of("docs/DATA.md").split("\n## What is skipped, and why\n")[1].split("\n## ")[0]
    first_cells = " ".join(row.split("|")[1] for row in section.splitlines() if row.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(REASONS)


def test_our_own_api_is_as_documented():
    section = text_of("docs/API.md").split("\n## The packed path\n")[1].split("\n**")[0]
    listed = dict(re.findall(r"^- `(\w+)(?:\((.*)\))?`:", section, re.MULTILINE))
    assert set(listed) == {"PackedShards", "IndexedPacks", "PackCollater", "num_items_in_batch", "steps",
                           "restore_pixels", "PackConfig", "run_pack", "run_plan", "UserError",
                           "DataLossError"}  # fmt: skip
    for name, parameters in listed.items():
        if not parameters or "…" in parameters:
            continue
        arguments = ast.parse(f"def _({parameters}): ...").body[0].args  # type: ignore[attr-defined]
        told = {a.arg: None for a in (*arguments.args, *arguments.kwonlyargs)}
        for names, defaults in (
            (arguments.args[len(arguments.args) - len(arguments.defaults) :], arguments.defaults),
            (arguments.kwonlyargs, arguments.kw_defaults),
        ):
            told |= {each.arg: ast.unparse(value) for each, value in zip(names, defaults, strict=True) if value}
        signature = inspect.signature(getattr(neatpack, name)).parameters.values()
        empty = inspect.Parameter.empty
        assert told == {p.name: None if p.default is empty else repr(p.default) for p in signature}, name


def test_shifted_labels_are_not_shifted_again():
    """As docs/API.md tells users of transformers' models to call them."""
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 5, 7), torch.tensor([[-100, 3, 2, -100, 6]])
    expected = torch.nn.functional.cross_entropy(logits[0], labels[0])
    assert torch.allclose(ForCausalLMLoss(logits, labels, vocab_size=7, shift_labels=labels), expected)
    assert not torch.allclose(ForCausalLMLoss(logits, labels, vocab_size=7), expected)


# docs/FORMAT.md


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """The meta JSON of text, pictures, videos of two lengths and sounds of two lengths."""
    data = mixed_rows(TinyData(tmp_path_factory.mktemp("docs") / "data"), num_text=8, num_images=4)
    picture(data.folder / "p.png", 90, 170)
    for name, frames in (("a", 20), ("b", 9)):
        clip(data.folder / f"{name}.mp4", frames=frames)
        tone(data.folder / f"{name}.wav", frames / 20)
        data.row([("user", "<video>or<image>?"), ("assistant", "No.")], videos=[f"{name}.mp4"], images=["p.png"])
        data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=[f"{name}.wav"])
    data.row([("user", "<image>and<image>?"), ("assistant", "Both.")], images=["p.png", "8.png"])
    return data.write()


TEXT_KEYS = {
    "input_ids",
    "labels",
    "shift_labels",
    "position_ids",
    "attention_mask",
    "_packed_seq_ids",
    "mm_token_type_ids",
}


# Patches that are repeated; a mask and the other axis order; a first row and another fill; groups.
@pytest.mark.parametrize(
    ("family", "codec"),
    [("qwen2_vl", "u8"), ("qwen2_vl", "zstd"), ("qwen3_omni", "zstd"), ("phi4_mm", "u8"), ("llava_onevision", "zstd")],
)
def test_the_reader_reads_what_the_loader_does(family, codec, mixed, tmp_path, monkeypatch):
    ((_, source),) = blocks("docs/FORMAT.md", "python reader")
    imported = {n.names[0].name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import)}
    assert imported <= {"hashlib", "io", "json", "tarfile", "zlib", "numpy", "pyarrow", "pyarrow.parquet"}
    reader = module_of("doc_reader", source, monkeypatch)
    out = tmp_path / "out"
    processor = import_module(f"processors.{family}").make(tmp_path / "processor")
    size = 4096 if family == "phi4_mm" else 1024
    run_pack(tiny_config(mixed, out, processor=str(processor), pack_size=size, pixels=codec))
    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] > 1 for pack in packs)
    for pack in packs:
        stored, header = reader.read_pack(out, pack["pack"])
        assert header["pack"] == pack["pack"] and header["num_images"] == pack["n_images"]
        for name in ("input_ids", "labels", "position_ids", "seq_lens", "mm_token_type_ids"):
            assert np.array_equal(stored[name], pack[name].numpy()), name
        batch = neat_packed_vlm_collater([pack])
        wanted = {key: value for key, value in batch.items() if key not in TEXT_KEYS and not key.startswith("n_")}
        found = reader.model_inputs(out, pack["pack"])
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].shape == tuple(tensor.shape), name
            assert np.array_equal(found[name], tensor.numpy()), name
        if family == "qwen2_vl":
            assert np.array_equal(found["pixel_values"], pack["pixel_values"].numpy())


def test_every_key_and_column_is_documented(mixed, tmp_path):
    out = tmp_path / "out"
    run_pack(tiny_config(mixed, out))
    manifest = json.loads((out / "manifest.json").read_text())
    text = text_of("docs/FORMAT.md")
    words = set(re.findall(r"\w+", prose(ROOT / "docs" / "FORMAT.md")))
    keys = [*manifest]
    for part in ("identity", "family", "pixels", "counts"):
        keys += manifest[part]
    keys += [*manifest["shards"][0], *(field.name for kind in (MediaArray, Delivery) for field in fields(kind))]
    for path in sorted(out.rglob("*.parquet")):
        names = pq.read_schema(path).names
        keys += [name for name in names if name not in REASONS]
    ((pack, *_),) = [list(packs_of(out))]
    keys += [*pack.arrays, *(field.name for field in fields(pack.documents[0]))]
    assert not [key for key in keys if key not in words]
    assert f"This is format {manifest['format']}," in text
    tops = {path.relative_to(out).parts[0] for path in out.rglob("*") if path.is_file()}
    assert not [name for name in tops if name not in text]


def test_alignment_as_documented(mixed, tmp_path):
    out = tmp_path / "out"
    run_pack(tiny_config(mixed, out, align=8))
    for line in pq.read_table(out / "index.parquet").to_pylist():
        content = (out / "shards" / line["shard"]).read_bytes()
        for member in line["members"]:
            assert member["offset"] % 512 == 0
            head = content[member["offset"] : member["offset"] + 10]
            if member["name"] != "json":
                assert head[:8] == b"\x93NUMPY\x01\x00" and (10 + int.from_bytes(head[8:], "little")) % 64 == 0
    sizes = {path.name: path.stat().st_size for path in (out / "shards").iterdir()}
    last = pq.read_table(out / "index.parquet").to_pylist()[-1]
    assert sizes[last["shard"]] == last["offset"] + last["bytes"] + 1024, "two zero blocks, and nothing after them"


# docs/DATA.md


def test_the_examples_of_data_are_packed(tmp_path):
    folder = tmp_path / "data"
    picture(folder / "images" / "cat.png", 60, 90)
    picture(folder / "images" / "dog.png", 120, 48)
    clip(folder / "clip.mp4", frames=15)
    written = [
        (folder / info.split()[1]).write_text(body, encoding="utf-8")
        for info, body in blocks("docs/DATA.md")
        if " " in info
    ]
    assert len(written) == 10
    run_pack(tiny_config(folder / "meta.json", tmp_path / "out"))
    ledger = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    reasons = [line["reason"] for line in ledger if line["dataset"] == "broken"]
    text = " ".join(text_of("docs/DATA.md").split())
    told = re.search(r"These rows are skipped as (.+?) by a family", text)[1]  # type: ignore[index]
    assert reasons == re.findall(r"`(\w+)`", told)
    others = {}
    for line in ledger:
        if line["dataset"] != "broken":
            assert line["status"] == "packed", line
            others[line["dataset"]] = others.get(line["dataset"], 0) + 1
    assert others == {"coco": 2, "chat": 4, "llava": 2, "tasks": 2, "parts": 2, "films": 4}, "chat is taken twice"


def test_the_meta_json_of_the_readme_is_one():
    (entry,) = [json.loads(body) for _, body in blocks("README.md", "json")]
    assert entry == {"coco": {"file_name": "coco.jsonl", "media_dir": "images"}}


# docs/FAMILY.md


def test_the_pieces_of_internvl_are_the_file():
    pieces = [body for _, body in blocks("docs/FAMILY.md", "python internvl")]
    file = ""
    for piece in pieces:  # as ruff spaces them: two blank lines before a class, one elsewhere
        blank = 2 if piece.startswith(("@", "class ")) else 1
        file += ("\n" * blank if file else "") + piece
    assert file == text_of("pipeline/families/internvl.py"), (
        "docs/FAMILY.md shows another pipeline/families/internvl.py"
    )
    ((_, line),) = [found for found in blocks("docs/FAMILY.md", "text") if "InternVL" in found[1]]
    assert line in text_of("pipeline/families/registry.py")


@pytest.fixture
def thumbnails(monkeypatch, tmp_path):
    """An output of the family that docs/FAMILY.md defines, and its data folder."""
    ((_, source),) = blocks("docs/FAMILY.md", "python thumbnails")
    family = module_of("doc_thumbnails", source, monkeypatch).Thumbnails
    monkeypatch.setitem(FAMILIES, family.name, family)
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=8, num_images=5)
    picture(data.folder / "p.png", 50, 80, seed=7)
    picture(data.folder / "q.png", 90, 70, seed=8)
    clip(data.folder / "a.mp4", frames=20)
    data.row([("user", "<video>or<image>?"), ("assistant", "One.")], videos=["a.mp4"], images=["p.png"])
    data.row(
        [("user", "<image>or<video>or<image>?"), ("assistant", "Two.")], videos=["a.mp4"], images=["q.png", "p.png"]
    )
    data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=["a.mp4"])
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, family=family.name, pack_size=160))
    yield out, data.folder
    family_for.cache_clear()


def test_the_family_of_the_document_packs(thumbnails):
    out, folder = thumbnails
    manifest = assert_verified(out)
    assert manifest.family["name"] == "thumbnails" and manifest.counts.skipped == {}
    assert manifest.family["media"]["pixel_values"]["kinds"] == ["image", "video"]
    rows = {document.row for pack in packs_of(out) for document in pack.documents}
    assert rows == {-1, *range(16)}
    by_row = {}
    for pack in PackedShards(out, pixels="uint8"):
        sources = next(p for p in packs_of(out) if p.number == pack["pack"]).documents
        by_row |= dict(zip([source.row for source in sources], documents_of(out, pack), strict=True))
    p, q = (square(folder / name) for name in ("p.png", "q.png"))
    first, second = by_row[13], by_row[14]
    assert first["num_squares"].tolist() == [4, 1] and second["num_squares"].tolist() == [1, 4, 1]
    assert np.array_equal(first["pixel_values"][4], p), "the video comes first, in the text and in the array"
    assert np.array_equal(second["pixel_values"][0], q) and np.array_equal(second["pixel_values"][5], p)
    assert torch.equal(second["pixel_values"][1:5], first["pixel_values"][:4])
    types = second["mm_token_type_ids"]
    assert types[types > 0].tolist() == [1, 2, 2, 2, 2, 1]


def square(path: Path) -> np.ndarray:
    return tiles_of(resize_torch(decode_image(MediaRef(kind="image", path=str(path))), (32, 32)), 32)[0]


def test_an_array_of_two_kinds_is_split_where_the_packs_are(thumbnails):
    dataset = PackedShards(thumbnails[0], pixels="fp32")
    packs = list(dataset)
    assert any(pack["n_videos"] for pack in packs) and any(not pack["n_videos"] for pack in packs)
    split = wrap_vlm_collate_for_pp(neat_packed_vlm_collater, len(packs), dataset.layout)(packs)
    assert not {"pixel_values", "num_squares"} & split.keys()
    for name in ("pixel_values", "num_squares"):
        for chunk, pack in zip(split[VLM_PP_MEDIA_KEY][name], packs, strict=True):
            assert torch.equal(chunk, pack[name]), name
    two = wrap_vlm_collate_for_pp(neat_packed_vlm_collater, 2, dataset.layout)(packs[: len(packs) // 2 * 2])
    half = len(packs) // 2
    assert torch.equal(
        two[VLM_PP_MEDIA_KEY]["pixel_values"][0], torch.cat([pack["pixel_values"] for pack in packs[:half]])
    )
