"""The sections of a report, each as HTML; "" where there is nothing to say."""

import json
from collections.abc import Sequence
from typing import Any

from ...records import REASONS
from ...safe import harmless_html as escape
from ...shard.composition import Together
from ...shard.words import counted, percent, size
from .charts import bars, curves, folded, legend, numbers, share, table, ticks
from .figures import Balance, Figures
from .gallery import Shown

FIRST_RANKS = 8  # where the slider stands at first, or the next below


def section(name: str, title: str, *parts: str) -> str:
    inner = f'<h2 id="{name}-title">{escape(title)}</h2>{"".join(parts)}'
    return f'<section id="{name}" aria-labelledby="{name}-title">{inner}</section>'


def said(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def head(figures: Figures) -> str:
    manifest, counts = figures.manifest, figures.manifest.counts
    config = manifest.identity.config
    skipped = sum(counts.skipped.values())
    repeats = counts.samples - counts.rows
    fill = percent(counts.tokens, counts.packs * config["pack_size"])
    media = [counted(figures.sums["num_images"] - figures.num_fakes, "image")]
    media += [counted(figures.sums[key], noun) for key, noun in (("num_videos", "video"), ("num_audios", "sound"))
              if figures.sums[key]]  # fmt: skip
    tiles = [
        ("packed", f"{counts.packed:,}", f"of {counted(counts.samples, 'sample')} = {counted(counts.rows, 'row')} + "
                                         f"{counted(repeats, 'repeat')}"),
        ("skipped", f"{skipped:,}", f"{percent(skipped, counts.samples)} of the samples"),
        ("packs", f"{counts.packs:,}", f"of {config['pack_size']:,} tokens, {fill} full"),
        ("tokens", f"{counts.tokens:,}", f"{counts.tokens / max(1, counts.packed):,.0f} per packed sample"),
        ("target tokens", f"{counts.target_tokens:,}",
         f"{percent(counts.target_tokens, counts.tokens)} of the tokens are trained on"),
        ("visual tokens", f"{counts.visual_tokens:,}", f"{percent(counts.visual_tokens, counts.tokens)} of the tokens"),
        ("media", f"{sum(figures.sums[f'num_{kind}s'] for kind in ('image', 'video', 'audio')) - figures.num_fakes:,}",
         ", ".join(media)),
        ("on disk", size(sum(shard.bytes for shard in manifest.shards)), counted(len(manifest.shards), "shard")),
    ]  # fmt: skip
    shown = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(more)}</span></div>'
        for name, value, more in tiles
    )
    names = list(manifest.identity.inputs)
    of = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    split = "the rows held out for validation" if config.get("split") == "holdout" else ""
    told = [counted(len(names), "data set"), f"for {manifest.family.get('name')}", f"by neatpack {manifest.neatpack}"]
    words = escape(", ".join(filter(None, [*told, split])))
    return (
        f"<h1>{escape(of) or 'No data sets'}</h1>"
        f'<p class="soft">{words}; <code>{escape(manifest.fingerprint)}</code></p><div class="tiles">{shown}</div>'
    )


def lengths(figures: Figures) -> str:
    found = figures.lengths
    if found is None:
        return ""
    chart = bars(found, noun="document", title="Documents by their tokens")
    caption = f"<figcaption>tokens of a document, two bars to the double. {legend(list(found.counts))}</figcaption>"
    return section("lengths", "Lengths", f"<figure>{chart}{caption}</figure>", numbers(found, of="tokens"))


