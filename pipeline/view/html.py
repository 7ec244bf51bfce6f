"""A PackView as one HTML page that needs nothing else: styles and pictures are in it, and it asks nobody for anything.

Its content security policy forbids scripts and requests, whatever a text might bring about. Pictures are opened to
their full size by `details`, which a keyboard reaches, too.
"""

import base64
from collections.abc import Iterator

import numpy as np

from ..safe import harmless_html as escape
from ..shard.words import counted
from .document import LEGEND, DocumentView, MediumView, PackView, position_words
from .lines import levels, png_bytes, some_of, under

FRAMES = 8  # of a video
MASK = 240  # pixels

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --card: #f6f7f9; --ink: #1c2024; --soft: #60646c; --line: #d9dce1;
  --trained: #d5f2dd; --trained-ink: #0b5a2c; --medium: #e3ecfb; --medium-ink: #1d4a9c; --note: #8a5a00;
  --first: #4c7fd9; --second: #58b4ae; --shown: #e2a32a; }
@media (prefers-color-scheme: dark) { :root { --ground: #111315; --card: #1a1d21; --ink: #e6e8eb; --soft: #9ba1a9;
  --line: #2f343a; --trained: #143a24; --trained-ink: #9fe6b8; --medium: #1a2c4d; --medium-ink: #a9c6fa;
  --note: #e5b454; --first: #5b8def; --second: #4aa39d; --shown: #e8b13d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem clamp(1rem, 3vw, 2.5rem) 4rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .25rem 0; } .soft { color: var(--soft); } .note { color: var(--note); }
.place { font: 13px/1.5 ui-monospace, monospace; color: var(--soft); overflow-wrap: anywhere; }
header { display: flex; gap: 2rem; flex-wrap: wrap; align-items: flex-start; justify-content: space-between; }
header > div { flex: 1 1 24rem; min-width: 0; } figure { margin: 0; }
svg.mask { display: block; width: 15rem; height: 15rem; border: 1px solid var(--line); background: var(--card); }
svg .a { fill: var(--first); } svg .b { fill: var(--second); } svg .shown { fill: var(--shown); }
svg .sound { fill: var(--medium-ink); }
figcaption { font-size: 13px; color: var(--soft); max-width: 15rem; margin-top: .35rem; overflow-wrap: anywhere; }
nav ol { list-style: none; margin: .75rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: .35rem; }
nav a { display: block; padding: .1rem .6rem; border: 1px solid var(--line); border-radius: 1rem; font-size: 13px;
  text-decoration: none; color: inherit; background: var(--card); max-width: 20rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
nav a:hover { border-color: var(--soft); }
a:focus-visible, summary:focus-visible, .pane:focus-visible { outline: 2px solid var(--first); outline-offset: 2px; }
article { margin-top: 1.5rem; padding: 1rem 1.25rem 1.25rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; scroll-margin-top: 1rem; }
.counts { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin: .35rem 0 0; padding: 0; list-style: none;
  font-size: 13px; color: var(--soft); } .counts b { color: var(--ink); font-variant-numeric: tabular-nums; }
.pane { margin: .85rem 0 0; padding: .75rem 1rem; background: var(--ground); border: 1px solid var(--line);
  border-radius: .4rem; font: 13.5px/1.65 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; max-height: 40rem; overflow-y: auto; }
.pane span { unicode-bidi: isolate; -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.special { color: var(--soft); }
.trained, .mark, .trained-special { background: var(--trained); color: var(--trained-ink); }
.trained-special { opacity: .75; } .mark { font-weight: 700; }
.medium { background: var(--medium); color: var(--medium-ink); border-radius: .25rem; padding: .05rem .25rem; }
.media { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin-top: 1rem; align-items: flex-start; }
.media > figure { max-width: 100%; } .media figcaption { max-width: 34rem; } .media b { color: var(--ink); }
.strip { display: flex; flex-wrap: wrap; gap: .5rem; } details { max-width: 100%; }
summary { list-style: none; cursor: zoom-in; display: inline-block; max-width: 100%; }
summary::-webkit-details-marker { display: none; } details[open] summary { cursor: zoom-out; }
summary img { display: block; max-height: 11rem; max-width: 100%; border: 1px solid var(--line);
  border-radius: .25rem; }
details[open] summary img { max-height: none; } .strip summary img { max-height: 7rem; }
.under { font-size: 12px; color: var(--soft); }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def html_page(view: PackView) -> str:
    return "".join(_page(view))


def _page(view: PackView) -> Iterator[str]:
    title = escape(view.title)
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body>\n<header><div><h1>{title}</h1>\n'
    )
    yield f'<p class="note">{escape(view.skipped)}</p>\n' if view.skipped else f"<p>{escape(view.figures)}</p>\n"
    yield from (f'<p class="note">{escape(note)}</p>\n' for note in view.notes)
    if view.documents:
        yield f'<p class="soft">{escape(LEGEND)}</p>\n'
    if len(view.documents) > 1:
        links = "".join(
            f'<li><a href="#document-{document.position}"><bdi>{escape(_short(document))}</bdi></a></li>'
            for document in view.documents
        )
        yield f'<nav aria-label="documents"><ol>{links}</ol></nav>\n'
    yield "</div>\n"
    if view.documents and len(view.lengths) > 1:
        yield from _mask(view)
    yield "</header>\n<main>\n"
    for document in view.documents:
        yield from _document(document)
    yield "</main>\n</body></html>\n"


def _short(document: DocumentView) -> str:
    return f"{document.position} " + ("fake image" if document.is_fake else f"{document.dataset} {document.row}")


def _mask(view: PackView) -> Iterator[str]:
    """A triangle per document: exact, whatever its size."""
    scale, start = MASK / max(1, view.tokens), 0
    shown = view.documents[0].position if len(view.documents) == 1 else None
    yield f'<figure><svg class="mask" viewBox="0 0 {MASK} {MASK}" role="img" aria-label="attention mask">'
    for number, length in enumerate(view.lengths):
        low, high = f"{start * scale:.2f}", f"{(start + length) * scale:.2f}"
        style = "shown" if number == shown else "ab"[number % 2]
        told = f"document {number}: {counted(length, 'token')}"
        yield f'<path class="{style}" d="M{low} {low}V{high}H{high}Z"><title>{told}</title></path>'
        start += length
    yield "</svg><figcaption>attention: each token (down) sees itself and those before it (across) in its own document"
    yield "</figcaption></figure>\n"


def _document(document: DocumentView) -> Iterator[str]:
    at = document.position
    yield f'<article id="document-{at}" aria-labelledby="title-{at}">\n'
    yield f'<h2 id="title-{at}"><bdi>{escape(document.title)}</bdi></h2>\n'
    if document.place:
        yield f'<p class="place"><bdi>{escape(document.place)}</bdi></p>\n'
    if document.detail:
        yield f'<p class="note">{escape(document.detail)}</p>\n'
    counts = [("tokens", document.tokens), ("visual", document.visual_tokens), ("trained on", document.target_tokens)]
    counts += [("padding", document.padding)] if document.padding else []
    items = "".join(f"<li>{name} <b>{count:,}</b></li>" for name, count in counts)
    yield f'<ul class="counts">{items}<li>{escape(position_words(document.positions))}</li></ul>\n'
    text = "".join(f'<span class="{style}">{escape(text)}</span>' for text, style in document.pieces())
    yield f'<div class="pane" tabindex="0" role="region" aria-label="text of document {at}">{text}</div>\n'
    if document.media:
        yield '<div class="media">\n'
        for medium in document.media:
            yield from _medium(medium)
        yield "</div>\n"
    yield "</article>\n"


def _medium(medium: MediumView) -> Iterator[str]:
    yield "<figure>"
    if medium.loudness is not None and len(medium.loudness):
        yield _waveform(medium.loudness)
    if medium.pictures:
        yield '<div class="strip">' if len(medium.pictures) > 1 else ""
        for picture in some_of(medium.pictures, FRAMES):
            height, width = picture.pixels.shape[:2]
            told = escape(f"{medium.kind} {medium.number}" + (f", {picture.caption}" if picture.caption else ""))
            data = base64.b64encode(png_bytes(picture.pixels)).decode()
            source = f"data:image/png;base64,{data}"
            under_it = f'<span class="under">{escape(picture.caption)}</span>' if picture.caption else ""
            yield f'<details><summary><img src="{source}" width="{width}" height="{height}" alt="{told}" '
            yield f'style="width:auto;height:auto">{under_it}</summary></details>'
        yield "</div>" if len(medium.pictures) > 1 else ""
    name, _, facts = medium.label.partition(": ")
    rest = under(medium, FRAMES)
    yield f"<figcaption><b>{escape(name)}</b> {escape(facts)}"
    yield f"<br><bdi>{escape(rest)}</bdi>" if rest else ""
    yield "</figcaption></figure>\n"


def _waveform(loudness: np.ndarray) -> str:
    bars = "".join(
        f'<rect class="sound" x="{3 * at}" y="{24 - 23 * level:.1f}" width="2" height="{2 * (23 * level) + 2:.1f}"/>'
        for at, level in enumerate(levels(loudness, 100))
    )
    return f'<svg width="300" height="48" viewBox="0 0 300 48" role="img" aria-label="loudness">{bars}</svg>'
