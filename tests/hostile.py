"""Files that mean harm, each with what becomes of a row that names it. All of them are small, and made in no time."""

import os
import socket
import struct
import wave
import zlib
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from support.data import clip, picture


@dataclass(frozen=True, kw_only=True, slots=True)
class Hostile:
    kind: str  # image, video or audio
    reason: str  # of the ledger
    named: tuple[str, ...] = ()  # what the detail names beside the file
    names_others: bool = False  # a list of other files


def make(folder: Path, url: str) -> dict[str, Hostile]:
    """By name. `url`: of a server that must not be asked for anything."""
    folder.mkdir(parents=True, exist_ok=True)
    good = str(clip(folder / "good.mp4"))
    lists = {
        "playlist.m3u8": (
            "HLS",
            f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{url}/a.ts\n#EXT-X-ENDLIST\n",
        ),
        "playlist.mp4": ("HLS", f"\n#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{url}/b.m3u8\n"),
        "local.m3u8": ("HLS", f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{good}\n#EXT-X-ENDLIST\n"),
        "script.ffconcat": ("concat", f"ffconcat version 1.0\nfile 'good.mp4'\nfile '{url}/c.mp4'\n"),
        "session.sdp": ("SDP", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nt=0 0\nm=video 5004 RTP/AVP 33\n"),
        "manifest.mpd": (
            "DASH",
            '<?xml version="1.0"?>\n<MPD type="static"><Period><AdaptationSet><Representation id="1" bandwidth="1">'
            f"<BaseURL>{url}/d.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>",
        ),
    }
    found: dict[str, Hostile] = {}
    for name, (what, text) in lists.items():
        (folder / name).write_text(text)
        found[name] = Hostile(kind="video", reason="bad_media", named=(what,), names_others=True)
    (folder / "art.txt").write_text("\x1b[31mred\x1b[0m\n" * 200)
    (folder / "sub.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nHello\n")
    (folder / "cut.mp4").write_bytes(Path(good).read_bytes()[:300])
    picture(folder / "still.jpg", 40, 60)
    for name in ("art.txt", "cut.mp4"):
        found[name] = Hostile(kind="video", reason="bad_media")
    for name in ("sub.srt", "still.jpg"):
        found[name] = Hostile(kind="video", reason="bad_media")
    for name, kind in (("empty.mp4", "video"), ("empty.png", "image"), ("empty.wav", "audio")):
        (folder / name).touch()
        found[name] = Hostile(kind=kind, reason="bad_media")
    for name, kind in (("pipe.png", "image"), ("pipe.mp4", "video"), ("pipe.wav", "audio")):
        os.mkfifo(folder / name)
        found[name] = Hostile(kind=kind, reason="bad_media")
    for name, device in (("terminal.png", "/dev/ptmx"), ("endless.png", "/dev/zero"), ("nothing.mp4", "/dev/null")):
        if os.access(device, os.R_OK):
            (folder / name).symlink_to(device)
            found[name] = Hostile(kind="video" if name.endswith("4") else "image", reason="bad_media")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.png"))  # a path of theirs has 108 bytes at most
    found["socket.png"] = Hostile(kind="image", reason="missing_media")
    (folder / "folder.png").mkdir()
    found["folder.png"] = Hostile(kind="image", reason="missing_media")
    (folder / "loop.png").symlink_to("loop.png")
    found["loop.png"] = Hostile(kind="image", reason="missing_media")
    large_png(folder / "large.png", 12_000)
    found["large.png"] = Hostile(kind="image", reason="bad_media", named=("--max-image-pixels 100000000",))
    large_png(folder / "bomb.png", 60_000)
    found["bomb.png"] = Hostile(kind="image", reason="bad_media")
    silence(folder / "long.wav", 40)
    found["long.wav"] = Hostile(kind="audio", reason="bad_media", named=("--max-media-seconds 30",))
    clip(folder / "long.mkv", times=[0.0, 31.0], frames=2)
    found["long.mkv"] = Hostile(kind="video", reason="bad_media", named=("--max-media-seconds 30",))
    (folder / "heavy.mp4").write_bytes(Path(good).read_bytes())
    os.truncate(folder / "heavy.mp4", 3 << 20)  # of which no block is on disk
    found["heavy.mp4"] = Hostile(kind="video", reason="bad_media", named=("--max-media-bytes 2097152",))
    return found


def large_png(path: Path, side: int) -> None:
    """A black square, one bit a pixel: 144 megapixels are 18 KB."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj()
    row = bytes(1 + -(-side // 8))
    pixels = b"".join([*(packer.compress(row) for _ in range(min(side, 12_000))), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def silence(path: Path, seconds: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 8000 * seconds))


def slow_jpeg(path: Path, scans: int) -> None:
    """A grey picture whose last scan comes many times. A scan has 30 bytes, and goes over all of the picture."""
    Image.new("RGB", (4000, 4000), (90, 90, 90)).save(path, progressive=True)
    content = path.read_bytes()
    again = content[content.rindex(b"\xff\xda") : -2]
    path.write_bytes(content[:-2] + again * scans + content[-2:])