def packs(figures: Figures) -> str:
    """Fill, and visual tokens, side by side."""
    if figures.fill is None:
        return ""
    counts, pack_size = figures.manifest.counts, figures.manifest.identity.config["pack_size"]

    def percents(number: float) -> str:
        return f"{number:g}%"

    mean = f"{percent(counts.tokens, counts.packs * pack_size)} on average, the emptiest {figures.lowest_fill:.1%}."
    chart = bars(figures.fill, noun="pack", title="Packs by how full they are", label=percents)
    caption = f"<figcaption>tokens of a pack / {pack_size:,}</figcaption>"
    parts = [section("fill", "How full packs are", said(mean), f"<figure>{chart}{caption}</figure>",
                     numbers(figures.fill, of="full", label=percents))]  # fmt: skip
    if figures.visual is not None:
        fakes = f"; {counted(figures.num_fakes, 'pack')} with a fake image" if figures.num_fakes else ""
        mean = f"{counts.visual_tokens / counts.packs:,.0f} on average{fakes}."
        chart = bars(figures.visual, noun="pack", title="Packs by their visual tokens")
        caption = "<figcaption>visual tokens of a pack</figcaption>"
        parts.append(section("visual", "Visual tokens per pack", said(mean), f"<figure>{chart}{caption}</figure>",
                             numbers(figures.visual, of="visual tokens")))  # fmt: skip
    return f'<div class="pair">{"".join(parts)}</div>'


def balance_words(found: Balance) -> dict[str, str]:
    """What the page shows of a number of ranks, by the element that shows it."""
    return {
        "ranks": counted(found.ranks, "rank"),
        "visual": f"{found.visual:.3f}",
        "worst": f"{found.worst_visual:.3f}",
        "cost": f"{found.cost:.3f}",
        "steps": f"{found.steps:,}",
        "left": f"{found.left_over:,}",
    }


def balance(figures: Figures) -> str:
    found, group_size = figures.balance, figures.manifest.identity.config["group_size"]
    if len(found) < 2:
        return ""
    lines = [balance_words(each) for each in found]
    start = max(at for at, each in enumerate(found) if each.ranks <= FIRST_RANKS)
    series = {"visual tokens": [each.visual for each in found], "modelled cost": [each.cost for each in found]}
    highest = max(1.05, *(max(values) for values in series.values()))
    chart = curves(series, highest=highest, title="Slowest rank / mean, by the number of ranks")
    shown = [at for at, each in enumerate(found) if each.ranks & (each.ranks - 1) == 0]
    shown = shown if len(shown) <= 7 else [at for at in shown if found[at].ranks in (1, 4, 16, 64, 256, 1024, 4096)]
    places = [(100 * at / (len(found) - 1), f"{found[at].ranks:,}") for at in shown]
    if shown[-1] != len(found) - 1:
        if 100 - places[-1][0] < 8:
            places.pop()
        places.append((100.0, f"{found[-1].ranks:,}"))
    facts = {
        "visual": "slowest rank / mean, visual tokens, mean over steps",
        "worst": "the same of the worst step",
        "cost": "slowest rank / mean, modelled cost",
        "steps": "steps of one pack per rank",
        "left": "packs left over",
    }
    told = "".join(
        f'<div><b id="balance-{name}">{escape(lines[start][name])}</b><span>{escape(words)}</span></div>'
        for name, words in facts.items()
    )
    columns = ["ranks", *facts]
    rows = [[f"{each.ranks:,}", *(line[name] for name in facts)] for each, line in zip(found, lines, strict=True)]
    data = json.dumps(lines, separators=(",", ":")).replace("<", "\\u003c")
    return section(
        "balance", "Balance of a training step",
        said("A step takes one pack per rank, and waits for the rank that has most to do; 1.000 is ideal. The order of "
             f"packs is made for numbers of ranks that divide the group size, {group_size:,}. Packs are taken in that "
             "order here; PackedShards shuffles whole groups, and blocks in them, which leaves such steps alike."),
        f'<div class="slider"><label for="ranks">data-parallel ranks</label><output id="balance-ranks" for="ranks">'
        f'{escape(lines[start]["ranks"])}</output></div>'
        f'<input type="range" id="ranks" min="0" max="{len(found) - 1}" step="1" value="{start}">'
        f'<div class="facts" aria-live="polite">{told}</div>'
        f'<figure><div class="chart"><span class="top">{highest:.3f}</span>{chart}{ticks(places)}</div>'
        f"<figcaption>slowest rank / mean (1.000 at the bottom), by the number of ranks. {legend(list(series))}"
        "</figcaption></figure>",
        folded("Numbers", table(columns, rows)),
        f'<script type="application/json" id="balance-lines">{data}</script>',
    )  # fmt: skip


