"""PackConfig: flags over YAML over defaults, strict types and keys, absolute paths, fingerprints."""

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from support.errors import raises

from neatpack.format.manifest import fingerprint
from neatpack.pipeline.config import PackConfig, UserError, absolute
from neatpack.pipeline.flags import add_flags, load_config

REQUIRED = ("--meta", "/m.json", "--processor", "p", "--out", "/o")


def load(*flags: str, required: tuple[str, ...] = REQUIRED, optional: tuple[str, ...] = ()) -> PackConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser, optional=optional)
    return load_config(parser.parse_args([*required, *flags]), optional=optional)


@pytest.fixture
def yaml(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> str:
        path = tmp_path / "config.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


# ---------------------------------------------------------------- where values come from


def test_defaults() -> None:
    assert load() == PackConfig(meta="/m.json", processor="p", out="/o")
    assert load().pack_size == 8192


def test_flags_over_yaml_over_defaults(yaml: Any) -> None:
    file = yaml("pack_size: 4096\nseed: 7\ngroup_size: 16\nfake_image: false\n")
    config = load("--config", file, "--pack-size", "2048", "--seed", "0")
    assert (config.pack_size, config.seed, config.group_size, config.fake_image) == (2048, 0, 16, False)
    assert config.shard_mb == 256


def test_everything_from_yaml(yaml: Any) -> None:
    file = yaml(
        "meta: /m.json\nprocessor: p\nout: /o\ndatasets: [a, b]\npacking_ratio: 1\ndrop_long_samples: null\n"
        "overlong: truncate\noverwrite: true\n"
    )
    assert load("--config", file, required=()) == PackConfig(
        meta="/m.json",
        processor="p",
        out="/o",
        datasets=("a", "b"),
        packing_ratio=1.0,
        overlong="truncate",
        overwrite=True,
    )


def test_a_flag_switches_off_what_yaml_switched_on(yaml: Any) -> None:
    file = yaml("overwrite: true\ndrop_long_samples: true\n")
    config = load("--config", file, "--no-overwrite", "--no-drop-long-samples")
    assert (config.overwrite, config.drop_long_samples) == (False, False)


KEYS_OF_FLAGS = {"--media-prefix": "media_prefixes", "--allow-host": "allow_hosts"}  # flags of one entry of a list


def test_every_key_is_a_flag_and_of_its_type() -> None:
    flags = {
        "--datasets": ("a, b,", ("a", "b")),
        "--media-prefix": ("s3://bucket/a,b", ("s3://bucket/a,b",)),
        "--allow-host": ("localhost:80", ("localhost:80",)),
        "--holdout": ("0.01", 0.01),
        "--family": ("qwen3_vl", "qwen3_vl"),
        "--parquet-media": ("in-place", "in-place"),
        "--placeholders": ("lenient", "lenient"),
        "--pixels": ("video=zstd,image=zstd", "zstd"),
        "--min-pixels": ("1", 1),
        "--max-pixels": ("2", 2),
        "--video-fps": ("1.5", 1.5),
        "--video-min-frames": ("4", 4),
        "--video-max-frames": ("8", 8),
        "--video-min-pixels": ("3", 3),
        "--video-max-pixels": ("4", 4),
        "--max-image-pixels": ("8", 8),
        "--max-media-seconds": ("1.5", 1.5),
        "--max-media-bytes": ("9", 9),
        "--max-row-bytes": ("10", 10),
        "--media-timeout": ("2.5", 2.5),
        "--max-import-ratio": ("7", 7),
        "--pack-size": ("32", 32),
        "--packing-ratio": ("0.5", 0.5),
        "--max-visual-tokens": ("3", 3),
        "--overlong": ("error", "error"),
        "--max-packs": ("4", 4),
        "--group-size": ("5", 5),
        "--cost": ("tokens=1,square=2e-5", "tokens=1,square=2e-5"),
        "--partition-samples": ("6", 6),
        "--align": ("2", 2),
        "--train-on": ("all", "all"),
        "--reasoning": ("mask", "mask"),
        "--seed": ("6", 6),
        "--group-by": ("none", "none"),
        "--resize": ("pil", "pil"),
        "--shard-mb": ("7", 7),
        "--max-skipped": ("0.3", 0.3),
        "--check-media": ("size", "size"),
        "--work": ("/w", "/w"),
        "--engine": ("inline", "inline"),
        "--num-workers": ("8", 8),
    }
    switches = {
        "--allow-unknown-keys": True,
        "--trust-remote-code": True,
        "--allow-http": True,
        "--use-audio-in-video": True,
        "--empty-thought": True,
        "--float-pixels": True,
        "--drop-long-samples": True,
        "--no-fake-image": False,
        "--record-paths": True,
        "--keep-going": True,
        "--overwrite": True,
    }
    config = load(*(text for name, (value, _) in flags.items() for text in (name, value)), *switches)
    found = dataclasses.asdict(config)
    expected = {name: value for name, (_, value) in flags.items()} | {
        name.replace("--no-", "--"): value for name, value in switches.items()
    }
    for name, value in expected.items():
        key = KEYS_OF_FLAGS.get(name) or name.removeprefix("--").replace("-", "_")
        assert (found[key], type(found[key])) == (value, type(value)), name
    assert {KEYS_OF_FLAGS.get(name) or name[2:].replace("-", "_") for name in expected} | {
        "meta", "processor", "out",
    } == found.keys()  # fmt: skip


# ---------------------------------------------------------------- what is refused


def test_unknown_keys_name_the_known_ones(yaml: Any) -> None:
    with raises(UserError, "option-unknown", option="pack-size") as caught:
        load("--config", yaml("pack-size: 4096\n"), required=REQUIRED)
    assert {"meta", "processor", "out", "pack_size"} <= set(caught.error.fields["known"])


# YAML -> what the error says was got.
WRONG_TYPES: dict[str, Any] = {
    "pack_size: many": "many",
    "pack_size: 1.5": 1.5,
    "pack_size: 1024.0": 1024.0,
    "pack_size: .inf": math.inf,
    "pack_size: true": True,
    "pack_size: null": None,
    "pack_size: [16]": [16],
    "packing_ratio: much": "much",
    "packing_ratio: false": False,
    "meta: 7": 7,
    "out: null": None,
    "fake_image: 1": 1,
    "fake_image: 'no'": "no",
    "fake_image: null": None,
    "drop_long_samples: 'yes'": "yes",
    "overlong: cut": "cut",
    "overlong: [drop]": ["drop"],
    "datasets: 7": 7,
    "datasets: [a, 7]": ["a", 7],
    "datasets: null": None,
}


@pytest.mark.parametrize(("text", "got"), WRONG_TYPES.items())
def test_wrong_types_in_yaml(yaml: Any, text: str, got: Any) -> None:
    required = ("--processor", "p") if text.startswith(("meta", "out")) else REQUIRED  # a flag would win
    with raises(UserError, "option-invalid", option=text.partition(":")[0], got=got):
        load("--config", yaml(text), required=required)


@pytest.mark.parametrize(("flag", "value"), [("--pack-size", "8k"), ("--packing-ratio", "most")])
def test_wrong_types_in_flags(flag: str, value: str) -> None:
    with raises(UserError, "option-invalid", option=flag[2:].replace("-", "_"), got=value):
        load(flag, value, required=REQUIRED)


# Flags -> the option that the error names, and what was got.
WRONG_VALUES: dict[tuple[str, ...], tuple[str, Any]] = {
    ("--pack-size", "15"): ("pack_size", 15),
    ("--packing-ratio", "0"): ("packing_ratio", 0.0),
    ("--packing-ratio", "1e-5"): ("packing_ratio", 1e-5),
    ("--pack-size", "100", "--packing-ratio", "0.15"): ("packing_ratio", 0.15),
    ("--packing-ratio", "1.01"): ("packing_ratio", 1.01),
    ("--max-skipped", "1.5"): ("max_skipped", 1.5),
    ("--seed", "-1"): ("seed", -1),
    ("--min-pixels", "-1"): ("min_pixels", -1),
    ("--max-packs", "-1"): ("max_packs", -1),
    ("--group-size", "0"): ("group_size", 0),
    ("--group-size", str(1 << 24)): ("group_size", 1 << 24),
    ("--shard-mb", "0"): ("shard_mb", 0),
    ("--max-row-bytes", "0"): ("max_row_bytes", 0),
    ("--max-import-ratio", "0"): ("max_import_ratio", 0),
    ("--media-timeout", "-1"): ("media_timeout", -1.0),
    ("--max-image-pixels", "200000000"): ("max_image_pixels", 200_000_000),
    ("--align", "0"): ("align", 0),
    ("--pack-size", "16", "--align", "16"): ("packing_ratio", 1.0),
    ("--pack-size", "100", "--align", "8"): ("align", 8),
    ("--min-pixels", "2", "--max-pixels", "1"): ("min_pixels", 2),
}


@pytest.mark.parametrize(("flags", "named"), WRONG_VALUES.items(), ids=map(" ".join, WRONG_VALUES))
def test_wrong_values(flags: tuple[str, ...], named: tuple[str, Any]) -> None:
    option, got = named
    with raises(UserError, "option-invalid", option=option, got=got):
        load(*flags, required=REQUIRED)


def test_ratio_is_a_number() -> None:
    with raises(UserError, "option-invalid", option="packing_ratio"):
        load("--packing-ratio", "nan", required=REQUIRED)


def test_missing_keys_are_all_named(yaml: Any) -> None:
    with raises(UserError, "option-missing", options=["--meta", "--processor", "--out"]):
        load(required=())
    with raises(UserError, "option-missing", options=["--processor", "--out"]):
        load("--config", yaml("meta: /m.json\nout: ''\n"), required=())


def test_optional_keys_may_be_missing() -> None:
    config = load(required=("--meta", "/m.json", "--processor", "p"), optional=("out",))
    assert config.out == ""


BROKEN_YAML: tuple[str | bytes, ...] = (
    "pack_size: [",
    "pack_size: 256\nseed: 1\npack_size: 512",
    "",
    "- pack_size",
    "pack_size",
    b"meta: \xe9",
    "meta: !!python/object/apply:os.getcwd []\n",  # it runs nothing
    "[" * 100_000,
    "a: " + "{b: " * 3000,
    "- " * 5000 + "x",
)


@pytest.mark.parametrize("text", BROKEN_YAML, ids=lambda text: repr(text[:40]))
def test_broken_yaml(yaml: Any, text: str | bytes) -> None:
    file = yaml(text)
    with raises(UserError, "config-unreadable", file=file):
        load("--config", file, required=REQUIRED)


def test_yaml_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with raises(UserError, "config-unreadable", file=str(path)):
            load("--config", str(path), required=REQUIRED)


# ---------------------------------------------------------------- paths


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yaml: Any) -> None:
    (tmp_path / "here" / "processor").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/me")
    config = load(
        "--config", yaml("work: ../w\n"), required=("--meta", "m.json", "--processor", "processor", "--out", "~/o")
    )
    assert config.meta == str(tmp_path / "here" / "m.json")  # against the caller's folder, not the YAML's
    assert config.work == str(tmp_path / "w")
    assert config.out == "/home/me/o"
    assert config.processor == str(tmp_path / "here" / "processor")
    assert load(required=(*REQUIRED[:2], "--processor", "Qwen/Qwen2-VL", *REQUIRED[4:])).processor == "Qwen/Qwen2-VL"


