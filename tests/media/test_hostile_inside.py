"""Media that mean harm cost their own rows and nothing else, by the decoders themselves."""

import errno
import io
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import hostile
import pytest
from helpers import clip
from PIL import Image
from places import ROOT
from support.data import picture, tone
from support.errors import raises_media_error

from neatpack.pipeline.media import audio, budget, image, video
from neatpack.pipeline.media.limits import LIMITS, Limits
from neatpack.pipeline.media.open import open_container
from neatpack.pipeline.records import MeasuredMedia, MediaError, MediaRef
from neatpack.pipeline.runtime.journal import journal


def test_no_request_even_if_a_list_gets_past_the_names(
    requests: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not refused by name is refused by FFmpeg, which is told what it may open."""
    from neatpack.pipeline.media import open as opening

    url, asked = requests
    monkeypatch.setattr(opening, "_LISTS", {})
    for name, file in hostile.make(tmp_path / "data", url).items():
        if file.names_others:
            with raises_media_error("bad_media", name):
                video.video_facts(MediaRef(kind="video", path=str(tmp_path / "data" / name)))
    assert asked == []


# ---------------------------------------------------------------- decoders that raise anything, anywhere


class Raised(Exception):
    """Of a kind that nobody knows."""


UNICODE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
ERRORS = [
    OSError("broken data stream"), OSError(errno.EINVAL, "Invalid argument"), ValueError("v"), TypeError("t"),
    SyntaxError("not a PNG file"), struct.error("unpack"), EOFError("e"), AssertionError("a"), KeyError("k"),
    IndexError("i"), ZeroDivisionError("z"), OverflowError("o"), RecursionError("r"), NotImplementedError("n"),
    RuntimeError("r"), zlib.error("z"), UNICODE, av.InvalidDataError(1094995529, "Invalid data"), StopIteration("s"),
    AttributeError("a"), io.UnsupportedOperation("u"), Image.DecompressionBombError("b"), av.error.OSError(5, "I/O"),
    Raised("x"), ExceptionGroup("g", [ValueError("v")]),
]  # fmt: skip


class Fragile:
    """Passes everything on to a decoder's object, and raises at the nth time that anything is asked of it."""

    def __init__(self, inner: Any, fuse: Callable[[], None]) -> None:
        self.__dict__.update(inner=inner, fuse=fuse)

    def __getattr__(self, name: str) -> Any:
        self.fuse()
        return wrapped(getattr(self.inner, name), self.fuse)

    def __setattr__(self, name: str, value: Any) -> None:
        self.fuse()
        setattr(self.inner, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.fuse()
        plain = [arg.inner if isinstance(arg, Fragile) else arg for arg in args]
        return wrapped(self.inner(*plain, **kwargs), self.fuse)

    def __iter__(self) -> Iterator[Any]:
        for item in self.inner:
            self.fuse()
            yield wrapped(item, self.fuse)

    def __next__(self) -> Any:
        self.fuse()
        return wrapped(next(self.inner), self.fuse)

    def __getitem__(self, key: Any) -> Any:
        self.fuse()
        return wrapped(self.inner[key], self.fuse)

    def __len__(self) -> int:
        return len(self.inner)

    def __enter__(self) -> "Fragile":
        return self

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)


def wrapped(value: Any, fuse: Callable[[], None]) -> Any:
    ours = type(value).__module__.startswith(("av", "_cython", "PIL")) or callable(value) or hasattr(value, "__next__")
    return Fragile(value, fuse) if ours and not isinstance(value, type) else value


def frames_of(ref: MediaRef) -> Any:
    return list(
        video.wanted_frames(MeasuredMedia(ref=ref, height=64, width=96, size=(64, 96), grid=(1, 1, 1), frames=(0, 2)))
    )


READERS: dict[str, tuple[Any, str, Callable[[MediaRef], Any]]] = {
    "size": (Image, "a.png", image.image_size),
    "pixels": (Image, "a.png", image.decode_image),
    "facts": (av, "a.mp4", video.video_facts),
    "frames": (av, "a.mp4", frames_of),
    "has sound": (av, "a.wav", audio.has_audio),
    "rate": (av, "a.wav", audio.own_rate),
    "sound": (av, "a.wav", lambda ref: audio.decode_audio(ref, 16_000)),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    clip(folder / "a.mp4", frames=4)
    picture(folder / "a.png", 20, 30)
    tone(folder / "a.wav", 0.1)
    return folder


@pytest.mark.parametrize("reader", READERS)
def test_whatever_a_decoder_raises_is_bad_media(reader: str, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, read = READERS[reader]
    ref = MediaRef(kind="image", path=str(good / name))
    original = module.open
    for error in ERRORS:
        for place in range(1, 1000):
            left = place

            def fuse(error: Exception = error) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise error

            monkeypatch.setattr(module, "open", Fragile(original, fuse))
            try:
                read(ref)
            except MediaError as caught:
                assert caught.skip.reason == "bad_media"
                assert caught.skip.detail.startswith(f"{ref.path}: "), "it names the medium"
            if left > 0:
                break  # it was not asked so often
        assert place > 3, "the decoder is asked several times"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_what_says_nothing_about_the_medium_is_not_blamed_on_it(
    reader: str, error: BaseException, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, read = READERS[reader]

    def fuse() -> None:
        raise error

    monkeypatch.setattr(module, "open", Fragile(module.open, fuse))
    with pytest.raises(type(error)) as caught:
        read(MediaRef(kind="image", path=str(good / name)))
    if isinstance(error, OSError):
        assert str(good / name) in str(caught.value) and "Input/output error" in str(caught.value)


def test_a_machine_without_free_files_is_no_fault_of_a_picture(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.open", full)
    with pytest.raises(OSError, match="Too many open files"):
        image.image_size(MediaRef(kind="image", path=str(good / "a.png")))


# ---------------------------------------------------------------- limits


def test_limits_are_those_of_the_task(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pictures, of frames, of pieces of files and of bytes in memory."""
    monkeypatch.setenv(LIMITS, Limits(max_image_pixels=599, max_media_bytes=2000).as_text())
    heavy = ("2001 bytes", "--max-media-bytes 2000")
    cases: dict[MediaRef, tuple[str, ...]] = {
        MediaRef(kind="image", path=str(good / "a.png")): ("600 pixels", "30x20", "--max-image-pixels 599"),
        MediaRef(kind="image", path=str(good / "a.wav"), offset=1, length=2001): heavy,
        MediaRef(kind="image", path="x", held=bytes(2001)): heavy,
    }
    for ref, named in cases.items():
        for read in (image.image_size, image.decode_image):
            with raises_media_error("bad_media", f"{ref.path}: ", *named):
                read(ref)
    monkeypatch.setenv(LIMITS, Limits(max_image_pixels=64 * 96 - 1).as_text())
    with raises_media_error("bad_media", "6144 pixels", "96x64", "--max-image-pixels 6143"):
        video.video_facts(MediaRef(kind="video", path=str(good / "a.mp4")))


# ---------------------------------------------------------------- time and memory (more in runtime/test_journal.py)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a task, but that nothing ends the process of the tests."""
    monkeypatch.setattr(budget, "LATE", 1e7)
    with journal(tmp_path / "journal"):
        yield


def test_videos_and_sounds_that_take_too_long(good: Path, watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [reader for name, reader in READERS.items() if name in ("facts", "frames", "sound")]
    for timeout, fails in ((1e-5, True), (100, False), (0, False)):
        monkeypatch.setenv(LIMITS, Limits(media_timeout=timeout).as_text())
        for _, name, read in readers:
            ref = MediaRef(kind="video", path=str(good / name))
            with raises_media_error("bad_media", f"{ref.path}: ", "--media-timeout") if fails else nullcontext():
                read(ref)


def test_what_others_do_with_a_frame_is_not_counted(good: Path, watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor may it take no more memory than the medium."""
    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    medium = MeasuredMedia(
        ref=MediaRef(kind="video", path=str(good / "a.mp4")),
        height=64, width=96, size=(64, 96), grid=(1, 1, 1), frames=(0, 1, 2, 3), fps=5.0,
    )  # fmt: skip
    for _ in video.wanted_frames(medium):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
        clock[0] += 1000.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_longer_medium_may_take_longer(good: Path, watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setenv(LIMITS, Limits(media_timeout=10).as_text())
    with budget.Budget(MediaRef(kind="video", path="a.mp4")) as left:
        clock[0] = 9.0
        left.check()
        left.extend(120)  # two minutes
        clock[0] = 29.0
        left.check()
        clock[0] = 31.0
        with raises_media_error("bad_media", "a.mp4", "--media-timeout"):
            left.check()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded on Linux alone")
def test_a_picture_that_takes_too_much_memory(tmp_path: Path) -> None:
    """In a process of its own: that of the tests keeps memory that it has freed, and so has enough."""
    path = tmp_path / "a.png"
    Image.new("RGBA", (4000, 4000)).save(path)
    code = f"""
import resource
from pathlib import Path
from neatpack.pipeline.media import budget, image
from neatpack.pipeline.records import MediaError, MediaRef
from neatpack.pipeline.runtime.journal import journal
ref = MediaRef(kind="image", path={str(path)!r})
with journal(Path({str(tmp_path / "journal")!r})):
    print(image.decode_image(ref).shape)
    budget.MEMORY = 100 << 20
    try:
        image.decode_image(ref)
    except MediaError as error:
        print(error.skip.detail)
    print(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "(4000, 4000, 3)", f"{path}: takes more than 100 MiB of memory", "True"
    ], done.stderr  # fmt: skip


def test_nothing_is_bounded_in_other_programs(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training process that reads a picture must not be ended for it."""
    monkeypatch.setenv(LIMITS, Limits(media_timeout=1e-6).as_text())
    with open_container(MediaRef(kind="video", path=str(good / "a.mp4"))) as (_, left):
        assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
        left.check()
