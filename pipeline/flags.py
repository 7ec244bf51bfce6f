"""PackConfig from flags and a YAML file. Unknown keys fail."""

import argparse
import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, Literal

from .config import ALL_FRAMES, PackConfig, UserError, absolute, flag
from .typed import described


def add_flags(parser: argparse.ArgumentParser, *, omit: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> None:
    """One flag per config key. Flags have no defaults here, so that an absent flag leaves the YAML's value alone."""
    parser.add_argument(
        "--config", metavar="FILE.yaml", help="the same keys from a YAML file (pack_size: 8192); flags win"
    )
    for f in dataclasses.fields(PackConfig):
        if f.name in omit:
            continue
        text, kind = f.metadata["help"], _field_types()[f.name]
        if f.metadata["required"] and f.name not in optional:
            text += " (required)"
        elif f.default not in ("", (), None):
            text += f" (default: {str(f.default).lower() if kind is bool else f.default})"
        if bool in _members(kind):
            parser.add_argument(flag(f.name), action=argparse.BooleanOptionalAction, default=None, help=text)
        elif typing.get_origin(kind) is Literal:
            choices = [value for value in typing.get_args(kind) if value]
            parser.add_argument(flag(f.name), choices=choices, help=text)
        elif once := f.metadata["flag"]:
            name = once.rpartition("-")[2].upper()
            parser.add_argument(once, dest=f.name, action="append", metavar=name, help=f"{text}; may be repeated")
        else:
            parser.add_argument(flag(f.name), metavar=f.name.upper(), help=text)


def load_config(args: argparse.Namespace, *, optional: tuple[str, ...] = ()) -> PackConfig:
    """The YAML file's keys, overridden by the flags; paths made absolute against the caller's directory."""
    known = {f.name: f for f in dataclasses.fields(PackConfig)}
    values: dict[str, Any] = {}
    if args.config:
        values = _read_yaml(Path(args.config))
        for key in values:
            if key not in known:
                raise UserError(
                    f"{args.config}: unknown key {key!r}; known: {', '.join(known)}",
                    code="option-unknown",
                    option=key,
                    known=list(known),
                )
    values |= {key: value for key, value in vars(args).items() if key in known and value is not None}
    parsed = {key: _parse(key, value) for key, value in values.items()}
    missing = [
        flag(key) for key, f in known.items() if f.metadata["required"] and key not in optional and not parsed.get(key)
    ]
    if missing:
        raise UserError(
            f"missing {', '.join(missing)}: give the flag, or the key in --config",
            code="option-missing",
            options=missing,
        )
    for key in ("meta", "out", "work"):
        if parsed.get(key):
            parsed[key] = absolute(flag(key), parsed[key])
    if parsed.get("media_prefixes"):
        parsed["media_prefixes"] = tuple(absolute("--media-prefix", each) for each in parsed["media_prefixes"])
    if parsed.get("processor") and Path(parsed["processor"]).is_dir():
        parsed["processor"] = str(Path(parsed["processor"]).resolve())
    return PackConfig(**parsed)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # comes with neatpack[pack]; flags, --help and a training machine do without

    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _once(yaml.SafeLoader))
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file", code="config-unreadable", file=str(path)) from None
    except OSError as error:
        raise UserError(
            f"--config {path}: cannot be read: {error.strerror}", code="config-unreadable", file=str(path)
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: not UTF-8: {error}", code="config-unreadable", file=str(path)) from None
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: not YAML: {error}", code="config-unreadable", file=str(path)) from None
    except RecursionError:
        raise UserError(
            f"--config {path}: nested too deep; expected keys and values like `pack_size: 8192`",
            code="config-unreadable",
            file=str(path),
        ) from None
    if not isinstance(values, dict):
        raise UserError(
            f"--config {path}: expected keys and values like `pack_size: 8192`, got {type(values).__name__}",
            code="config-unreadable",
            file=str(path),
        )
    return values


def _once(loader: Any) -> Any:
    """A loader of YAML to which a key that is there twice is an error; of its own, the last one wins."""
    import yaml

    class Once(loader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            for (key, _), value in zip(node.value, keys, strict=True):
                if keys.count(value) > 1:
                    raise yaml.YAMLError(f"{value!r} is there twice (line {key.start_mark.line + 1}); remove one")
            return super().construct_mapping(node, deep)

    return Once


def _field_types() -> dict[str, Any]:
    return typing.get_type_hints(PackConfig)


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _parse(key: str, value: Any) -> Any:
    """A flag's text or a YAML value as the type of its key."""
    kind = _field_types()[key]
    wrong = UserError(f"{key}: {value!r} is not {described(kind)}", code="option-invalid", option=key, got=value)
    if value is None and type(None) in _members(kind):
        return None
    if key == "video_fps" and value == ALL_FRAMES:
        return value
    if bool in _members(kind):
        if not isinstance(value, bool):
            raise wrong
        return value
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise wrong
        return value
    if typing.get_origin(kind) is tuple:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise wrong
        return tuple(name.strip() for name in names if name.strip())
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise wrong
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):  # OverflowError: infinite
        raise wrong from None
    if kind is int and isinstance(value, float):  # int(1.5) would drop the half in silence
        raise wrong
    return number
