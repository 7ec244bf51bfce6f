"""PackConfig: everything a run depends on; flags.py has it from flags and a YAML file."""

import dataclasses
import math
import os
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from neatpack.errors import DataLossError as DataLossError, UserError as UserError, fields_of
from neatpack.format.manifest import spelled
from neatpack.storage.location import Location
from neatpack.storage.uris import SCHEME, is_host

from .codecs import parse_codecs
from .step_cost import DEFAULT_COST, StepCost, step_cost
from .typed import declared, described, is_of

VIDEO_KEYS = ("video_fps", "video_min_frames", "video_max_frames", "video_min_pixels", "video_max_pixels")
ALL_FRAMES = "all"  # as a rate: every frame of a video; math.inf once it is parsed
ParquetMedia = Literal["copy", "in-place"]

PILLOW_PIXELS = 178_956_970  # of a picture: what Pillow opens at most


def _key(default: Any, text: str, *, shapes: str = "", required: bool = False, flag: str = "") -> Any:
    """A config key. `shapes`: the stage whose result it shapes; keys of none (paths, engine) are not fingerprinted.
    `flag`: the flag of a list, given once for each entry."""
    return field(default=default, metadata={"help": text, "shapes": shapes, "required": required, "flag": flag})


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    meta: str = _key(
        "", "meta JSON: data set name -> file_name, columns, tags, media_dir, sample_ratio or weight", required=True
    )
    processor: str = _key("", "processor: a local directory or a hub id", required=True)
    out: str = _key("", "output directory, or a URI: s3://bucket/out, gs://, abfs://, hdfs:// …", required=True)
    allow_unknown_keys: bool = _key(
        False, "warn about unknown keys of the meta JSON and ignore them, instead of failing"
    )
    datasets: tuple[str, ...] = _key((), "only these data sets of the meta JSON (comma-separated)")
    holdout: float = _key(
        0.0,
        "hold this share of the rows out for validation, chosen by their content; `pack` packs them into OUT-holdout",
        shapes="plan",
    )
    family: str = _key("", "model family; default: from the processor's class name", shapes="measure")
    trust_remote_code: bool = _key(
        False,
        "run Python code that a processor brings along, as Kimi's published tokenizers do; only if you trust it",
    )
    allow_http: bool = _key(False, "download media that rows name by http(s)://, once, into WORK/fetched")
    allow_hosts: tuple[str, ...] = _key(
        (),
        "hosts that downloads may ask also where they are in a private network or on this machine: NAME or NAME:PORT",
        flag="--allow-host",
    )
    media_prefixes: tuple[str, ...] = _key(
        (),
        "folders, and URIs of stores, that rows may name media below, besides media_dir and media_prefixes of the meta "
        "JSON",
        flag="--media-prefix",
    )
    parquet_media: ParquetMedia = _key(
        "copy",
        "media in parquet files. copy: out of them, once, into WORK. in-place: read where they are, without the disk "
        "that copies take, but by whole row groups, which is slow",
    )
    placeholders: Literal["strict", "lenient"] = _key(
        "strict",
        "strict: the number of <image> tags must equal the number of images. lenient: surplus tags stay as text, "
        "surplus media go before the first user turn. A data set may say otherwise in the meta JSON",
        shapes="measure",
    )
    train_on: Literal["all-assistant", "last-assistant", "all"] = _key(
        "all-assistant",
        "what is trained on, where a row's turns do not say it (loss): all turns of the assistant, the last of them, "
        "or all text, prompts and template included",
        shapes="measure",
    )
    reasoning: Literal["train", "mask", "drop"] = _key(
        "train",
        "reasoning of the assistant (reasoning_content, or <think> in its text): train on it, mask it, or leave it out",
        shapes="measure",
    )
    min_pixels: int = _key(0, "smallest image area; 0: the processor's own", shapes="measure")
    max_pixels: int = _key(0, "largest image area; 0: the processor's own", shapes="measure")
    video_fps: float = _key(
        0.0,
        "frames taken per second of video; all: every frame; 0: the processor's own, and 2 where it has none "
        "(Qwen2-VL, Qwen2.5-VL, Qwen-Omni: frames and sizes by the defaults of qwen-vl-utils)",
        shapes="measure",
    )
    video_min_frames: int = _key(0, "fewest frames of a video; 0: the processor's own", shapes="measure")
    video_max_frames: int = _key(0, "most frames of a video; 0: the processor's own", shapes="measure")
    video_min_pixels: int = _key(
        0, "smallest area, of a frame (Qwen2, 2.5) or of a whole clip (Qwen3); 0: the processor's own", shapes="measure"
    )
    video_max_pixels: int = _key(0, "largest area, likewise; 0: the processor's own", shapes="measure")
    use_audio_in_video: bool = _key(
        False, "Qwen-Omni: use the sound track of a video, interleaved with its frames", shapes="measure"
    )
    max_image_pixels: int = _key(
        100_000_000,
        "refuse pictures, and videos with frames, of more pixels (bad_media): they take up to 24 bytes of memory each",
        shapes="measure",
    )
    max_media_seconds: float = _key(
        6 * 3600.0, "refuse videos and sounds that last longer (bad_media)", shapes="measure"
    )
    max_media_bytes: int = _key(4 << 30, "refuse media of more bytes (bad_media)", shapes="measure")
    max_row_bytes: int = _key(
        64 << 20, "refuse rows whose line of JSON has more bytes (bad_row), before they are parsed", shapes="measure"
    )
    media_timeout: float = _key(
        60.0,
        "seconds of CPU for a medium, and for each minute that a video or sound lasts; on the clock, five times that. "
        "What takes longer is bad_media. 0: no limit",
    )
    max_import_ratio: int = _key(
        200,
        "refuse data files (.parquet, .zst …) that unpack to more than so many times their size; 64 MiB are always "
        "allowed",
    )
    empty_thought: bool = _key(
        False,
        "Gemma 4: begin every model turn with an empty thought that is not trained on, as the models that always think "
        "(31B, 26B-A4B) were trained",
        shapes="measure",
    )
    float_pixels: bool = _key(
        False, "family default: store floats of the processor that bytes would stand for, too", shapes="measure"
    )
    check_media: Literal["none", "size", "digest"] = _key(
        "none",
        "whether media files are part of what an output is made from, so that one whose media have changed is refused: "
        "by their sizes, or by all of their bytes. What changes between measuring and packing is noticed always",
    )
    pack_size: int = _key(8192, "tokens in a pack, at most", shapes="plan")
    packing_ratio: float = _key(1.0, "fill packs to this share of pack-size only", shapes="plan")
    max_visual_tokens: int = _key(
        0, "visual tokens in a pack, at most (memory of the vision tower); 0: no bound", shapes="plan"
    )
    overlong: Literal["", "drop", "truncate", "shrink", "error"] = _key(
        "",
        "samples longer than a pack: drop (in the ledger), truncate (keeps whole media), shrink (smaller pictures and "
        "fewer frames, step by step; dropped if even that is too long), error. Default: drop, and count them as lost "
        "(max-skipped); with drop itself they do not count",
        shapes="plan",
    )
    drop_long_samples: bool | None = _key(None, "true: overlong=drop; false: overlong=error")
    max_packs: int = _key(0, "write this many packs at most; 0: all", shapes="plan")
    group_size: int = _key(
        512, "packs in a balanced group; data-parallel sizes that divide it are balanced", shapes="plan"
    )
    cost: str = _key(
        DEFAULT_COST,
        "what a step costs, which is even over ranks: 2b, 7b, 32b or 72b (size of the language model), or weights, "
        "tokens=1,visual=0.37,audio=0.18,square=1.4e-5, of which those not named are 7b's",
        shapes="plan",
    )
    seed: int = _key(0, "seed of what shares a pack, and of the order of packs", shapes="plan")
    group_by: Literal["media", "none"] = _key(
        "media",
        "rows that avoid each other in packs, as copies of a row do: media (rows with the same first image, video or "
        "audio file, and texts that are equal), none. A dataset's group_column comes before this",
        shapes="plan",
    )
    partition_samples: int = _key(
        4_000_000,
        "samples that are planned together; of more, partitions of about as many are made, and no pack has rows of two",
        shapes="plan",
    )
    fake_image: bool = _key(
        True, "give a pack without media a tiny masked image, so that the vision tower always runs", shapes="plan"
    )
    align: int = _key(
        1, "pad every document to a multiple of this many tokens; 2*cp for context parallelism", shapes="plan"
    )
    resize: Literal["torch", "pil"] = _key(
        "torch", "torch: bit-equal to the HF torchvision backend. pil: bit-equal to the HF PIL backend", shapes="render"
    )
    pixels: str = _key(
        "",
        "how pixels are stored: u8 (as they are), zstd (compressed), source (the picture's own bytes, decoded and "
        "resized by the loader to the same pixels), or by kind; default: image=source,video=zstd",
        shapes="render",
    )
    shard_mb: int = _key(256, "cut a shard after about this many MiB", shapes="render")
    max_skipped: float = _key(
        0.05,
        "end with exit code 1, before anything is rendered, if more than this share of the samples or of their tokens "
        "is skipped or a data set ends empty; sampled-out and held-out samples do not count, nor those beyond "
        "max-packs, nor overlong ones with overlong=drop. 1: take whatever comes",
    )
    keep_going: bool = _key(False, "render what is left, although more is skipped than max-skipped allows")
    work: str = _key("", "where measured tokens and plans are kept for the next run; default: OUT/work")
    engine: Literal["ray", "inline"] = _key("ray", "ray: a cluster (RAY_ADDRESS) or this machine. inline: in-process")
    num_workers: int = _key(0, "processes at once; 0: every CPU that Ray has")
    record_paths: bool = _key(
        False,
        "write into OUT/sources.json where on this machine the meta JSON is, so that `neatpack skipped` finds the rows "
        "also without OUT/work",
    )
    overwrite: bool = _key(False, "start anew over an output made from other inputs or another config")

    def __post_init__(self) -> None:
        rate: object = self.video_fps
        if rate == ALL_FRAMES:
            object.__setattr__(self, "video_fps", math.inf)
        self._check_types()
        for key in ("meta", "out", "work"):
            if SCHEME.match(getattr(self, key)):
                place_of(key, getattr(self, key))
        if self.pixels:  # in one way only: it is part of what an output is made from
            object.__setattr__(self, "pixels", spelled(parse_codecs(self.pixels)))
        if self.pack_size < 16:
            raise UserError(
                f"pack_size is {self.pack_size}; it must be at least 16",
                code="option-invalid",
                option="pack_size",
                got=self.pack_size,
                least=16,
            )
        if self.pack_size >= 1 << 31:
            raise UserError(
                f"pack_size is {self.pack_size}; it must be below {1 << 31}",
                code="option-invalid",
                option="pack_size",
                got=self.pack_size,
            )
        if not 0 < self.packing_ratio <= 1:
            raise UserError(
                f"packing_ratio is {self.packing_ratio}; it must be above 0 and at most 1",
                code="option-invalid",
                option="packing_ratio",
                got=self.packing_ratio,
            )
        if not 0 <= self.max_skipped <= 1:
            raise UserError(
                f"max_skipped is {self.max_skipped}; it is a share: at least 0 and at most 1",
                code="option-invalid",
                option="max_skipped",
                got=self.max_skipped,
            )
        if not 1 <= self.max_image_pixels <= PILLOW_PIXELS:
            raise UserError(
                f"max_image_pixels is {self.max_image_pixels}; it must be 1 to {PILLOW_PIXELS}, all that Pillow opens",
                code="option-invalid",
                option="max_image_pixels",
                got=self.max_image_pixels,
            )
        if not 0 <= self.holdout < 1:
            raise UserError(
                f"holdout is {self.holdout}; it must be at least 0 and below 1",
                code="option-invalid",
                option="holdout",
                got=self.holdout,
            )
        for key in (
            "min_pixels",
            "max_pixels",
            "max_visual_tokens",
            "max_packs",
            "num_workers",
            "seed",
            "media_timeout",
            *VIDEO_KEYS,
        ):
            if getattr(self, key) < 0:
                raise UserError(
                    f"{key} is {getattr(self, key)}; it must not be negative",
                    code="option-invalid",
                    option=key,
                    got=getattr(self, key),
                    least=0,
                )
        for key in (
            "group_size",
            "shard_mb",
            "align",
            "partition_samples",
            "max_media_seconds",
            "max_media_bytes",
            "max_row_bytes",
            "max_import_ratio",
        ):
            if getattr(self, key) < 1:
                raise UserError(
                    f"{key} is {getattr(self, key)}; it must be at least 1",
                    code="option-invalid",
                    option=key,
                    got=getattr(self, key),
                    least=1,
                )
        if self.group_size >= 1 << 24:
            raise UserError(
                f"group_size is {self.group_size}; it must be below {1 << 24}: it is a number of ranks",
                code="option-invalid",
                option="group_size",
                got=self.group_size,
            )
        if self.pack_size % self.align:
            raise UserError(
                f"pack_size {self.pack_size} is not a multiple of align {self.align}",
                code="option-invalid",
                option="align",
                got=self.align,
            )
        least = max(16, 2 * self.align)  # the fake image and a document, at least
        if self.fill < least:
            raise UserError(
                f"packing_ratio {self.packing_ratio} fills packs to {self.fill} tokens; it must be at least {least}",
                code="option-invalid",
                option="packing_ratio",
                got=self.packing_ratio,
            )
        step_cost(self.cost)
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise UserError(
                f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}",
                code="option-invalid",
                option="min_pixels",
                got=self.min_pixels,
                most=self.max_pixels,
            )

    def _check_types(self) -> None:
        """Of what a program gives; flags and YAML are parsed by their types. Paths and lists are as good as texts and
        tuples, whole numbers as good as others."""
        for key, kind in declared(PackConfig).items():
            value = getattr(self, key)
            if kind is str and isinstance(value, Path):
                object.__setattr__(self, key, str(value))
            elif typing.get_origin(kind) is tuple and isinstance(value, list) and is_of(tuple(value), kind):
                object.__setattr__(self, key, tuple(value))
            elif not is_of(value, kind) and not (kind is float and type(value) is int):
                raise UserError(
                    f"{key} is {value!r}; it must be {described(kind)}", code="option-invalid", option=key, got=value
                )
            elif isinstance(value, int) and abs(value) >= 1 << 63:
                raise UserError(
                    f"{key} is {value}; it must be below {1 << 63}", code="option-invalid", option=key, got=value
                )

    @property
    def overlong_policy(self) -> str:
        return self._asked_overlong or "drop"

    @property
    def accepts_overlong(self) -> bool:
        """Whether the user has chosen to drop overlong samples."""
        return self._asked_overlong == "drop"

    @property
    def _asked_overlong(self) -> str:
        if self.drop_long_samples is None:
            return self.overlong
        return "drop" if self.drop_long_samples else "error"

    @property
    def step_cost(self) -> StepCost:
        return step_cost(self.cost)

    @property
    def fill(self) -> int:
        """Tokens up to which packs are filled."""
        return int(self.pack_size * self.packing_ratio) // self.align * self.align

    @property
    def max_row_tokens(self) -> int:
        """Tokens of media after which a row is not measured further: it is `overlong` for every pack size near this.

        A power of two, so that few pack sizes have rows measured again. Truncated and shrunk rows may be longer: 16
        times, which is four steps of shrinking.
        """
        most = 1 << max(18, (8 * self.pack_size - 1).bit_length())
        return min(most << 4 if self.overlong_policy in ("truncate", "shrink") else most, 1 << 30)

    @property
    def work_dir(self) -> Location:
        return Location.parse(self.work) if self.work else Location.parse(self.out) / "work"

    def for_holdout(self) -> "PackConfig":
        """The config of the output of the rows that are held out: beside OUT, with one work folder for both."""
        out = place_of("--out", self.out) if self.out else None
        beside = out.with_name(f"{out.name}-holdout").uri if out else ""
        return dataclasses.replace(self, out=beside, work=self.work_dir.uri)

    def shaping(self, *stages: str) -> dict[str, Any]:
        """The keys that shape the results of these stages."""
        shaping = {
            f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.metadata["shapes"] in stages
        }
        # The default and drop give the same output.
        return shaping | ({"overlong": self.overlong_policy} if "overlong" in shaping else {})


