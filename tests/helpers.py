"""Small data sets for tests, and ways to look at outputs."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from places import DEMO_PROCESSOR, RECIPE_PACKAGES, ROOT, SHARED
from transformers import AutoConfig, Qwen2_5_VLModel, Qwen2VLModel, Qwen3VLModel

from jobs.fuzzing.output import sign, write_indexes
from neatpack import neat_packed_vlm_collater
from neatpack.loaders.reader import ShardReader
from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.ingest.corpus import Corpus
from neatpack.pipeline.ingest.lines import Source
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.layout import split_media
from neatpack.pipeline.manifest import Manifest, shard_name
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.plan.assign import SCHEMA as PLAN_SCHEMA, Plan
from neatpack.pipeline.records import TOKEN_TYPES, MediaRef, Pack
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.codec import END, read_pack
from neatpack.pipeline.shard.restoring import PixelDecoder
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

__all__ = ["DEMO_PROCESSOR", "RECIPE_PACKAGES", "ROOT", "SHARED"]  # for others, too


def picture(path: Path, height: int, width: int, *, seed: int = 0, mode: str = "RGB", **save: Any) -> Path:
    """Smooth colours with noise: compresses like a photo and tells rows from columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_kept = all(isinstance(value, Hashable) for value in save.values())
    draw = _drawn if is_kept else _drawn.__wrapped__
    path.write_bytes(draw(path.suffix, height, width, seed, mode, tuple(save.items())))
    return path


@lru_cache(maxsize=1024)  # many tests draw the same ones, and to compress noise takes long
def _drawn(suffix: str, height: int, width: int, seed: int, mode: str, save: tuple[tuple[str, Any], ...]) -> bytes:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    channels = [(y * (3 + c) + x * (5 - c)) % 256 for c in range(3)]
    pixels = np.stack(channels, axis=-1) // 2 + rng.integers(0, 100, (height, width, 3))
    image = Image.fromarray(pixels.astype(np.uint8))
    if mode == "RGBA":
        image.putalpha(Image.fromarray(((x + y) % 256).astype(np.uint8)))
    elif mode != "RGB":
        image = image.convert(mode)
    content = io.BytesIO()
    content.name = f"picture{suffix}"  # by which Pillow knows the format
    image.save(content, **dict(save))
    return content.getvalue()