def sharing(found: Sequence[Together]) -> str:
    """Which rows share packs, against chance."""
    rows = [
        [each.kind, f"{each.pairs:,}", f"{each.together:,}", f"{each.by_chance:,.1f}",
         "" if each.times_chance is None else f"{each.times_chance:.2f}"]
        for each in found if each.pairs
    ]  # fmt: skip
    if not rows:
        return ""
    columns = ["pairs of", "pairs", "in one pack", "by chance", "times chance"]
    words = "Copies of a row and rows of one group avoid each other; neighbours meet by chance."
    return section("sharing", "Which rows share packs", said(words), table(columns, rows))


def mixture(figures: Figures) -> str:
    """Asked and packed, by samples and by tokens; the last line is the manifest's."""
    found, counts = figures.datasets, figures.manifest.counts
    if not found:
        return ""
    tokens = sum(line["tokens"] for line in found)
    columns = ["data set", "asked", "rows", "samples", "packed", "of packed", "tokens", "of tokens"]
    rows = [
        [
            escape(line["dataset"]), _asked(line), f"{line['rows']:,}", f"{line['samples']:,}", f"{line['packed']:,}",
            share(line["packed"], counts.packed), f"{line['tokens']:,}", share(line["tokens"], tokens),
        ]
        for line in found
    ]  # fmt: skip
    for name, key in (("fake images", "fake_tokens"), ("padding", "padding_tokens")):
        if figures.sums[key]:
            rows.append([f"({name})", "", "", "", "", "", f"{figures.sums[key]:,}", ""])
    total = ["total", "", f"{counts.rows:,}", f"{counts.samples:,}", f"{counts.packed:,}", "", f"{counts.tokens:,}", ""]
    return section("mixture", "The mixture, asked and packed", table(columns, rows, total=total))


def _asked(line: dict[str, Any]) -> str:
    if line["weight"] is not None:
        return f"{line['weight']:.1%} of tokens"
    return "each row once" if line["ratio"] == 1 else f"{line['ratio']:.3g} times"


def skips(figures: Figures) -> str:
    counts = figures.manifest.counts
    if not counts.skipped:
        return section("skipped", "Skipped", said("Nothing: every sample is in a pack."))
    rows = []
    measured = sum(line["tokens"] for line in figures.datasets) + sum(counts.skipped_tokens.values())
    for reason in REASONS:
        if reason in counts.skipped:
            examples = "".join(
                f"<li>{escape(each.dataset)} row {each.row:,}{escape(f' ({each.id})') if each.id else ''}"
                f"{escape(f': {each.detail}') if each.detail else ''}</li>"
                for each in figures.examples.get(reason, [])
            )
            number = counts.skipped[reason]
            words = escape(REASONS[reason]) + (folded("examples", f"<ul>{examples}</ul>") if examples else "")
            lost = counts.skipped_tokens.get(reason, 0)
            rows.append([f"<code>{reason}</code>", f"{number:,}", share(number, counts.samples), f"{lost:,}",
                         share(lost, measured), words])  # fmt: skip
    skipped, lost = sum(counts.skipped.values()), sum(counts.skipped_tokens.values())
    total = ["total", f"{skipped:,}", share(skipped, counts.samples), f"{lost:,}", share(lost, measured),
             f"of {counted(counts.samples, 'sample')} and {counted(measured, 'measured token')}"]  # fmt: skip
    shown = table(["reason", "samples", "of all", "tokens", "of all", "meaning"], rows, texts=(5,), total=total)
    fitted = ", ".join(f"{number:,} {word}" for word, number in counts.fitted.items())
    more = said(f"Packed, but cut to fit a pack: {fitted}.") if fitted else ""
    where = '<p class="soft"><code>neatpack skipped OUT</code> lists each of them, with its file and line.</p>'
    return section("skipped", "Skipped", where, shown, more)


