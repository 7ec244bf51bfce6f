"""Named data sets of the Hugging Face hub as conversations: one file each, one line each in SOURCES.

Online, `make_cord_v2_dataset()` gives examples to train on; offline, `"source": "cord_v2"` in the meta JSON packs them.
"""

from collections.abc import Callable

from neatpack.pipeline.ingest.sources.cord_v2 import make_cord_v2_dataset
from neatpack.pipeline.ingest.sources.cv17 import make_cv17_dataset
from neatpack.pipeline.ingest.sources.examples import Examples
from neatpack.pipeline.ingest.sources.load import load
from neatpack.pipeline.ingest.sources.medpix import make_medpix_dataset
from neatpack.pipeline.ingest.sources.rdr import make_rdr_dataset
from neatpack.pipeline.ingest.sources.unimm_chat import make_unimm_chat_dataset

SOURCES: dict[str, Callable[..., Examples]] = {
    "rdr": make_rdr_dataset,
    "cord_v2": make_cord_v2_dataset,
    "medpix": make_medpix_dataset,
    "cv17": make_cv17_dataset,
    "unimm_chat": make_unimm_chat_dataset,
}

__all__ = [
    "SOURCES",
    "Examples",
    "load",
    "make_cord_v2_dataset",
    "make_cv17_dataset",
    "make_medpix_dataset",
    "make_rdr_dataset",
    "make_unimm_chat_dataset",
]
