"""Files of the machine: media and data files stay inside of the folders that the user names."""

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import ROOT, assert_verified, picture, tiny_config
from PIL import Image
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.media_paths import is_inside
from neatpack.pipeline.ingest.meta import MAX_ID, read_meta
from neatpack.pipeline.ingest.sources import SOURCES
from neatpack.pipeline.ingest.sources.examples import BadRow, embedded
from neatpack.pipeline.ingest.sources.load import load
from neatpack.pipeline.media.image import FORMATS, decode_image, image_size
from neatpack.pipeline.records import MediaError, MediaRef
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger


def message(image: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]
    return {"messages": turns, "images": [image]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of data, and one beside it with pictures that are nobody's business."""
    data, other = tmp_path / "data", tmp_path / "other"
    picture(data / "good.png", 40, 60)
    picture(other / "secret.png", 50, 70)
    return data, other


# ---------------------------------------------------------------- rows


def test_name_of_a_row_is_cut(tmp_path: Path) -> None:
    """What a row calls itself is a label: a long one costs no row, and no ledger keeps it."""
    names = ["a" * MAX_ID, "a" * (MAX_ID + 1), "é" * 5_000_000, 10**4000, "x\0" * MAX_ID]
    rows = [{**message("good.png"), "id": name} for name in names]
    picture(tmp_path / "good.png", 40, 60)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "rows.jsonl"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", max_skipped=1.0))
    lines = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    assert [line["status"] for line in lines] == ["packed"] * len(names)
    assert lines[0]["id"] == names[0]
    for line, name in zip(lines[1:], names[1:], strict=True):
        assert line["id"] == f"{str(name)[: MAX_ID - 1]}…"


def test_row_reads_no_file_outside_of_the_folder_of_the_meta_file(folders: tuple[Path, Path]) -> None:
    """Neither does its skip tell whether the file is there."""
    data, other = folders
    (data / "link.png").symlink_to(other / "secret.png")
    (data / "links").symlink_to(other)
    (data / "gone.png").symlink_to(other / "gone.png")
    names = [str(other / "secret.png"), "../other/secret.png", f"file://{other}/secret.png", "link.png",
             "links/secret.png", f"{data}/../other/secret.png", f"{data}/x/../../other/secret.png",
             f"{data}//..//other/secret.png"]  # fmt: skip
    missing = [name.replace("secret", "absent") for name in names[:3]] + ["gone.png", "links/absent.png"]
    rows = [*map(message, names), *map(message, missing), message("good.png")]
    (data / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (data / "meta.json").write_text(json.dumps({"d": {"file_name": "rows.jsonl"}}))
    run_pack(tiny_config(data / "meta.json", data / "out", max_skipped=1.0))
    *lines, good = read_ledger(data / "out", assert_verified(data / "out")).to_pylist()
    assert good["status"] == "packed"
    (told,) = {(line["reason"], re.sub(r"'.*'", "", line["detail"])) for line in lines}
    assert told[0] == "missing_media" and "--media-prefix" in told[1], lines


def test_forbidden_path_is_not_looked_for(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = folders
    touched: list[str] = []
    for name in ("stat", "lstat", "readlink", "open"):
        real = getattr(os, name)

        def watched(path: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            touched.append(os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "")
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, watched)
    for path in (f"{other}/secret.png", f"{data}/../other/secret.png", "/dev/zero", f"{data}-2/a.png"):
        assert not is_inside(path, (str(data),), (f"{data}/deep",))
    assert [path for path in touched if "other" in path or path.startswith("/dev")] == []
    assert is_inside(f"{data}/good.png", (str(data),))


def test_working_directory_gives_no_files_away(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked into only where it is inside of what the user names."""
    data, other = folders
    (data / "rows.jsonl").write_text(json.dumps(message("secret.png")))
    (data / "meta.json").write_text(json.dumps({"d": {"file_name": "rows.jsonl"}}))
    monkeypatch.chdir(other)
    (dataset,) = read_meta(data / "meta.json")
    assert dataset.media_dirs == (str(data),)
    (dataset,) = read_meta(data / "meta.json", media_prefixes=(".",))
    assert dataset.media_dirs == (str(data), str(other))


# ---------------------------------------------------------------- sources


@pytest.mark.parametrize("source", ["hub", "rdr"])
@pytest.mark.parametrize("kind", ["outside", "device", "pipe", "large", "inside"])
def test_source_reads_only_regular_files_of_its_folder(
    folders: tuple[Path, Path], source: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the hub names a file by its path, as folders of pictures do: {"bytes": null, "path": "/home/…"}."""
    datasets = pytest.importorskip("datasets")
    data, other = folders
    os.mkfifo(data / "pipe.png")
    paths = {"outside": other / "secret.png", "device": Path("/dev/zero"), "pipe": data / "pipe.png",
             "large": data / "large.png", "inside": data / "good.png"}  # fmt: skip
    with open(data / "large.png", "wb") as file:
        file.truncate(5 << 30)
    path = str(paths[kind])
    value = {"bytes": None, "path": path}
    assert (embedded(value, (str(data),)) == value) == (kind != "inside")
    columns = {"image": [value], "text": ["That."], "messages": [message("x")["messages"]]}
    schema = pa.table({"image": pa.array([value], pa.struct({"bytes": pa.binary(), "path": pa.string()}))}).schema
    table = pa.table({**columns, "image": pa.array([value], schema.field("image").type)})
    rows = datasets.Dataset(table)
    rows.save_to_disk(str(data / "saved"))
    entry = {"source": source, "path_or_dataset": "saved", "media_dir": "."}
    entry |= {"columns": {"images": "image"}} if source == "hub" else {}
    (data / "meta.json").write_text(json.dumps({"d": entry}))
    run_pack(tiny_config(data / "meta.json", data / "out", max_skipped=1.0))
    (line,) = read_ledger(data / "out", assert_verified(data / "out")).to_pylist()
    expected = {"outside": "missing_media", "device": "missing_media", "pipe": "bad_media", "large": "bad_media"}
    assert line["reason"] == expected.get(kind, ""), line
    for media in (data / "out" / "work").rglob("media.bin"):
        assert (other / "secret.png").read_bytes() not in media.read_bytes()
    if source == "rdr" and kind != "inside":  # online likewise; its own folder is that of the saved data set
        with pytest.raises(BadRow):
            SOURCES["rdr"](str(data / "saved"))[0]


# ---------------------------------------------------------------- data files


def saved(folder: Path, filename: str) -> None:
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": filename}]}))


@pytest.mark.parametrize(
    "filename", ["../../other/rows.arrow", "{other}/rows.arrow", "link.arrow", "sub/../../x.arrow"]
)
def test_saved_data_set_names_no_file_outside_of_its_folder(folders: tuple[Path, Path], filename: str) -> None:
    data, other = folders
    (other / "rows.arrow").touch()
    (data / "x.arrow").touch()
    saved(data / "saved", filename.format(other=other))
    (data / "saved" / "link.arrow").symlink_to(other / "rows.arrow")
    (data / "saved" / "sub").mkdir()
    (data / "meta.json").write_text(json.dumps({"d": {"file_name": "saved"}}))
    with raises(UserError, "source-outside"):
        read_meta(data / "meta.json")
    if pytest.importorskip("datasets"):
        with raises(UserError, "source-outside"):
            load(str(data / "saved"))


@pytest.mark.parametrize("file_name", ["rows", "rows/*.jsonl", "rows/**/*.jsonl"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_link_in_a_data_folder_leads_to_no_file_outside(
    folders: tuple[Path, Path], file_name: str, is_folder: bool
) -> None:
    data, other = folders
    (other / "more").mkdir()
    for file in (other / "b.jsonl", other / "more" / "b.jsonl"):
        file.write_text(json.dumps(message("x.png")))
    (data / "rows").mkdir()
    (data / "rows" / "a.jsonl").write_text(json.dumps(message("x.png")))
    if is_folder and file_name == "rows/*.jsonl":
        pytest.skip("this pattern looks into no folder")
    link = data / "rows" / ("more" if is_folder else "b.jsonl")
    link.symlink_to(other / link.name)
    entry: dict[str, Any] = {"file_name": file_name}
    (data / "meta.json").write_text(json.dumps({"d": entry}))
    with raises(UserError, "source-outside"):
        read_meta(data / "meta.json")
    (data / "meta.json").write_text(json.dumps({"d": entry | {"media_prefixes": [str(other)]}}))
    assert len(read_meta(data / "meta.json")[0].files) == 2
    named = {"file_name": ["rows/a.jsonl", str((link / "b.jsonl" if is_folder else link).relative_to(data))]}
    (data / "meta.json").write_text(json.dumps({"d": named}))
    assert len(read_meta(data / "meta.json")[0].files) == 2, "what the user names may be a link"


# ---------------------------------------------------------------- formats of images


EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n(%pipe%touch GHOST) (w) file\nshowpage\n%%EOF\n"
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.eps", EPS),
        ("a.png", EPS),
        ("a.jpg", b"\xc5\xd0\xd3\xc6" + (32).to_bytes(4, "little") + bytes(24) + EPS),  # EPS in a DOS header
        ("a.xbm", b"#define a_width 4\n#define a_height 1\nstatic char a_bits[] = {\n0x00};\n"),
    ],
)
def test_image_of_another_format_reaches_no_plugin(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript is started"))
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", lambda _: pytest.fail("the plugin is asked"))
    (tmp_path / name).write_bytes(content)
    ref = MediaRef(kind="image", path=str(tmp_path / name))
    for read in (image_size, decode_image):
        with pytest.raises(MediaError) as caught:
            read(ref)
        assert caught.value.skip.reason == "bad_media"


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "dib", "tiff", "avif", "jp2", "ppm", "ico"])
def test_image_of_each_known_format_is_read(suffix: str, tmp_path: Path) -> None:
    width = 16 if suffix == "ico" else 32  # icons are square
    Image.new("RGB", (width, 16), (200, 30, 30)).save(tmp_path / f"a.{suffix}")
    ref = MediaRef(kind="image", path=str(tmp_path / f"a.{suffix}"))
    assert image_size(ref) == (16, width)
    assert decode_image(ref).shape == (16, width, 3)


def test_images_are_opened_by_format_everywhere() -> None:
    """Every call of Image.open in the product names formats."""
    found = 0
    for folder in ("pipeline", "loaders", "jobs", "neatpack"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "Image.open":
                    found += 1
                    assert "formats" in {keyword.arg for keyword in node.keywords}, f"{file}:{node.lineno}"
    assert found
    text = " ".join((ROOT / "docs" / "DATA.md").read_text().split())
    names = {"JPEG2000": "JPEG 2000", "WEBP": "WebP"}
    assert all(names.get(name, name) in text for name in FORMATS)