def _plain(value: Any) -> Any:
    """Return a value of a key as JSON has it."""
    if value == math.inf:
        return ALL_FRAMES
    return list(value) if isinstance(value, tuple) else value


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def absolute(name: str, path: str) -> str:
    return place_of(name, path).uri


def with_absolute_paths(config: PackConfig) -> PackConfig:
    """Return the config with its paths as seen from the working directory of this process: workers have another."""
    given = {key: getattr(config, key) for key in ("meta", "out", "work")}
    found: dict[str, Any] = {key: absolute(flag(key), path) for key, path in given.items() if path}
    prefixes = tuple(absolute("--media-prefix", each) for each in config.media_prefixes)
    if config.processor and os.path.isdir(config.processor):
        found["processor"] = os.path.realpath(config.processor)
    return dataclasses.replace(config, media_prefixes=prefixes, **found)


def _has_password(uri: Location) -> bool:
    """Also one with a slash in it, as those of AWS may be: of s3://user:pa/ss@bucket the authority is "user:pa"."""
    user, _, host = uri.authority.rpartition("@")
    return ":" in user or ("@" in uri.key and not is_host(host))


def place_of(name: str, path: str) -> Location:
    """Where a path or URI leads that was given as `name`; a path is made absolute against the caller's directory.

    A relative one is refused inside a Ray job, where it would land in a temporary directory, and so is a URI with a
    password, which is not repeated.
    """
    if not SCHEME.match(path):
        expanded = os.path.expanduser(path)
        if not os.path.isabs(expanded) and "/runtime_resources/" in os.getcwd() and os.environ.get("RAY_ADDRESS"):
            raise UserError(
                f"{name} {path}: give an absolute path under `ray job submit`; a relative one would end up in "
                "Ray's temporary copy of the working directory",
                code="option-invalid",
                option=name,
                got=path,
            )
        return Location.parse(Path(os.path.abspath(expanded)))
    try:
        found = Location.parse(path)
    except ValueError as error:
        raise UserError(f"{name}: {error}", code="uri-invalid", **fields_of(error) | {"name": name}) from None
    if not found.is_local and _has_password(found):
        raise UserError(
            f"{name}: {found} is given with a password, which would end up in logs and lists of processes; leave it "
            "out, and let the environment or a profile have it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say)",
            code="uri-invalid",
            name=name,
        )
    return found
