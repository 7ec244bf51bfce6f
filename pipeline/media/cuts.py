"""Where in a video decoding can begin, with the very frames that decoding from its start gives.

A wanted frame needs the packets from the last cut before it on, and not the hours before that; and of those not the
ones that no other frame refers to. All packets are read once, to count them; then the container is asked to seek, and
what it gives is taken only if its packets are those that were counted there, by their times.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

ALL_INTRA = {"mjpeg", "prores", "dnxhd", "rawvideo", "dvvideo", "jpeg2000", "huffyuv", "ffvhuff"}  # a packet, a frame
KEYED = {"h264", "hevc", "vp9", "mpeg4"}  # frames from a key frame on need nothing from before it, if it `_begins_anew`
FAR = 64  # packets: as many are read as soon as a container has sought
TIMED = ("mov", "matroska")  # containers that say of every packet when it is shown
_SLICES = range(1, 6)  # types of H.264's NAL units that are picture, of which three bits say whether any refers to it
_IDR = {"h264": {5}, "hevc": {19, 20}}  # types of NAL units that begin anew; other key frames only nearly do


def video_packets(container: Any) -> Iterator[Any]:
    """Of the first video stream, those that are counted as frames."""
    return (packet for packet in container.demux(video=0) if packet.size and not packet.is_discard)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Numbers of packets, ascending from 0: before packet n there are n frames, and all of them are shown before it."""

    packets: np.ndarray
    shown: np.ndarray  # when each frame of the video is shown, ascending; empty where packets do not say it
    # When that of each packet is, in the order of the packets, no two at once; empty: not known, and no seeking.
    times: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seeks: bool = True


FROM_START = Cuts(packets=np.zeros(1, np.int64), shown=np.zeros(0, np.int64))


def can_have_cuts(container: Any) -> bool:
    codec = container.streams.video[0].codec_context.codec.canonical_name
    return codec in ALL_INTRA or (codec in KEYED and container.format.name.startswith(TIMED))


def cuts_of(container: Any) -> Cuts:
    """By one pass over the packets. Shown at [0, 3, 1, 2, 4, 6, 5], keys are 0 and 4 -> [0, 4]."""
    context = container.streams.video[0].codec_context
    codec = context.codec.canonical_name
    times: list[int | None] = []
    keys: list[bool] = []
    for packet in container.demux(video=0):
        if packet.is_discard:
            return FROM_START  # decoded and not shown: numbers are not to be told
        if packet.size:
            times.append(packet.pts)
            keys.append(packet.is_keyframe and _begins_anew(packet, context, codec))
    if codec in ALL_INTRA:
        return Cuts(packets=np.arange(len(times)), shown=FROM_START.shown)
    if not times or None in times or len(set(times)) < len(times):
        return FROM_START
    shown = np.array(times, dtype=np.int64)
    before = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], shown[:-1]]))
    from_here = np.minimum.accumulate(shown[::-1])[::-1]
    cuts = np.flatnonzero(np.array(keys) & (before < shown) & (from_here == shown))
    return Cuts(packets=np.union1d(cuts, [0]), shown=np.sort(shown), times=shown)


def _begins_anew(packet: Any, context: Any, codec: str) -> bool:
    if codec not in _IDR:
        return True
    heads = _unit_heads(packet, context, codec)
    return not _IDR[codec].isdisjoint(head & 31 if codec == "h264" else head >> 1 & 63 for head in heads)


def _is_alone(packet: Any, context: Any) -> bool:
    """Whether no frame refers to that of this packet: then all of its slices say so (nal_ref_idc 0)."""
    slices = [head >> 5 & 3 for head in _unit_heads(packet, context, "h264") if head & 31 in _SLICES]
    return bool(slices) and not any(slices)


def _unit_heads(content: Any, context: Any, codec: str) -> Iterator[int]:
    """The first byte of each NAL unit of a packet. Each has its length before it, as mp4 and Matroska store them."""
    packet, extradata = memoryview(content), context.extradata or b""
    place = {"h264": 4, "hevc": 21}[codec]
    if len(extradata) <= place or extradata[0] != 1:
        return  # start codes instead: no key is known to begin anew
    width, position = (extradata[place] & 3) + 1, 0
    while position + width < len(packet):
        yield packet[position + width]
        position += width + int.from_bytes(packet[position : position + width], "big")


