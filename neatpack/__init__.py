"""Pack multimodal conversations into webdataset shards, once and exactly, and feed them to a training loop.

    neatpack.pipeline   the packing job: `neatpack pack`, or run_pack(PackConfig(...))
    neatpack.loaders    the loader: PackedShards and its collaters; neatpack.loaders.online packs on the fly

`__init__.pyi` lists the public names. Each is imported on first use: `import neatpack` is instant, and a training
machine, which only reads shards, needs neither Ray nor transformers.
"""

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

__version__ = "0.11.0"

_STUB = _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module) for node in _STUB.body if isinstance(node, _ast.ImportFrom) for alias in node.names
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    try:
        return getattr(_import_module(home), name)
    except ModuleNotFoundError as error:
        from neatpack.pipeline.extras import remedy

        extra = "online" if home == "neatpack.loaders.online" else "pack"
        if message := remedy(error.name, f"neatpack.{name}", extra):
            raise ModuleNotFoundError(message, name=error.name) from None
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
