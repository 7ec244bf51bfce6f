"""Named data sets of the Hugging Face hub as conversations: one file each, one line each in SOURCES.

Online, `make_cord_v2_dataset()` gives examples to train on; offline, `"source": "cord_v2"` in the meta JSON packs them.
"""

from collections.abc import Callable

from .cord_v2 import make_cord_v2_dataset as make_cord_v2_dataset
from .cv17 import make_cv17_dataset as make_cv17_dataset
from .examples import Examples as Examples
from .medpix import make_medpix_dataset as make_medpix_dataset
from .rdr import make_rdr_dataset as make_rdr_dataset
from .unimm_chat import make_unimm_chat_dataset as make_unimm_chat_dataset

SOURCES: dict[str, Callable[..., Examples]] = {
    "rdr": make_rdr_dataset,
    "cord_v2": make_cord_v2_dataset,
    "medpix": make_medpix_dataset,
    "cv17": make_cv17_dataset,
    "unimm_chat": make_unimm_chat_dataset,
}
