"""OUT/report.html: the manifest's numbers, the same bytes for the same output, and never a reason for a job to fail."""

import base64
import errno
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from helpers import TinyData, assert_verified, tiny_config
from PIL import Image
from support.errors import prints_code

from neatpack.format.manifest import Manifest
from neatpack.format.output import OutputReader
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.progress import FILE as TIMING
from neatpack.pipeline.view.report import page as report_page
from neatpack.pipeline.view.report.figures import figures_of
from neatpack.pipeline.view.report.gallery import Shown, some_documents
from neatpack.pipeline.view.report.page import write_report
from neatpack.pipeline.view.report.sections import gallery
from neatpack.storage.files import write_whole

HOSTILE = "</script><img src=http://example.com/x onerror=alert(1)>&amp;"


def data(folder: Path) -> Path:
    """Two data sets with pictures, skips, repetitions, a fake image and padding."""
    made = TinyData(folder / "data")
    for number in range(14):
        made.text(f"Count to {number}.", "one two " * (number + 1))
    made.text(HOSTILE, "No.").image(60, 90).image(300, 200).image(90, 90, "<image>What?" + " why" * 60)
    made.rows += ["{broken", {"messages": []}]
    made.write()
    entry = {"file_name": "rows.jsonl", "media_dir": "."}
    entries = {"once": entry, "often": {**entry, "sample_ratio": 2.5}}
    (folder / "data/meta.json").write_text(json.dumps(entries))
    return folder / "data/meta.json"


def packed(folder: Path) -> Path:
    run_pack(tiny_config(data(folder), folder / "out", pack_size=128, align=8, max_skipped=1))
    return folder / "out"


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return packed(tmp_path_factory.mktemp("report"))


@pytest.fixture
def copied(out: Path, tmp_path: Path) -> Path:
    shutil.copytree(out, tmp_path / "out")
    return tmp_path / "out"


def section(html: str, name: str) -> str:
    return re.findall(rf'<section id="{name}".*?</section>', html, re.DOTALL)[0]