class Uncountable(Exception):
    """A packet did not give its frame: which frame is which is known by decoding from the start alone."""


class Unseekable(Exception):
    """Behind a seek come other packets than were counted there: they are to be read one after the other."""


class _Packets:
    """The packets of a video with their numbers, from any of them on."""

    def __init__(self, container: Any, cuts: Cuts) -> None:
        self._container, self._times, self._seeks = container, cuts.times.tolist(), cuts.seeks
        self._next, self._left = 0, self._read()

    def since(self, start: int) -> Iterator[tuple[int, Any]]:
        """No packet is given twice: `start` is none that was given."""
        if self._seeks and self._times and start - self._next > FAR:
            self._seek(start)
        for packet in self._left:
            number = self._next
            self._next += 1
            if self._times and (number >= len(self._times) or packet.pts != self._times[number]):
                raise Unseekable
            if number >= start:
                yield number, packet

    def _read(self) -> Iterator[Any]:
        return (packet for packet in self._container.demux(video=0) if packet.size)

    def _seek(self, start: int) -> None:
        """To `start`, or to a packet before it."""
        import av

        try:
            self._container.seek(self._times[start], stream=self._container.streams.video[0])
        except av.FFmpegError:
            raise Unseekable from None
        left = self._read()
        first = next(left, None)
        if first is None or first.pts not in self._times or (found := self._times.index(first.pts)) > start:
            raise Unseekable
        self._next, self._left = found, chain([first], left)


def frames_between(container: Any, cuts: Cuts, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """(number, frame) of the stretches between cuts that have a wanted frame in them."""
    context = container.streams.video[0].codec_context
    packets = _Packets(container, cuts)
    skips = bool(len(cuts.times)) and context.codec.canonical_name == "h264"
    for start, end in _runs(cuts.packets, wanted):
        if skips:
            yield from _needed_frames(context, packets.since(start), cuts, end, frozenset(wanted))
            continue
        number = start
        for index, packet in packets.since(start):
            for frame in context.decode(packet):
                yield _checked(number, frame, cuts, start), frame
                number += 1
            if index + 1 == end:
                break
        for frame in context.decode(None):
            yield _checked(number, frame, cuts, start), frame
            number += 1
        if end is not None and number != end:
            raise Uncountable
        context.flush_buffers()


def _needed_frames(
    context: Any, packets: Iterator[tuple[int, Any]], cuts: Cuts, end: int | None, wanted: Collection[int]
) -> Iterator[tuple[int, Any]]:
    """Without the packets that nobody needs; times tell which frame is which. Every packet must give its own."""
    due = 0
    for index, packet in packets:
        number = int(cuts.shown.searchsorted(packet.pts))
        if number in wanted or packet.is_keyframe or not _is_alone(packet, context):
            due += 1
            for frame in context.decode(packet):
                due -= 1
                yield _by_time(frame, cuts), frame
        if index + 1 == end:
            break
    for frame in context.decode(None):
        due -= 1
        yield _by_time(frame, cuts), frame
    if due:
        raise Uncountable
    context.flush_buffers()


def _by_time(frame: Any, cuts: Cuts) -> int:
    number = int(cuts.shown.searchsorted(frame.pts)) if frame.pts is not None else len(cuts.shown)
    return _checked(number, frame, cuts, 1)


def _runs(cuts: np.ndarray, wanted: Sequence[int]) -> list[tuple[int, int | None]]:
    """Packets to decode, [start, end), of neighbours in one; end None: to the last. Cuts [0, 4, 8], 5 -> [(4, 8)]."""
    ends = [*cuts[1:].tolist(), None]
    runs: list[tuple[int, int | None]] = []
    for index in np.unique(np.searchsorted(cuts, wanted, side="right") - 1).tolist():
        if runs and runs[-1][1] == cuts[index]:
            runs[-1] = runs[-1][0], ends[index]
        else:
            runs.append((int(cuts[index]), ends[index]))
    return runs


def _checked(number: int, frame: Any, cuts: Cuts, start: int) -> int:
    """Behind a gap, a frame is the one that its time says."""
    if start and len(cuts.shown) and (number >= len(cuts.shown) or frame.pts != cuts.shown[number]):
        raise Uncountable
    return number