def warnings(figures: Figures) -> str:
    found = figures.manifest.warnings
    if not found:
        return ""
    lines = "".join(f"<li>{escape(each)}</li>" for each in found)
    return section("warnings", "Warnings", said("About the data, by the run that packed them."), f"<ul>{lines}</ul>")


def media(figures: Figures) -> str:
    if figures.sizes is None:
        return ""
    kinds = {each.kind: {"image": "picture"}.get(each.kind, each.kind) for each in figures.resized}
    noun = next(iter(kinds.values())) if len(kinds) == 1 else "item"
    chart = bars(figures.sizes, noun=noun, title="Pictures and videos by size", side_by_side=True)
    caption = (
        "<figcaption>pictures and videos by the side of the square of the same area, in pixels. "
        f"{legend(list(figures.sizes.counts))}</figcaption>"
    )
    rows = [
        [
            escape(each.dataset), each.kind, f"{each.count:,}", _sides(each.before), _sides(each.after),
            share(each.smaller, each.count), share(each.larger, each.count),
        ]
        for each in figures.resized
    ]  # fmt: skip
    names = ["data set", "kind", "in packs", "median size", "median resized", "smaller", "larger"]
    total = ["total", "", f"{sum(each.count for each in figures.resized):,}", "", "", "", ""]
    return section("media", "Sizes of media", f"<figure>{chart}{caption}</figure>",
                   table(names, rows, total=total if len(rows) > 1 else ()),
                   numbers(figures.sizes, of="pixels"))  # fmt: skip


def _sides(sides: tuple[int, int]) -> str:
    height, width = sides
    return f"{width:,} × {height:,}"


def gallery(documents: Sequence[Shown]) -> str:
    if not documents:
        return ""
    shown = "".join(map(_document, documents))
    return section(
        "documents", "Some documents", said("Chosen by a fixed seed."), f'<div class="gallery">{shown}</div>'
    )


def _document(each: Shown) -> str:
    again = f", repeat {each.repeat}" if each.repeat else ""
    name = f"{each.dataset} row {each.row:,}{again}" + (f" ({each.id})" if each.id else "")
    visual = f", {each.visual_tokens:,} of them visual" if each.visual_tokens else ""
    facts = f"pack {each.pack:,}, position {each.position:,}; {counted(each.tokens, 'token')}{visual}"
    facts += f"; {each.detail}" if each.detail else ""
    turns = "".join(f"<dt>{escape(role)}</dt><dd>{escape(text)}</dd>" for role, text in each.turns)
    pictures = "".join(f'<img src="{escape(uri)}" alt="">' for uri in each.pictures)
    text = f"<dl>{turns}</dl>" if turns else '<p class="soft">Its row is not here to be read.</p>'
    return f'<article><h3>{escape(name)}</h3><p class="soft">{escape(facts)}</p>{pictures}{text}</article>'


def times(figures: Figures) -> str:
    total = sum(seconds for _, seconds in figures.stages)
    if not total:
        return ""
    rows = [[escape(name), _seconds(seconds), share(seconds, total)] for name, seconds in figures.stages]
    shown = table(["stage", "time", "of all"], rows, total=["total", _seconds(total), ""])
    return section("times", "Time by stage", said("Of the last run."), shown)


def _seconds(seconds: float) -> str:
    """75.2 -> "1 min 15 s"; below a minute with a tenth."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def made_from(figures: Figures) -> str:
    identity = figures.manifest.identity
    rows = [["processor", identity.processor]]
    rows += [[f"config.{key}", json.dumps(value, ensure_ascii=False)] for key, value in identity.config.items()]
    rows += [[f"{key}", value] for key, value in identity.versions.items()]
    rows += [[f"code.{key}", str(value)] for key, value in identity.code.items()]
    lines = [[f"<code>{escape(key)}</code>", f"<code>{escape(value)}</code>"] for key, value in rows]
    return section(
        "made-from", "Made from", folded("Config, versions and code", table(["key", "value"], lines, texts=(1,)))
    )