class TinyData:
    """A data set in the making: rows of messages/images, written as one JSONL with its meta."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[Any] = []

    def text(self, question: str, answer: str) -> "TinyData":
        return self.row([("user", question), ("assistant", answer)])

    def image(self, height: int, width: int, question: str = "<image>What?", answer: str = "That.") -> "TinyData":
        name = f"{len(self.rows)}.png"
        picture(self.folder / name, height, width, seed=len(self.rows))
        return self.row([("user", question), ("assistant", answer)], images=[name])

    def row(self, turns: list[tuple[str, str]], **columns: Any) -> "TinyData":
        self.rows.append({"messages": [{"role": role, "content": text} for role, text in turns], **columns})
        return self

    def write(self, *, ratio: float = 1.0, **entry: Any) -> Path:
        lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in self.rows)
        (self.folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
        meta = {"tiny": {"file_name": "rows.jsonl", "media_dir": ".", "sample_ratio": ratio} | entry}
        (self.folder / "meta.json").write_text(json.dumps(meta))
        return self.folder / "meta.json"


def mixed_rows(data: TinyData, num_text: int = 30, num_images: int = 12) -> TinyData:
    """Rows of many lengths, some with a picture."""
    for i in range(num_text):
        data.text(f"Count to {i}.", " ".join(map(str, range(1, i * 5 + 2))))
    for i in range(num_images):
        data.image(40 + 17 * i, 60 + 11 * (i % 5), answer="It is number " + str(i) * (i + 1))
    return data


def packed_rows(folder: Path, num_text: int, num_images: int, *, times: int = 1, **config: Any) -> Path:
    """An output of `mixed_rows`, made in a folder."""
    data = TinyData(folder / "data")
    for _ in range(times):
        mixed_rows(data, num_text, num_images)
    run_pack(tiny_config(data.write(), folder / "out", **config))
    return folder / "out"


def many_packs(folder: Path) -> Path:
    """Between 30 and 40 small packs, in groups of 4."""
    out = packed_rows(folder, 14, 10, times=6, pack_size=280, group_size=4)
    assert len(list(packs_of(out))) > 30
    return out


def eight_packs(folder: Path) -> Path:
    """Four steps of two ranks, as trainers get them by default: pictures are decoded when they are loaded."""
    return packed_rows(folder, 16, 8, pack_size=310, group_size=2, pixels=PackConfig().pixels)


def corpus_of(name: str, copies: list[int]) -> Corpus:
    """A corpus of as many rows as there are numbers of copies; nobody reads its file."""
    source = Source(files=("absent.jsonl",), digests=("d1",), digest="d1", parts=())
    taken = np.array(copies, np.int32)
    return Corpus(
        dataset=Dataset(name=name, files=("absent.jsonl",)),
        source=source,
        split="train",
        is_held=np.zeros(len(copies), np.bool_),
        copies=taken,
        is_measured=taken > 0,
    )


def plan_of(*lines: dict[str, Any]) -> Plan:
    """A plan by hand: packed lines in pack order, then skipped ones; what a line is silent about is 0 or ""."""
    blank = {field.name: "" if field.type == "large_string" else 0 for field in PLAN_SCHEMA}
    packs = [line.get("pack", 0) for line in lines]
    places = [-1 if pack < 0 else packs[:index].count(pack) for index, pack in enumerate(packs)]
    whole = [blank | {"position": place} | line for place, line in zip(places, lines, strict=True)]
    return Plan(pa.Table.from_pylist(whole, schema=PLAN_SCHEMA))


def tiny_config(meta: Path, out: Path, **overrides: Any) -> PackConfig:
    """Rows that are skipped are mostly what a test is about: what is left is packed."""
    values = {"meta": str(meta), "processor": str(DEMO_PROCESSOR), "out": str(out), "pack_size": 512,
              "engine": "inline", "shard_mb": 1, "group_size": 4, "pixels": "u8",
              "keep_going": True} | overrides  # fmt: skip
    return PackConfig(**values)


def files_of(out: Path) -> dict[str, bytes]:
    """Everything in an output but its work folder, and its report, which may tell how long the run took."""
    paths = (path for path in sorted(out.rglob("*")) if path.is_file())
    inner = {path.relative_to(out): path for path in paths if "report.html" not in path.name}
    return {str(name): path.read_bytes() for name, path in inner.items() if name.parts[0] != "work"}


def packs_of(out: Path) -> Iterator[Pack]:
    """The packs of an output, by its index, their pixels restored."""
    pixels = PixelDecoder(Manifest.read(out))
    for line in pq.read_table(out / "index.parquet").to_pylist():
        content = (out / "shards" / line["shard"]).read_bytes()
        members = {m["name"]: content[m["offset"] : m["offset"] + m["size"]] for m in line["members"]}
        yield read_pack(members, pixels)


@lru_cache(maxsize=1)  # a test asks it again and again, of one processor, whose config takes 50 ms to read
def bare_model(processor: str) -> Any:
    """A model without weights: get_rope_index needs its config only."""
    config = AutoConfig.from_pretrained(processor)
    models = {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel, "qwen3_vl": Qwen3VLModel}
    model = models[config.model_type].__new__(models[config.model_type])
    torch.nn.Module.__init__(model)
    model.config = config
    return model


def clip(
    path: Path,
    *,
    frames: int = 10,
    height: int = 64,
    width: int = 96,
    rate: int = 5,
    codec: str = "mpeg4",
    times: list[float] | None = None,
    rotation: int = 0,
) -> MediaRef:
    """Frame n is as bright as 20 n, so that frames can be told from each other after compression."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            pixels = np.full((height, width, 3), min(255, 20 * number), dtype=np.uint8)
            pixels[:, : width // 4, 0] = 255  # a red bar on the left
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = round(1000 * (times[number] if times else number / rate))
            frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return MediaRef(kind="video", path=str(path))


def run_hf(conversations: dict[str, list[Any]], folder: Path) -> dict[str, np.ndarray]:
    """Tensors of whole HF processors, "directory name/conversation/key", by tests/render/hf_processor.py."""
    spec, out = folder / "spec.json", folder / "out.npz"
    spec.write_text(json.dumps(conversations))
    worker = hf_worker()
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(json.dumps([str(spec), str(out)]) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    assert line, "tests/render/hf_processor.py ended"
    assert json.loads(line) is None, json.loads(line)[-2000:]
    with np.load(out) as saved:
        return dict(saved)


@lru_cache(maxsize=1)
def hf_worker() -> "subprocess.Popen[str]":
    """The process of `run_hf`, for all tests of this one; it ends when its input does."""
    return torchvision_process(ROOT / "tests" / "render" / "hf_processor.py")


@lru_cache(maxsize=1)
def torchvision_worker() -> "subprocess.Popen[str]":
    """The process of `run_with_torchvision`, likewise."""
    return torchvision_process(ROOT / "tests" / "with_torchvision.py")


def torchvision_process(script: Path) -> "subprocess.Popen[str]":
    """A process that says "ready" and then takes lines; the test is skipped where it has no torchvision."""
    worker = subprocess.Popen(
        [sys.executable, str(script)], env=torchvision_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        assert worker.wait() == 3, f"{script} ended with {worker.returncode}"
        pytest.skip("torchvision cannot be imported here (the Makefile installs it into .venv/torchvision)")
    return worker


def torchvision_environment() -> dict[str, str]:
    folders = [ROOT / ".venv" / "torchvision", ROOT, ROOT / "tests"]
    search = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": search}


def run_with_torchvision(script: Path, *arguments: str) -> str:
    """What a script prints that imports tests/with_torchvision.py."""
    worker = torchvision_worker()
    assert worker.stdin is not None and worker.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        worker.stdin.write(json.dumps([str(output), str(script), *arguments]) + "\n")
        worker.stdin.flush()
        code = worker.stdout.readline()
        assert code == "0\n", Path(f"{output}.err").read_text()[-2000:]
        return output.read_text()


def film(path: Path, seconds: float = 3.0, rate: int = 5) -> Path:
    """A video with a sound track."""
    with av.open(str(path), "w") as container:
        video, audio = container.add_stream("mpeg4", rate=rate), container.add_stream("aac", rate=16_000)
        video.height, video.width, video.pix_fmt = 64, 96, "yuv420p"
        audio.layout = "mono"
        for number in range(int(seconds * rate)):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), 12 * number, np.uint8), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode())
        samples = (np.sin(np.arange(int(seconds * 16_000)) / 20) * 0.4).astype(np.float32)[None]
        for start in range(0, samples.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(samples[:, start : start + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16_000, start  # type: ignore[attr-defined]
            container.mux(audio.encode(frame))
        container.mux(audio.encode())
    return path


def tone(path: Path, seconds: float = 1.0, *, rate: int = 16_000, channels: int = 1, hertz: float = 440.0) -> Path:
    """A wav of a rising tone; channels differ in loudness."""
    import wave

    times = np.arange(int(seconds * rate)) / rate
    wave_form = np.sin(2 * np.pi * hertz * times * (1 + times))
    samples = np.stack([wave_form * 0.5 / (channel + 1) for channel in range(channels)], axis=1)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def decoded_sound(path: Path, rate: int = 16_000) -> np.ndarray:
    """The samples of a sound, as packing decodes them."""
    return decode_audio(MediaRef(kind="audio", path=str(path)), rate)


def documents_of(out: Path, pack: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of a pack of `PackedShards`, each as a pack of its own."""
    reader = ShardReader(out)
    documents = reader.header(pack["pack"], reader.content(pack["pack"]))["documents"]
    parts: Any = {kind: [document[f"num_{kind}s"] for document in documents] for kind in TOKEN_TYPES}
    start = 0
    for index, media in enumerate(split_media(pack, pack["media_layout"], parts)):
        length = int(pack["seq_lens"][index])
        inside = slice(start, start + length)
        text = {key: pack[key][..., inside] for key in ("input_ids", "labels", "position_ids", "mm_token_type_ids")}
        yield {
            "pack": pack["pack"], **text, **media,
            "media_layout": pack["media_layout"], "seq_lens": torch.tensor([length]),
            "seq_lens_padded": torch.tensor([length]), "attention_mask": torch.ones(length, dtype=torch.long),
            **{f"n_{kind}s": parts[kind][index] for kind in TOKEN_TYPES},
        }  # fmt: skip
        start += int(pack["seq_lens_padded"][index])


def assert_verified(out: Path) -> Manifest:
    """The manifest of an output in which `verify` finds nothing wrong."""
    manifest = Manifest.read(out)
    problems = verify_ledger(out, manifest)
    for number in range(len(manifest.shards)):
        problems += verify_shard(out, manifest, number)
    assert not problems, problems[:5]
    return manifest


def asked(*parts: dict[str, Any], answer: str = "It is.") -> list[dict[str, Any]]:
    """A conversation about media."""
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def differences(logits_of: Callable[[dict[str, Any]], torch.Tensor], out: Path, pack: dict[str, Any]) -> list[float]:
    """For each document of a pack, how far its logits in the pack are from those of the document alone."""
    with torch.no_grad():
        packed = logits_of(neat_packed_vlm_collater([pack]))
        result, start = [], 0
        for document in documents_of(out, pack):
            alone = logits_of(neat_packed_vlm_collater([document]))
            result.append(float((packed[:, start : start + alone.shape[1]] - alone).abs().max()))
            start += alone.shape[1]
    return result


def one_shard_per_pack(out: Path) -> None:
    """The same packs in more shards."""
    index = pq.read_table(out / "index.parquet")
    lines, contents = index.to_pylist(), {}
    for number, line in enumerate(lines):
        content = (out / "shards" / line["shard"]).read_bytes()
        contents[number] = content[line["offset"] : line["offset"] + line["bytes"]] + bytes(END)
        for place in line["members"]:
            place["offset"] -= line["offset"]
        line |= {"shard": shard_name(number), "offset": 0}
    shutil.rmtree(out / "shards")
    (out / "shards").mkdir()
    for number, content in contents.items():
        (out / "shards" / shard_name(number)).write_bytes(content)

    def change(found: dict[str, Any]) -> None:
        entries = [{"name": shard_name(number), "bytes": 0, "sha256": "", "first_pack": line["pack"], "num_packs": 1}
                   for number, line in enumerate(lines)]  # fmt: skip
        found["shards"] = entries

    sign(out, change)
    write_indexes(out, pa.Table.from_pylist(lines, schema=index.schema))
