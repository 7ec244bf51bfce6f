"""A pack of a finished output, read and checked, and what is known of its documents beside it."""

import os
from collections.abc import Sequence

from neatpack.format.layout import layout_of
from neatpack.format.manifest import Manifest
from neatpack.format.members import Pack
from neatpack.format.output import OutputReader
from neatpack.storage.location import Location, PathLike

from ..config import UserError
from ..families.restore import load_renderer
from ..measure.store import read_measured
from ..plan.files import lines_of_pack, read_list, read_paths
from ..records import MeasuredMedia
from ..shard.sources import SourceError, files_of, processor_of
from ..shard.words import counted, size
from .document import PackView
from .of_pack import Known, near, pack_view
from .tokens import Decoder, load_decoder

LOOKED_THROUGH = 64 << 20  # bytes of data files in which lines are counted: a fraction of a second


def stored_view(
    out: PathLike, manifest: Manifest, number: int, *, only: int | None = None, processor: str = "",
    trust_remote_code: bool = False, follow: bool = False,
) -> PackView:  # fmt: skip
    """Return pack `number` of an output. Raises UserError for a number that it has not, OutputError for damage.

    `follow`: open the processor, the data files and the token store that the output names.
    """
    out = Location.parse(out)
    if not 0 <= number < manifest.counts.packs:
        raise UserError(
            f"pack {number}: {out} has {counted(manifest.counts.packs, 'pack')}, {_range(manifest)}",
            code="document-unknown",
            out=str(out),
            pack=number,
            packs=manifest.counts.packs,
        )
    pack = stored_pack(out, number)
    if only is not None and not 0 <= only < len(pack.documents):
        valid = f"0 to {len(pack.documents) - 1}" if len(pack.documents) > 1 else "number 0"
        has = counted(len(pack.documents), "document")
        raise UserError(
            f"--doc {only}: pack {number} has {has}, {valid}",
            code="document-unknown",
            pack=number,
            document=only,
            documents=len(pack.documents),
        )
    wanted = range(len(pack.documents)) if only is None else [only]
    notes: list[str] = []
    given = processor or (processor_of(out) if follow else "")
    decoder = _decoder(given, manifest, notes, is_named=not processor, trust_remote_code=trust_remote_code)
    places = _places(out, pack, wanted, notes, follow=follow)
    measured = _measured(out, manifest, pack) if follow else {}
    return pack_view(
        f"pack {number} of {os.path.relpath(out) if out.is_local else out}",
        pack,
        layout_of(manifest.family),
        manifest.family,
        pack_size=manifest.identity.config["pack_size"],
        decoder=decoder,
        known={at: Known(place=places.get(at, ""), media=measured.get(at, ())) for at in wanted},
        only=only,
        notes=notes,
    )


def _range(manifest: Manifest) -> str:
    count = manifest.counts.packs
    return "none to show" if not count else "number 0" if count == 1 else f"numbers 0 to {count - 1}"


def stored_pack(out: Location, number: int) -> Pack:
    """Read one pack and compare it with the index. Raise OutputError; for the pack itself, ShardError."""
    return OutputReader(out, load_renderer, check="read").read_pack(number)


def _decoder(
    given: str, manifest: Manifest, notes: list[str], *, is_named: bool, trust_remote_code: bool
) -> Decoder | None:
    """None, and a note that says what to give, where there is no tokenizer. `is_named`: by the output."""
    if not given:
        notes.append(
            "texts are token ids: give --processor PATH, or --follow-sources if you trust the output and it names its "
            "processor (in OUT/work, or with --record-paths)"
        )
        return None
    try:
        decoder = load_decoder(given, trust_remote_code=trust_remote_code)
    except UserError as error:
        if not is_named:
            raise
        why = str(error).splitlines()[0].removeprefix("--processor ")
        notes.append(f"texts are token ids: the processor that it was packed with cannot be used: {why}; "
                     "give --processor PATH")  # fmt: skip
        return None
    marks = {manifest.family["end_of_turn_id"], *manifest.family["placeholder_ids"].values()}
    if not marks & decoder.added:
        notes.append(
            f"texts may be wrong: {min(marks)}, a token of the chat template in these packs, is no special one in "
            f"{given}; give the --processor that it was packed with"
        )
    return decoder


def _places(out: Location, pack: Pack, wanted: Sequence[int], notes: list[str], *, follow: bool) -> dict[int, str]:
    """Return file:line of each document, as far as the files are there and as they were; unless `follow`, the file."""
    places: dict[int, str] = {}
    names = {pack.documents[at].dataset for at in wanted if pack.documents[at].row >= 0}
    for name in sorted(names):
        rows = {at: pack.documents[at].row for at in wanted if pack.documents[at].dataset == name}
        try:
            files = files_of(out, name, follow=follow)
        except SourceError as error:
            notes.append(str(error))
            continue
        for file in files:
            mine = {at: row for at, row in rows.items() if 0 <= row - file.first_row < file.num_rows}
            shown = near(file.file) if follow else file.file
            places |= dict.fromkeys(mine, shown)
            if not mine or file.lines is None or not file.is_jsonl:
                continue
            try:
                if (length := file.lines.stat().st_size) > LOOKED_THROUGH:
                    notes.append(
                        f"{shown}: lines are not counted in {size(length)}; `neatpack skipped` has row numbers"
                    )
                    continue
                lines = {row.number: row.line for row in file.rows(sorted(set(mine.values())))}
            except OSError as error:
                notes.append(f"{shown}: {error.strerror}")
            except SourceError as error:
                notes.append(str(error))
            else:
                places |= {at: f"{shown}:{lines[row]}" for at, row in mine.items() if row in lines}
    return places


def _measured(out: Location, manifest: Manifest, pack: Pack) -> dict[int, tuple[MeasuredMedia, ...]]:
    """Media as they were measured (file, size of the source, tiles), by position: as far as OUT/work still knows.

    A finished output does not need its work folder, so whatever is not there is not known, and that is no problem.
    """
    plans = out / "work" / "plans"
    files = read_list(plans / f"{manifest.fingerprint}.list.json")
    parts = plans / f"{manifest.fingerprint}.parts.arrow"
    lines = lines_of_pack(plans, files, pack.number) if files and parts.is_file() else []
    paths = read_paths(parts, {line["part"] for line in lines}) if lines else {}
    found = {}
    for line in lines:
        path, at = paths[line["part"]], line["position"]
        is_here = at < len(pack.documents) and pack.documents[at].row == line["row"]
        if is_here and path.is_file() and (measured := read_measured(path, line["line"])) is not None:
            found[at] = measured.media
    return found