@pytest.fixture
def job_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which Ray runs a submitted job."""
    folder = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    return folder


@pytest.mark.parametrize(
    "flags",
    [("--out", "o"), ("--meta", "m.json"), ("--work", "w"), ("--out", "./o"), ("--out", "../o")],
    ids=" ".join,
)
def test_relative_paths_are_refused_inside_a_ray_job(job_copy: Path, flags: tuple[str, str]) -> None:
    with raises(UserError, "option-invalid", option=flags[0], got=flags[1]):
        load(*flags, required=REQUIRED)


@pytest.mark.parametrize("flag", ["--meta", "--out", "--work"])
def test_a_uri_stays_as_it_is_and_has_no_password(flag: str) -> None:
    """It was taken for a local folder called "s3:"."""
    assert getattr(load(flag, "s3://bucket/x"), flag[2:]) == "s3://bucket/x"
    with raises(UserError, "uri-invalid", name=flag) as caught:
        load(flag, "s3://key:secret@bucket/x", required=REQUIRED)
    assert "s3://bucket/x" in str(caught.error) and "secret" not in str(caught.error)
    with raises(UserError, "uri-invalid", name=flag[2:]):
        PackConfig(**({"meta": "m", "processor": "p"} | {flag[2:]: "gopher://b/x"}))


def test_absolute_paths_are_taken_inside_a_ray_job(job_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert load("--work", "~/w") == PackConfig(meta="/m.json", processor="p", out="/o", work="/home/me/w")


def test_relative_paths_are_taken_elsewhere(job_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    assert absolute("--out", "o") == str(job_copy / "o")  # no job, a folder of that name
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.chdir(tmp_path)
    assert absolute("--out", "o") == str(tmp_path / "o")  # a cluster, but no job


def test_work_lies_in_the_output_unless_named() -> None:
    assert PackConfig(out="/o").work_dir.path == Path("/o/work")
    assert PackConfig(out="/o", work="/w").work_dir.path == Path("/w")


# ---------------------------------------------------------------- what follows from a config


def test_drop_long_samples_wins_over_overlong() -> None:
    assert PackConfig().overlong_policy == "drop"
    assert PackConfig(overlong="truncate").overlong_policy == "truncate"
    assert PackConfig(overlong="truncate", drop_long_samples=True).overlong_policy == "drop"
    assert PackConfig(overlong="truncate", drop_long_samples=False).overlong_policy == "error"


def test_overlong_by_default_and_by_choice_give_the_same_output() -> None:
    default, chosen = PackConfig(), PackConfig(overlong="drop")
    assert (default.accepts_overlong, chosen.accepts_overlong) == (False, True)
    assert PackConfig(drop_long_samples=True).accepts_overlong
    assert default.shaping("plan") == chosen.shaping("plan") == PackConfig(drop_long_samples=True).shaping("plan")


def test_fill() -> None:
    assert PackConfig(pack_size=1000, packing_ratio=0.9).fill == 900
    assert PackConfig(pack_size=1001, packing_ratio=0.5).fill == 500
    assert PackConfig(pack_size=1000).fill == 1000
    assert PackConfig(pack_size=1000, packing_ratio=0.9, align=8).fill == 896


def test_what_is_held_out_goes_beside_with_the_same_work_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PackConfig(out="/data/packed", holdout=0.01, pack_size=100)
    beside = PackConfig(out="/data/packed-holdout", work="/data/packed/work", holdout=0.01, pack_size=100)
    assert config.for_holdout() == beside
    assert PackConfig(out="/data/packed/", work="/w").for_holdout().out == "/data/packed-holdout"
    monkeypatch.chdir("/usr")
    assert PackConfig(out=".", work="/w").for_holdout().out == "/usr-holdout"
    assert PackConfig(work="/w").for_holdout() == PackConfig(work="/w")  # a plan needs no output


def test_every_frame_is_a_rate_of_videos(yaml: Any) -> None:
    """As a flag, in YAML and from a program; a manifest has it as a word, since JSON has no infinity."""
    configs = [load("--video-fps", "all"), load("--config", yaml("video_fps: all\n")), PackConfig(video_fps="all")]  # type: ignore[arg-type]
    assert [config.video_fps for config in configs] == [math.inf] * 3
    assert configs[0].shaping("measure")["video_fps"] == "all"
    with raises(UserError, "option-invalid", option="video_fps", got="some"):
        load("--video-fps", "some")


def test_shaping_holds_what_shapes_a_stage_and_nothing_else() -> None:
    config = PackConfig(pack_size=100, datasets=("a",))
    assert config.shaping("measure") == {
        "family": "",
        "placeholders": "strict",
        "train_on": "all-assistant",
        "reasoning": "train",
        "min_pixels": 0,
        "max_pixels": 0,
        "video_fps": 0.0,
        "video_min_frames": 0,
        "video_max_frames": 0,
        "video_min_pixels": 0,
        "video_max_pixels": 0,
        "use_audio_in_video": False,
        "max_image_pixels": 100_000_000,
        "max_media_seconds": 21_600.0,
        "max_media_bytes": 4 << 30,
        "max_row_bytes": 64 << 20,
        "empty_thought": False,
        "float_pixels": False,
    }
    assert config.shaping("render") == {"resize": "torch", "pixels": "", "shard_mb": 256}
    assert config.shaping("plan") == {
        "holdout": 0.0,
        "pack_size": 100,
        "packing_ratio": 1.0,
        "max_visual_tokens": 0,
        "overlong": "drop",
        "max_packs": 0,
        "group_size": 512,
        "cost": "7b",
        "partition_samples": 4_000_000,
        "align": 1,
        "seed": 0,
        "group_by": "media",
        "fake_image": True,
    }
    everything = config.shaping("measure", "plan", "render")
    assert everything == config.shaping("measure") | config.shaping("plan") | config.shaping("render")
    unshaped = {field.name for field in dataclasses.fields(config)} - everything.keys()
    free = {
        "meta", "processor", "out", "allow_unknown_keys", "datasets", "trust_remote_code", "allow_http", "allow_hosts",
        "media_prefixes", "parquet_media", "max_skipped", "media_timeout", "check_media", "work", "engine",
        "num_workers", "record_paths", "overwrite", "keep_going", "drop_long_samples", "max_import_ratio",
    }  # fmt: skip
    assert unshaped == free


def test_fingerprint_changes_with_every_part() -> None:
    print_ = fingerprint({"a": 1, "b": [1, 2]}, "x")
    assert len(print_) == 20
    assert print_ == fingerprint({"b": [1, 2], "a": 1}, "x")  # the order of keys says nothing
    others = [
        fingerprint({"a": 1, "b": [2, 1]}, "x"),
        fingerprint({"a": 2, "b": [1, 2]}, "x"),
        fingerprint({"a": 1, "b": [1, 2]}, "y"),
        fingerprint({"a": 1, "b": [1, 2]}),
        fingerprint("x", {"a": 1, "b": [1, 2]}),
    ]
    assert len({print_, *others}) == 6
    assert fingerprint("ab", "c") != fingerprint("a", "bc")


def test_fingerprint_is_stable() -> None:
    """A literal: outputs that exist must be recognised by later versions."""
    assert fingerprint({"pack_size": 8192, "text": "é"}, [1, None]) == "4827e146209ae294fa07"


@pytest.mark.parametrize(
    "given",
    [
        {"pack_size": "256"},
        {"pack_size": 256.0},
        {"pack_size": True},
        {"pack_size": 1 << 31},
        {"seed": 10**20},
        {"holdout": "0.1"},
        {"fake_image": "no"},
        {"overlong": "cut"},
        {"datasets": "coco"},
        {"datasets": [1]},
        {"meta": None},
    ],
    ids=str,
)
def test_what_a_program_gives_is_of_its_type(given: dict[str, Any]) -> None:
    ((option, got),) = given.items()
    with raises(UserError, "option-invalid", option=option, got=got):
        PackConfig(**given)


def test_a_program_may_give_paths_and_lists() -> None:
    config = PackConfig(meta=Path("/data/meta.json"), datasets=["coco"], max_skipped=1)  # type: ignore[arg-type]
    assert config == PackConfig(meta="/data/meta.json", datasets=("coco",), max_skipped=1.0)
