"""A pack of an output: read, checked, with what is known of it beside; and damage is told, not shown."""

import json
import shutil

import pytest
from helpers import DEMO_PROCESSOR, TinyData, packs_of, tiny_config
from support.errors import raises

from neatpack.errors import OutputError, ShardError
from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import UserError
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.view.stored import stored_pack, stored_view


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two packs or more, of texts and pictures; row 0 is a blank line's neighbour, so rows and lines differ."""
    folder = tmp_path_factory.mktemp("stored")
    data = TinyData(folder / "data")
    data.rows.append("")
    for number in range(6):
        data.row([("user", f"Question {number}?"), ("assistant", f"Answer {number}." * 8)], id=f"r{number}")
    data.image(300, 400)
    run_pack(tiny_config(data.write(), folder / "out", pack_size=256))
    return folder / "out"


@pytest.fixture
def out(packed, tmp_path):
    """A copy, to be broken; its data lie where they were."""
    return shutil.copytree(packed, tmp_path / "out")


def view(out, number=0, **options):
    return stored_view(out, Manifest.read(out), number, **{"follow": True} | options)


def text_of(found):
    return "".join(text for document in found.documents for text, _ in document.pieces())


def test_every_pack_is_read_as_it_was_written(packed):
    for pack in packs_of(packed):
        found = stored_pack(packed, pack.number)
        assert found.documents == pack.documents
        assert all((found.arrays[name] == array).all() for name, array in pack.arrays.items())


def test_documents_have_their_file_and_line(packed):
    documents = [document for number in range(Manifest.read(packed).counts.packs)
                 for document in view(packed, number).documents if not document.is_fake]  # fmt: skip
    assert len(documents) == 7
    for document in documents:
        assert document.place.endswith(f"data/rows.jsonl:{document.row + 2}")
        assert document.id == (f"r{document.row}" if document.row < 6 else "")
    (medium,) = next(document.media for document in documents if document.row == 6)
    assert medium.source == (400, 300) and medium.path.endswith("data/7.png")
    assert medium.label.startswith("image 1: 400x300 -> ")


def test_a_file_that_has_changed_has_no_lines(out):
    source = json.loads((out / "work" / "base.json").read_text())["base"]
    copy = shutil.copytree(source, out.parent / "moved")
    (copy / "rows.jsonl").write_text("{}\n")
    (out / "work" / "base.json").write_text(json.dumps({"base": str(copy), "processor": str(DEMO_PROCESSOR)}))
    found = view(out)
    assert found.documents[0].place.endswith("moved/rows.jsonl")
    assert [note.partition(": ")[0] for note in found.notes] == [f"{copy}/rows.jsonl"]
    (copy / "rows.jsonl").unlink()
    assert view(out).notes == (f"{copy}/rows.jsonl: No such file or directory",)


def test_lines_of_large_files_are_not_counted(packed, monkeypatch):
    monkeypatch.setattr("neatpack.pipeline.view.stored.LOOKED_THROUGH", 10)
    found = view(packed)
    assert found.documents[0].place.endswith("rows.jsonl")
    (note,) = found.notes
    assert "rows.jsonl: lines are not counted in " in note


def test_without_a_work_folder_ids_are_shown_and_the_remedy_told(out):
    shutil.rmtree(out / "work")
    found = view(out)
    assert found.notes[0] == (
        "texts are token ids: give --processor PATH, or --follow-sources if you trust the output and it names its "
        "processor (in OUT/work, or with --record-paths)"
    )
    first = found.documents[0]
    assert first.place == "" and first.runs[0].text.replace(" ", "").isdecimal()
    assert all(medium.source is None for document in found.documents for medium in document.media)
    told = view(out, processor=str(DEMO_PROCESSOR))
    assert "<|im_start|>" in text_of(told) and not any("token ids" in note for note in told.notes)


def test_a_processor_that_is_gone_is_named(out):
    base = json.loads((out / "work" / "base.json").read_text())
    (out / "work" / "base.json").write_text(json.dumps(base | {"processor": "/gone/processor"}))
    (note,) = view(out).notes
    assert "/gone/processor" in note and "--processor" in note
    with raises(UserError, "processor-missing", processor="/elsewhere"):
        view(out, processor="/elsewhere")


def test_the_processor_is_recorded_as_paths_are(tmp_path, tiny):
    meta = tiny.text("Why?", "So.").write()
    run_pack(tiny_config(meta, tmp_path / "plain"))
    run_pack(tiny_config(meta, tmp_path / "told", record_paths=True))
    recorded = {name: json.loads((tmp_path / name / "sources.json").read_text()) for name in ("plain", "told")}
    assert recorded["plain"]["processor"] == recorded["told"]["processor"] == "processor", "its name alone"
    assert "processor_path" not in recorded["plain"]
    assert recorded["told"]["processor_path"] == str(DEMO_PROCESSOR)
    shutil.rmtree(tmp_path / "told" / "work")
    assert "⟦So.<|im_end|>⟧" in text_of(view(tmp_path / "told"))


def test_another_tokenizer_is_noticed(packed, tmp_path):
    folder = shutil.copytree(DEMO_PROCESSOR, tmp_path / "p")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").unlink()
    (note,) = view(packed, processor=str(folder)).notes
    assert "--processor" in note


def test_a_number_that_is_not_there_names_those_that_are(packed):
    count = Manifest.read(packed).counts.packs
    with raises(UserError, "document-unknown", pack=count, packs=count):
        view(packed, count)
    documents = len(view(packed).documents)
    with raises(UserError, "document-unknown", pack=0, document=99, documents=documents):
        view(packed, only=99)
    assert [document.position for document in view(packed, only=1).documents] == [1]


def test_damage_is_told(out):
    shard = out / "shards" / "pack-000000.tar"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with raises(ShardError, "shard-damaged", pack=0, out=str(out)):
        view(out)
    shard.write_bytes(content[:600])
    with raises(ShardError, "shard-damaged"):
        view(out)
    shard.unlink()
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar"):
        view(out)
    (out / "index.arrow").write_bytes(b"ARROW1")
    with raises(OutputError, "output-damaged", out=str(out), file="index.arrow"):
        view(out)
