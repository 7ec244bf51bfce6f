"""Small datasets and media files."""

import io
import json
from collections.abc import Hashable
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image


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
) -> Path:
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
    return path


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


def asked(*parts: dict[str, Any], answer: str = "It is.") -> list[dict[str, Any]]:
    """A conversation about media."""
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
