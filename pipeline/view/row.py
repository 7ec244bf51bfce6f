"""A row before it is packed, through all stages, as a PackView."""

from pathlib import Path

from ..config import PackConfig
from ..records import REASONS
from ..row import RowPack, pack_row
from ..safe import safe_line
from .document import PackView
from .of_pack import Known, near, pack_view
from .tokens import decoder_of


def row_view(config: PackConfig, dataset: str, row: int, folder: Path) -> PackView:
    """Row `row` of a data set of config.meta. `folder`: for what is measured on the way."""
    found = pack_row(config, dataset, row, folder)
    title = f"{dataset} row {row}"
    if found.pack is None:
        return skipped_view(title, found, config)
    known = Known(place=_place(found), media=found.media, detail=found.detail)
    return pack_view(
        f"{title}, before packing",
        found.pack,
        found.family.media,
        found.family.described(),
        pack_size=config.pack_size,
        decoder=decoder_of(found.family.chat.tokenizer),
        known={0: known},
    )


def skipped_view(title: str, found: RowPack, config: PackConfig) -> PackView:
    """Why a row would be in no pack, in the words of `neatpack skipped`."""
    assert found.skip is not None
    name = f" (id {found.id})" if found.id else ""
    why = f"{found.skip.reason}: {found.skip.detail or REASONS[found.skip.reason]}"
    return PackView(
        title=safe_line(f"{title}, skipped"),
        family=found.family.name,
        pack_size=config.pack_size,
        lengths=(),
        documents=(),
        visual_tokens=0,
        target_tokens=0,
        skipped=safe_line(f"{_place(found)}: {title}{name}: {why}"),
    )


def _place(found: RowPack) -> str:
    """Lines of a rewriting are nobody's."""
    return near(found.part.origin) if found.part.origin else f"{near(found.part.file)}:{found.row.line}"