def total(html: str) -> list[str]:
    """The cells of the last line of a table, as text."""
    line = re.findall(r'<tr class="total">(.*?)</tr>', html)[0]
    return [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", line)]


def column(html: str, number: int) -> list[int]:
    """The numbers of a column of the first table in a section, without its total; those of folded tables are behind."""
    body = re.findall(r"<tbody>(.*?)</tbody>", html)[0]
    lines = re.findall(r"<tr>(.*?)</tr>", body)
    cells = [re.sub("<.*?>", "", re.findall(r"<td.*?>(.*?)</td>", line)[number]) for line in lines]
    return [int(cell.replace(",", "")) for cell in cells if cell]


def test_pack_writes_it_and_report_writes_the_same(copied: Path, capsys):
    before = (copied / "report.html").read_bytes()
    (copied / "report.html").unlink()
    assert main(["report", str(copied), "--follow-sources"]) == 0
    assert re.fullmatch(rf"{copied}/report.html: [\d.]+ KiB, for any browser\n", capsys.readouterr().out)
    assert (copied / "report.html").read_bytes() == before
    assert_verified(copied)


def test_the_same_data_elsewhere_give_the_same_bytes(out: Path, tmp_path: Path):
    """But for the times of the run."""
    other = packed(tmp_path)
    pages = [(folder / "report.html").read_text() for folder in (other, out)]
    assert pages[0].replace(section(pages[0], "times"), "") == pages[1].replace(section(pages[1], "times"), "")
    for folder in (out, tmp_path):
        assert str(folder) not in (out / "report.html").read_text()


def test_documents_have_their_pictures_as_far_as_there_are_shards(tiny: TinyData, tmp_path: Path):
    out = tmp_path / "out"
    manifest = run_pack(tiny_config(tiny.text("a", "b").image(60, 90).image(300, 200).write(), out)).manifest
    shown = some_documents(out, manifest)
    assert [len(each.pictures) for each in shown] == [0, 1, 1]
    content = base64.b64decode(shown[2].pictures[0].partition(",")[2])
    assert max(Image.open(io.BytesIO(content)).size) == 120
    shutil.rmtree(out / "shards")
    assert not any(each.pictures for each in some_documents(out, manifest))


def test_a_pack_is_read_once_for_all_pictures_of_its_documents(tiny: TinyData, tmp_path: Path, monkeypatch):
    for size in (60, 90, 120, 150):
        tiny.image(size, 70)
    run_pack(tiny_config(tiny.write(), tmp_path / "out", pack_size=4096))
    read = []
    monkeypatch.setattr(
        OutputReader,
        "read_pack",
        lambda packs, number, pack=OutputReader.read_pack: (read.append(number), pack(packs, number))[1],
    )
    shown = some_documents(tmp_path / "out", Manifest.read(tmp_path / "out"))
    sizes = [Image.open(io.BytesIO(base64.b64decode(each.pictures[0].partition(",")[2]))).size for each in shown]
    assert len(set(sizes)) == 4, "each its own"
    assert read == [0]


def test_numbers_are_the_manifests_and_add_up(out: Path):
    html, counts = (out / "report.html").read_text(), Manifest.read(out).counts
    mixture, skipped = section(html, "mixture"), section(html, "skipped")
    _, _, rows, samples, packed_, _, tokens, _ = total(mixture)
    assert (rows, samples, packed_, tokens) == tuple(
        f"{number:,}" for number in (counts.rows, counts.samples, counts.packed, counts.tokens)
    )
    assert [sum(column(mixture, at)) for at in (2, 3, 4, 6)] == [
        counts.rows, counts.samples, counts.packed, counts.tokens,
    ]  # fmt: skip
    assert "(fake images)" in mixture and "(padding)" in mixture
    assert total(skipped)[1] == str(sum(counts.skipped.values())) == str(sum(column(skipped, 1)))
    assert sum(column(section(html, "fill"), 1)) == counts.packs
    lengths = section(html, "lengths")
    assert sum(column(lengths, 1)) + sum(column(lengths, 2)) == counts.packed
    assert f"<b>{counts.visual_tokens:,}</b>" in html
    figures = figures_of(out, Manifest.read(out))
    assert total(section(html, "media"))[2] == f"{figures.sums['num_images'] - figures.num_fakes}"


def test_what_rows_say_is_text(out: Path):
    html = (out / "report.html").read_text()
    assert html.count("<script") == 2 and "<img" not in html
    assert "http://" not in html.replace("http://example.com/x", "") and "https://" not in html
    shown = Shown(dataset="<b>", row=1, repeat=0, id="", pack=0, position=0, tokens=3, visual_tokens=0,
                  detail="", turns=[("user", HOSTILE)], pictures=["data:image/png;base64,AAAA"])  # fmt: skip
    made = gallery([shown])
    assert "&lt;b&gt; row 1" in made and "&lt;/script&gt;&lt;img src=http" in made
    assert '<img src="data:image/png;base64,AAAA" alt="">' in made and made.count("<img") == 1


def test_documents(out: Path, copied: Path):
    shown = some_documents(out, Manifest.read(out), follow=True)
    assert [each.dataset for each in shown] == ["once"] * 4 + ["often"] * 4
    for each in shown:
        assert [role for role, _ in each.turns] == ["user", "assistant"]
        assert each.turns[0][1].startswith((f"Count to {each.row}.", "<image>What?", HOSTILE))
    assert shown == some_documents(out, Manifest.read(out), follow=True)
    shutil.rmtree(copied / "work")  # which knows where the data are
    assert not any(each.turns for each in some_documents(copied, Manifest.read(copied), follow=True))
    write_report(copied, Manifest.read(copied))
    assert (copied / "report.html").read_text().count("Its row is not here to be read.") == 8


def test_time_by_stage_where_it_is_recorded(out: Path, copied: Path):
    assert "rendering" in section((out / "report.html").read_text(), "times")
    (copied / TIMING).unlink()
    write_report(copied, Manifest.read(copied))
    assert 'id="times"' not in (copied / "report.html").read_text()
    stages = [{"stage": "measuring", "seconds": 30.26}, {"stage": "rendering", "seconds": 90.0}]
    (copied / TIMING).write_text(json.dumps({"stages": stages}))
    write_report(copied, Manifest.read(copied))
    times = section((copied / "report.html").read_text(), "times")
    assert "30.3 s" in times and "1 min 30 s" in times and total(times)[1] == "2 min 00 s"


def test_nothing_packed(tiny: TinyData, tmp_path: Path):
    tiny.rows.append("{broken")
    run_pack(tiny_config(tiny.write(), tmp_path / "out", max_skipped=1))
    html = (tmp_path / "out/report.html").read_text()
    assert re.findall(r'<section id="(.*?)"', html) == ["mixture", "skipped", "times", "made-from"]
    assert "<code>bad_row</code>" in html


def test_one_pack_of_text(tiny: TinyData, tmp_path: Path):
    run_pack(tiny_config(tiny.text("a", "b").write(), tmp_path / "out", fake_image=False))
    html = (tmp_path / "out/report.html").read_text()
    names = re.findall(r'<section id="(.*?)"', html)
    assert names == ["mixture", "lengths", "fill", "skipped", "documents", "times", "made-from"]
    assert "Nothing: every sample is in a pack." in html


# Beside a job


def test_a_second_run_leaves_it_and_writes_it_if_it_is_gone(tmp_path: Path, capsys):
    config = tiny_config(data(tmp_path), tmp_path / "out", max_skipped=1)
    run_pack(config)
    page = tmp_path / "out/report.html"
    before = page.stat().st_mtime_ns, page.read_bytes()
    assert run_pack(config).already_done
    assert (page.stat().st_mtime_ns, page.read_bytes()) == before
    page.rename(tmp_path / "out/.report.html.7.part")  # as if it was killed
    assert run_pack(config).already_done
    assert page.read_bytes() == before[1]
    assert not list((tmp_path / "out").glob(".*.part"))


def test_an_overwritten_output_has_a_new_one(tmp_path: Path):
    meta = data(tmp_path)
    run_pack(tiny_config(meta, tmp_path / "out", max_skipped=1))
    before = (tmp_path / "out/report.html").read_text()
    run_pack(tiny_config(meta, tmp_path / "out", max_skipped=1, pack_size=256, overwrite=True))
    after = (tmp_path / "out/report.html").read_text()
    assert "of 512 tokens" in before and "of 256 tokens" in after


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x"), "No space left on device"),
        (KeyError("surprise"), "KeyError: 'surprise'"),
    ],
    ids=["a full disk", "a mistake"],
)
def test_what_goes_wrong_is_a_warning(tmp_path: Path, monkeypatch, capsys, error, words):
    def fail(out, manifest, *, follow):
        raise error

    monkeypatch.setattr(report_page, "write_report", fail)
    config = tiny_config(data(tmp_path), tmp_path / "out")
    flags = ["--meta", config.meta, "--processor", config.processor, "--out", config.out, "--engine", "inline"]
    assert main(["pack", *flags, "--max-skipped", "1"]) == 0
    told = capsys.readouterr().err
    assert f"{tmp_path}/out/report.html" in told and words in told and "Traceback" not in told
    assert_verified(tmp_path / "out")


def test_an_output_that_is_not_to_be_written_to(out: Path, tmp_path: Path, monkeypatch, capsys):
    before = (out / "report.html").read_bytes()

    def read_only(path: Path):
        if Path(path).is_relative_to(out):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return write_whole(path)

    monkeypatch.setattr(report_page, "write_whole", read_only)
    assert main(["report", str(out), "--follow-sources"]) == 1
    told = capsys.readouterr().err
    assert prints_code(told, "machine") and f"{out}/report.html" in told and "--html" in told
    assert main(["report", str(out), "--follow-sources", "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == before


def test_no_output(tmp_path: Path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "output-missing") and f"{tmp_path}/manifest.json" in told
