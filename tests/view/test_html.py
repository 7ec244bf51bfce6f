"""The page: one file, everything escaped, nothing asked for, no complaint of a browser."""

import base64
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from helpers import TinyData, packs_of, tiny_config
from PIL import Image
from shown_packs import HARMLESS, HOSTILE, pack_of, view_of

from neatpack.pipeline.run import run_pack
from neatpack.pipeline.view.html import html_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

NO_PAGE = "not an origin"


class Page(HTMLParser):
    """Tags with their attributes, and the text of the panes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._depth = "", 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "div":
            self._depth = 1 if ("class", "pane") in attributes else 0

    def handle_endtag(self, tag):
        self._depth = 0 if tag == "div" else self._depth

    def handle_data(self, data):
        self.text += data if self._depth else ""


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """A view of texts and pictures, by the demo's processor."""
    folder = tmp_path_factory.mktemp("pictured")
    data = TinyData(folder / "data").image(90, 130).text("Why?", "So.").image(40, 200, answer="Wide.")
    run_pack(tiny_config(data.write(), folder / "out"))
    (pack,) = packs_of(folder / "out")
    return view_of(pack)


@pytest.fixture(scope="module")
def hostile():
    return view_of(
        pack_of([(HOSTILE, False), (HOSTILE, True)], dataset="<script>alert(3)</script>", id='"><img src=x>'),
        title="<b>pack</b>", notes=["<i>note</i>"], places=["'/><script>alert(4)</script>"],
    )  # fmt: skip


def test_texts_are_escaped(hostile):
    page = Page(html_page(hostile))
    assert page.text.strip() == f"{HARMLESS}⟦{HARMLESS}⟧"
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "i", "iframe", "object", "embed", "form", "base"}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_nothing_is_linked(pictured, hostile):
    for view in (pictured, hostile):
        for tag, attributes in Page(html_page(view)).tags:
            for name in ("src", "href", "srcset", "data", "action", "background", "poster"):
                assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
        assert "url(" not in html_page(view).replace(HOSTILE, "") and "@import" not in html_page(view)
        assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in html_page(view)


def test_pictures_are_whole(pictured):
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html_page(pictured))
    drawn = [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]
    expected = [medium.pictures[0].pixels for document in pictured.documents for medium in document.media]
    assert len(drawn) == 2
    assert all(np.array_equal(*pair) for pair in zip(drawn, expected, strict=True))


def test_what_can_be_opened_can_be_reached_by_keys(pictured):
    tags = Page(html_page(pictured)).tags
    names = [tag for tag, _ in tags]
    assert names.count("summary") == names.count("img") == 2
    anchors = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert anchors == [f"#{attributes['id']}" for tag, attributes in tags if tag == "article"]
    assert all(attributes.get("alt") for tag, attributes in tags if tag == "img")
    panes = [attributes for _, attributes in tags if attributes.get("class") == "pane"]
    assert all(pane["tabindex"] == "0" and pane["aria-label"] for pane in panes) and panes


def requested(log) -> list[str]:
    """What a page asked for, by the browser's own net log. The browser asks for things by itself, too, for no page."""
    events = (event.get("params") or {} for event in json.loads(log.read_text())["events"])
    return [event["url"] for event in events if "url" in event and event.get("initiator", NO_PAGE) != NO_PAGE]


def test_a_browser_shows_it_without_a_word(pictured, hostile, tmp_path):
    """In Chromium: no message on the console, no request, no script run, and what is read is what was written."""
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    asking = '<!doctype html><img src="http://127.0.0.1:9/x.png"><script>console.error(1)</script>'
    for number, page in enumerate((asking, html_page(pictured), html_page(hostile))):
        file, log = tmp_path / f"{number}.html", tmp_path / f"{number}.json"
        file.write_text(page, encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", f"--log-net-log={log}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=2000",
            "--dump-dom", file.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"chromium does not start here: {done.stderr[-200:]}")
        if page == asking:  # this test would notice
            assert "CONSOLE" in done.stderr and requested(log) == ["http://127.0.0.1:9/x.png"]
            continue
        assert "CONSOLE" not in done.stderr, done.stderr
        assert requested(log) == []
        shown = Page(done.stdout)
        assert shown.text.strip() == Page(page).text.strip()


def test_a_skipped_row_and_no_documents():
    from neatpack.pipeline.view.document import PackView

    view = PackView(title="t", family="f", pack_size=1, lengths=(), documents=(), visual_tokens=0, target_tokens=0,
                    skipped="a.jsonl:1: a row 0: bad_row: <empty>")  # fmt: skip
    assert "bad_row: &lt;empty&gt;" in html_page(view) and "<svg" not in html_page(view)
