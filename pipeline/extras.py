"""Which extra brings a module that is missing. `pip install neatpack` is what training needs; packing needs more."""

import sys
from importlib.util import find_spec

# As in pyproject.toml, but by the names one imports; tests/test_install.py holds the two to each other.
EXTRAS = {
    "pack": ("ray", "transformers", "av", "yaml", "jinja2", "tiktoken"),
    "online": ("transformers", "av", "jinja2", "tiktoken"),
    "sources": ("datasets",),
}
# Packages that shape the tensors, and pyarrow, whose zstd shapes the stored bytes.
VERSIONED = ("transformers", "tokenizers", "torch", "pillow", "av", "numpy", "pyarrow")
PACKAGES = {"yaml": "pyyaml"}  # where the package is not called as its module


def remedy(missing: str | None, what: str, extra: str) -> str:
    """neatpack pack needs ray, which is not installed: pip install 'neatpack[pack]'

    `missing` is the name of a ModuleNotFoundError, `extra` what one who wants `what` would install. Empty for modules
    that no extra brings: part of something that is installed, but broken.
    """
    for name in (extra, *EXTRAS):
        if missing in EXTRAS[name]:
            package = PACKAGES.get(missing, missing)
            return f"{what} needs {package}, which is not installed: pip install 'neatpack[{name}]'"
    return ""


def first_missing(extra: str) -> str | None:
    """A module of the extra that is not installed; nothing is imported to find out."""
    return next((module for module in EXTRAS[extra] if not _is_there(module)), None)


def _is_there(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None
