"""The dataset card of an output: OUT/README.md, by which the Hugging Face hub and `datasets.load_dataset(OUT)` know it.

Its YAML header says which files are data; without, `datasets` guesses by what most files are, and takes the manifest
for a data set of one row. The text is what a stranger wants to know, from the manifest and the statistics alone: no
path, no name of a machine.

`pack` does not write it. What `pack` writes stands under a digest of the manifest and is nobody's to edit; a card is to
be edited (what the data are, their licence), and stays where an output is overwritten. So it is asked for, and a card
that somebody edited is not written over: the last line has the sha256 of the others.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from neatpack.errors import OutputError
from neatpack.format.manifest import FORMAT, INDEX, PLAIN, SOURCES, Codecs, Manifest, spelled
from neatpack.storage.files import parse_json, read_inside, sha256_of, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import column_sum, read_parquet

from ..config import UserError
from ..safe import harmless_line
from .sources import MOST_BYTES
from .words import counted, percent, size, times_taken

FILE = "README.md"
DATASETS = "stats/datasets.parquet"
_MARK = re.compile(rb"<!-- neatpack export hub-card: ([0-9a-f]{64}) -->\n\Z")
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")  # the hub's words

TEXT = """\
---
license: unknown  # under which licence may this be used?
tags:
- neatpack
- sequence-packing
- webdataset
size_categories:
- {size_category}
configs:
- config_name: default
  data_files:
  - split: {split}
    path: shards/*.tar
---

# Packs for {processor}

(What the data are, where they come from, and how they may be used.)

Conversations, tokenized and packed into training sequences by neatpack {neatpack}. Token ids, labels, positions and
resized pixels are final: they fit the processor that they were made by, and models that share its tokenizer and vision
input.

| | |
|---|---|
{facts}

## Mixture

| data set | rows | samples packed | tokens | share of tokens | in an epoch |
|---|---|---|---|---|---|
{mixture}

## How to load

Here `packed` is a folder with these files; `hf download OWNER/NAME --repo-type dataset --local-dir packed` gets them
from the hub.

neatpack gives batches for `model(**batch)`, balanced over ranks, shuffled, and resumable (`pip install neatpack`):

```python
from neatpack import PackedShards

for batch in PackedShards("packed", seed=0).loader(batch_size=1):
    break
```

Hugging Face `datasets` takes the folder, or OWNER/NAME on the hub:

```python
from datasets import load_dataset

for pack in load_dataset("packed", split="{split}", streaming=True):
    print(pack["__key__"], len(pack["input_ids.npy"]), len(pack["json"]["documents"]))
    break
```

`webdataset`:

```python
import glob

import webdataset

for pack in webdataset.WebDataset(sorted(glob.glob("packed/shards/*.tar")), shardshuffle=False).decode():
    print(pack["__key__"], pack["input_ids.npy"].shape, len(pack["json"]["documents"]))
    break
```

A pack has several documents end to end (`seq_lens.npy`), which must not see each other. `labels.npy` are shifted
already: label i is the token after input i, and -100 where nothing is trained. Pixels are bytes: `*_table.npy` says
what each stands for.{coded}
"""
CODED = """

The pixels are stored coded ({codec}), and neatpack restores them. For other readers, pack with `--pixels u8`."""


def write_card(out: Location, manifest: Manifest, *, overwrite: bool) -> Location:
    """Write the card of a finished output; a card that somebody edited only if `overwrite`."""
    path = out / FILE
    if path.exists() and not overwrite and not _is_untouched(path.read_bytes()):
        raise UserError(
            f"{path}: is there, and edited or not of `neatpack export`; move it, or give --overwrite",
            code="file-exists",
            path=str(path),
        )
    text = _card(out, manifest).encode()
    with write_whole(path) as file:
        file.write(text + f"\n<!-- neatpack export hub-card: {hashlib.sha256(text).hexdigest()} -->\n".encode())
    return path


def _is_untouched(content: bytes) -> bool:
    mark = _MARK.search(content)
    return mark is not None and hashlib.sha256(content[: mark.start() - 1]).hexdigest() == mark[1].decode()


def _card(out: Location, manifest: Manifest) -> str:
    for name in (INDEX, DATASETS):
        if sha256_of(out / name) != manifest.files[name]:
            raise OutputError(
                f"{out}/{name}: sha256 differs from the manifest's; run `neatpack verify`",
                code="output-damaged",
                out=str(out),
                file=name,
            )
    processor = _processor(out) or f"the family {manifest.family['name']}"
    return TEXT.format(
        size_category=_size_category(manifest.counts.packs),
        split="validation" if manifest.identity.config["split"] == "holdout" else "train",
        processor=_line(processor).replace("<", "\\<"),
        neatpack=manifest.neatpack,
        facts=_table(_facts(out, manifest, processor)),
        mixture=_table(_mixture(read_parquet(out / DATASETS).to_pylist())),
        coded=_coded(manifest.pixels.codec),
    )


def _coded(codecs: Codecs) -> str:
    if codecs == PLAIN:
        return ""
    return CODED.format(codec=spelled(codecs))


def _processor(out: Location) -> str:
    """Its name, if the output knows it."""
    try:
        return str(parse_json(read_inside(out, SOURCES, MOST_BYTES))["processor"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # sources.json may be left out when an output is given away


def _facts(out: Location, manifest: Manifest, processor: str) -> list[tuple[str, ...]]:
    counts, config = manifest.counts, manifest.identity.config
    index = read_parquet(out / INDEX, columns=["num_images", "num_videos", "num_audios", "fake_tokens"])
    num_fakes = sum(tokens > 0 for tokens in index["fake_tokens"].to_pylist())
    media = [
        counted(column_sum(index["num_images"]) - num_fakes, "image"),
        counted(column_sum(index["num_videos"]), "video"),
        counted(column_sum(index["num_audios"]), "sound"),
    ]
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in counts.skipped.items())
    num_bytes = sum(shard.bytes for shard in manifest.shards)
    full = percent(counts.tokens, counts.packs * config["pack_size"])
    return [
        ("packs", f"{counts.packs:,} of at most {config['pack_size']:,} tokens, {full} full"),
        ("shards", f"{counted(len(manifest.shards), 'webdataset tar')}, {size(num_bytes)}"),
        ("tokens", f"{counts.tokens:,}, {percent(counts.visual_tokens, counts.tokens)} of them visual, "
                   f"{percent(counts.target_tokens, counts.tokens)} trained on"),
        ("media", ", ".join(media)),
        ("samples", f"{counts.samples:,} of {counted(counts.rows, 'row')}: {counts.packed:,} packed, "
                    f"{counts.samples - counts.packed:,} skipped" + (f" ({skipped})" if skipped else "")),
        ("trained on", f"{config['train_on']}, reasoning: {config['reasoning']}"),
        ("model family", str(manifest.family["name"])),
        ("processor", f"{processor} (fingerprint {manifest.identity.processor})"),
        ("pixels", f"resized by {manifest.pixels.resize}, stored as {spelled(manifest.pixels.codec)}"),
        ("made by", ", ".join([f"neatpack {manifest.neatpack}"] + [f"{name} {version}" for name, version
                                                                  in manifest.identity.versions.items()])),
        ("format, fingerprint", f"{FORMAT}, {manifest.fingerprint}"),
    ]  # fmt: skip


def _mixture(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    total = sum(line["tokens"] for line in lines)
    return [
        (line["dataset"], f"{line['rows']:,}", f"{line['packed']:,}", f"{line['tokens']:,}",
         percent(line["tokens"], total), times_taken(line["ratio"]))
        for line in lines
    ]  # fmt: skip


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of a Markdown table. Names are the user's, and may have anything in them."""
    return "\n".join("| " + " | ".join(map(_escaped, row)) + " |" for row in rows)


def _escaped(text: str) -> str:
    return re.sub(r"([|<`*_\[])", r"\\\1", _line(text))


def _line(text: str) -> str:
    return harmless_line(" ".join(text.split()))


def _size_category(number: int) -> str:
    """21 -> "n<1K", 1000 -> "1K<n<10K"."""
    step = max(0, len(str(number)) - 3)
    if step == 0:
        return f"n<{_SIZES[0]}"
    return f"{_SIZES[step - 1]}<n<{_SIZES[step]}" if step < len(_SIZES) else f"n>{_SIZES[-1]}"
