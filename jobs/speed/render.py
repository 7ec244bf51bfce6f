"""Rendering packs and writing them as shards are, against the fastest exact decode and resize of the same media.

Pictures against simplejpeg (Pillow where the file is no JPEG of three colours) and torch, videos against PyAV and
torch, sounds against PyAV and the features of transformers: nobody can do less. Ours is all of it: decode, resize,
patches, labels, positions, tar, sha256 and crc32, in packs of 16 documents, with pixels stored as by default and as u8.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import av
import numpy as np
import simplejpeg
import torch
from PIL import Image

from neatpack.format.manifest import PLAIN
from neatpack.format.members import Document, write_pack
from neatpack.format.pixels import PixelEncoder
from neatpack.pipeline.codecs import DEFAULT
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.families.restore import RuleRenderer, image_file
from neatpack.pipeline.families.rules import SoundFeatures
from neatpack.pipeline.media.image import FORMATS
from neatpack.pipeline.media.pixels import resize_torch
from neatpack.pipeline.records import Measured, MeasuredMedia
from neatpack.pipeline.render.pack import build_pack
from neatpack.pipeline.render.sample import expanded
from neatpack.pipeline.shard.writer import with_own_bytes
from neatpack.storage.files import Hashed

from .data import good_rows, meta_of, renderable
from .side_by_side import Options, Row, side_by_side

DOCUMENTS = 16  # in a pack
WANTED = {"image": 1.25}  # of the others there is no figure yet: they are told
VIDEO_FPS = 1.0  # where the processor's own would take every frame


def rows(options: Options) -> Iterator[Row]:
    torch.set_num_threads(1)
    family = family_for(ProcessorKey(processor=options.processor, video_fps=VIDEO_FPS))
    good = [measured for _, measured in good_rows(meta_of(options), family, options.folder)]
    for kind, bare in BARE.items():
        own = [m for m in good if m.media and all(medium.ref.kind == kind for medium in m.media)]
        samples = renderable(own, family)
        if not samples:
            continue
        media = [medium for sample in samples for medium in sample.media]
        ways = {"by default": DEFAULT, "u8": PLAIN} if kind != "audio" else {"by default": DEFAULT}
        encoders = {
            name: PixelEncoder(
                layout=family.media, codecs=way, renderer=RuleRenderer(family.image, "torch") if family.image else None
            )
            for name, way in ways.items()
        }
        tar = options.folder / f"{kind}.tar"
        sides: dict[str, Callable[[], object]] = {
            name: partial(write, tar, samples, family, encoder) for name, encoder in encoders.items()
        }
        # A shard is a new file: no run is to pay for the memory of the one before, which the system takes back.
        removed = partial(tar.unlink, missing_ok=True)
        found = side_by_side(sides | {"bare": partial(each, bare, media, family)}, options.repeats, removed)
        per_medium = {name: seconds / len(media) for name, seconds in found.items()}
        for name in sides:
            what = f"render + write / bare decode, {len(media)} {kind}s, {name}"
            yield Row(what=what, figure=found[name] / found["bare"], wanted=WANTED.get(kind), of=per_medium)
        yield Row(what=f"render + write, of each {kind}", figure=1000 * per_medium["by default"], unit="ms",
                  of=per_medium)  # fmt: skip


def write(path: Path, samples: list[Measured], family: Family, encoder: PixelEncoder) -> None:
    """As a shard is written, but for what is done once for each."""
    with open(path, "wb") as file:
        hashed = Hashed(file)
        for number, start in enumerate(range(0, len(samples), DOCUMENTS)):
            chosen = samples[start : start + DOCUMENTS]
            if encoder.keeps_sources:
                chosen = [dataclasses.replace(m, media=tuple(map(with_own_bytes, m.media))) for m in chosen]
            rendered = [expanded(sample, family, "torch") for sample in chosen]
            pack = build_pack(number, list(map(document_of, chosen)), rendered, family, fake_image=True)
            sources = [(medium.ref.kind, image_file(medium)) for sample in chosen for medium in sample.media]
            stored = encoder.encode(pack.arrays, sources if encoder.keeps_sources else ())
            write_pack(hashed, hashed.size, pack, stored, encoder.codecs)


def document_of(sample: Measured) -> Document:
    counts = {f"num_{kind}s": count for kind, count in sample.num_media.items()}
    return Document(dataset="", row=0, repeat=0, id="", form="chat", loss="", targets=(), tokens=sample.tokens,
                    visual_tokens=sample.visual_tokens, **counts)  # fmt: skip


def each(work: Callable[[MeasuredMedia, Family], object], media: list[MeasuredMedia], family: Family) -> None:
    for medium in media:
        work(medium, family)


def bare_image(medium: MeasuredMedia, family: Family) -> object:
    content = Path(medium.ref.path).read_bytes()
    if simplejpeg.is_jpeg(content) and simplejpeg.decode_jpeg_header(content)[2] == "YCbCr":
        pixels = simplejpeg.decode_jpeg(content)
    else:
        pixels = np.asarray(Image.open(medium.ref.path, formats=FORMATS).convert("RGB"))
    return resize_torch(pixels, medium.size)


def bare_video(medium: MeasuredMedia, family: Family) -> object:
    wanted = set(medium.frames)
    resized = []
    with av.open(medium.ref.path, metadata_errors="ignore") as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                resized.append(resize_torch(frame.to_ndarray(format="rgb24"), medium.size))
            if number == medium.frames[-1]:
                break
    return resized


def bare_sound(medium: MeasuredMedia, family: Family) -> object:
    rule = family.sound
    assert isinstance(rule, SoundFeatures)
    with av.open(medium.ref.path, metadata_errors="ignore") as container:
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=rule.sampling_rate)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    samples = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    return rule.extractor(samples, sampling_rate=rule.sampling_rate, padding="longest", truncation=False)


BARE: Mapping[str, Callable[[MeasuredMedia, Family], object]] = {
    "image": bare_image,
    "video": bare_video,
    "audio": bare_sound,
}
