"""How large and how long a medium may be, and what data files may unpack to.

Media are opened far below what the config reaches, and in programs that have none (packing online): the limits come by
the environment.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

from ..config import PackConfig, flag
from ..records import MediaError, MediaRef

LIMITS = "NEATPACK_LIMITS"  # environment variable: the limits as JSON. Absent: the defaults of the config

_DEFAULTS = PackConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """As the config has them."""

    max_image_pixels: int = _DEFAULTS.max_image_pixels
    max_media_seconds: float = _DEFAULTS.max_media_seconds
    max_media_bytes: int = _DEFAULTS.max_media_bytes
    media_timeout: float = _DEFAULTS.media_timeout
    max_row_bytes: int = _DEFAULTS.max_row_bytes
    max_row_tokens: int = _DEFAULTS.max_row_tokens
    max_import_ratio: int = _DEFAULTS.max_import_ratio

    @classmethod
    def of(cls, config: PackConfig) -> "Limits":
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    def check(self, name: str, value: float, ref: MediaRef, unit: str) -> None:
        """Refuses a medium that is above the limit of this name."""
        if value > getattr(self, name):
            shown = f"{value:.0f} {unit}, above {flag(name)} {getattr(self, name):.0f}"
            raise MediaError("bad_media", f"{ref.shown}: {shown}", medium=ref.shown)


def limits() -> Limits:
    return _parsed(os.environ.get(LIMITS, ""))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Limits:
    return Limits(**json.loads(text)) if text else Limits()
