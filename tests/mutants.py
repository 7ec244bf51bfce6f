"""Breaks the product by hand, in one place at a time, and shows that the net notices.

    python tests/mutants.py                    all mutants
    python tests/mutants.py swapped-ranks …    these

Each is applied to a copy of the tree, where the tests that are named run until the first failure. Exit code 1: a mutant
was not caught, or its text is not found any more ("to be moved": the code was, so move the mutant along).
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = "tests/golden/test_golden.py::test_outputs_of_one_family"
ORDERS = "tests/golden/test_golden.py::test_orders_printed_tables_and_signatures[orders]"
PROMISES = "tests/test_promises.py::test_"


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    tests: str  # of the net, separated by blanks


MUTANTS = {
    # Labels and positions
    "label-off-by-one": Mutant(
        "pipeline/labels.py",
        'values[1:][is_kept[:-1]] if name == "labels" else values[is_kept]',
        "values[is_kept]",
        OUTPUTS,
    ),
    "shift-across-documents": Mutant(
        "pipeline/labels.py",
        "is_kept[ends - 1] = False",
        "is_kept[np.append(0, ends[:-1])] = False",
        OUTPUTS,
    ),
    "prompt-is-trained-on": Mutant(
        "pipeline/labels.py",
        "skipped = len(markers.header) + markers.tail",
        "skipped = len(markers.header)",
        OUTPUTS,
    ),
    "end-of-turn-is-not-trained-on": Mutant(
        "pipeline/labels.py", "min(min(ends) + 1, length)", "min(min(ends), length)", OUTPUTS
    ),
    "wrong-position-axis": Mutant(
        "pipeline/mrope.py",
        "block[1] = current + np.arange(rows)[None, :, None]\n"
        "        block[2] = current + np.arange(columns)[None, None, :]",
        "block[2] = current + np.arange(rows)[None, :, None]\n"
        "        block[1] = current + np.arange(columns)[None, None, :]",
        OUTPUTS,
    ),
    "positions-after-an-image": Mutant(
        "pipeline/mrope.py", "current += max(rows, columns)", "current += frames * rows * columns", OUTPUTS
    ),
    "padding-of-a-batch-is-trained-on": Mutant(
        "loaders/packed.py", 'labels = stacked("labels", IGNORE)', 'labels = stacked("labels", 0)',
        PROMISES + "what_fills_a_batch_up_is_not_trained_on",
    ),
    "mask-leak": Mutant(
        "loaders/masks.py",
        "cells[start:stop, first:start] = not additive",
        "cells[start:stop, :start] = not additive",
        "tests/loaders/test_equivalence.py",
    ),
    "loss-counts-prompts": Mutant(
        "loaders/loss.py", 'batch["labels"] != IGNORE', 'batch["input_ids"] != IGNORE', "tests/loaders/test_loss.py"
    ),
    # Pixels
    "wrong-table-is-restored": Mutant(
        "loaders/pixels.py", "tables[kind] = table.copy()", "tables[kind] = table[::-1].copy()",
        "tests/test_promises.py",
    ),
    "wrong-table-is-written": Mutant(
        "pipeline/shard/commit.py",
        "np.lib.format.write_array(hashed, values)",
        "np.lib.format.write_array(hashed, values[::-1].copy())",
        "tests/test_promises.py",
    ),
    "wrong-codec-bytes": Mutant(
        "neatpack/format/pixels.py", "compression_level=LEVEL", "compression_level=LEVEL + 8", OUTPUTS
    ),
    "media-of-the-wrong-document": Mutant(
        "pipeline/shard/writer.py",
        "self.sources.extend((medium.ref.kind, image_file(medium)) for medium in media)",
        "self.sources[:0] = [(medium.ref.kind, image_file(medium)) for medium in media]",
        OUTPUTS,
    ),
    "image-upside-down": Mutant(
        "pipeline/media/image.py",
        "ImageOps.exif_transpose(image, in_place=True)",
        "image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)",
        "tests/test_nasty.py " + OUTPUTS,
    ),
    # Rows, packs and the ledger
    "dropped-row": Mutant(
        "pipeline/shard/writer.py",
        "                kept.append(at)\n                rendered.append((found, found))\n                continue",
        "                if at != 1:\n                    kept.append(at)\n"
        "                    rendered.append((found, found))\n                continue",
        OUTPUTS,
    ),
    "doubled-row": Mutant(
        "pipeline/ingest/corpus.py", "dataset.sample_ratio)", "2 * dataset.sample_ratio)", OUTPUTS
    ),
    "copies-in-one-pack": Mutant(
        "pipeline/plan/mixing.py",
        "    pack = pack.copy()\n    movable",
        "    return pack.copy()\n    movable",
        PROMISES + "copies_of_a_row_are_in_different_packs " + OUTPUTS,
    ),
    "holdout-leak": Mutant(
        "pipeline/ingest/corpus.py",
        "trained[~is_held] = copies_of_rows(int(np.count_nonzero(~is_held))",
        "trained[:] = copies_of_rows(len(is_held)",
        PROMISES + "no_row_is_on_both_sides_of_a_holdout " + OUTPUTS,
    ),
    "holdout-by-position": Mutant(
        "pipeline/ingest/holdout.py",
        "row_hash(line, dataset, embedded, max_row_bytes) < share * 2**64 for *_, line",
        "row_hash(b'%d' % hash(str(more)), dataset, embedded, max_row_bytes) < share * 2**64 for *more, line",
        PROMISES + "no_row_is_on_both_sides_of_a_holdout",
    ),
    "ledger-reason-lost": Mutant(
        "pipeline/shard/writer.py",
        "return _lost(line, error.skip.reason, error.skip.detail)",
        'return _lost(line, "missing_media", error.skip.detail)',
        PROMISES + "media_that_fail_while_rendering_are_counted_and_end_the_command_with_1",
    ),
    "ledger-position": Mutant(
        "pipeline/shard/ledger.py", '("position", -1), ("repeat", 0)', '("row", -1), ("repeat", 0)', OUTPUTS
    ),
    "index-counts-prompts": Mutant(
        "pipeline/shard/note.py",
        'np.count_nonzero(pack.arrays["labels"] >= 0)',
        'np.count_nonzero(pack.arrays["input_ids"] >= 0)',
        PROMISES + "index_and_ledger_say_what_the_loader_gives",
    ),
    "no-fake-image": Mutant(
        "pipeline/render/pack.py", "add_fake = fake_image and", "add_fake = not fake_image and", OUTPUTS
    ),
    "alignment": Mutant(
        "pipeline/render/pack.py", "padded = lengths + -lengths % align", "padded = lengths + align - lengths % align",
        OUTPUTS,
    ),
    "truncated-too-short": Mutant(
        "pipeline/measure/length.py", "limit + 1, side=", "limit, side=", "tests/test_run.py::TestOverlong"
    ),
    # What is safe to kill, to repeat and to share
    "missing-fsync": Mutant(
        "neatpack/storage/files.py",
        "                with name_errors(path):\n                    os.fsync(file.fileno())",
        "                pass",
        PROMISES + "files_are_synced_before_they_get_their_names_and_the_manifest_comes_last",
    ),
    "folder-is-not-synced": Mutant(
        "neatpack/storage/files.py",
        "            sync_folder(path.parent)",
        "            pass",
        PROMISES + "files_are_synced_before_they_get_their_names_and_the_manifest_comes_last",
    ),
    "resume-skips-a-part": Mutant(
        "pipeline/stages.py",
        "what = fingerprint(part.file, part.origin, part.digest, part.num_rows, part.first_line, taken)",
        "what = fingerprint(part.file, part.origin, part.first_line, taken)",
        PROMISES + "rows_that_are_edited_are_measured_whatever_the_work_folder_has",
    ),
    "half-a-shard-is-resumed": Mutant(
        "pipeline/shard/writer.py",
        "if note is not None and tars.get(shard_name(number)) == note.bytes:",
        "if note is not None and shard_name(number) in tars:",
        PROMISES + "a_shard_that_a_killed_run_left_half_is_written_again",
    ),
    "stale-output-accepted": Mutant(
        "pipeline/shard/commit.py",
        "        if theirs != identity:",
        "        if False:",
        PROMISES + "rows_that_are_edited_are_measured_whatever_the_work_folder_has",
    ),
    "lock-ignored": Mutant(
        "neatpack/storage/lock.py",
        "        if not _ends(owner):\n            raise _busy(path, owner)\n",
        "",
        PROMISES + "two_runs_at_once_are_one",
    ),
    "strangers-overwritten": Mutant(
        "pipeline/shard/commit.py", "if strangers and not ours:", "if False:", "tests/commands/test_pack.py"
    ),
    "media-outside-allowed": Mutant(
        "pipeline/ingest/media_paths.py",
        "if folders.bounds is None or is_inside(path, folders.bounds, folders.search):",
        "if True:",
        PROMISES + "rows_open_media_of_their_own_folders_only",
    ),
    "links-lead-outside": Mutant(
        "pipeline/ingest/media_paths.py",
        "(not os.path.islink(path) or places.has(os.path.realpath(path)))",
        "True",
        PROMISES + "rows_open_media_of_their_own_folders_only",
    ),
    # Exit codes and verification
    "exit-code": Mutant(
        "pipeline/commands/pack.py", "return FAILED if any(lost) else DONE", "return DONE",
        PROMISES + "media_that_fail_while_rendering_are_counted_and_end_the_command_with_1",
    ),
    "verify-skips-digests": Mutant(
        "pipeline/shard/verify.py", "if digest == sha256:", "if True:", "tests/commands/test_verify.py"
    ),
    "manifest-is-not-verified": Mutant(
        "neatpack/format/manifest.py", 'if not _is_signed(content, found.get("digest")):', "if False:",
        PROMISES + "a_changed_letter_of_a_manifest_is_an_error",
    ),
    "loader-skips-crc": Mutant(
        "neatpack/format/output.py", "zlib_ng.crc32(content)) != found.crc32", "zlib_ng.crc32(content)) < 0",
        "tests/loaders/test_stream.py",
    ),
    # The loader
    "swapped-ranks": Mutant(
        "loaders/order.py", "[rank::world_size]", "[world_size - 1 - rank :: world_size]", ORDERS
    ),
    "same-order-every-epoch": Mutant(
        "loaders/order.py", "if number else [seed, turn]", "if number else [seed, 0]", ORDERS
    ),
    "resume-from-the-start": Mutant(
        "loaders/dataset.py",
        'epoch, position = (whole(f"{name} of the state", state.get(name)) for name in ("epoch", "position"))',
        'epoch, position = whole("epoch of the state", state.get("epoch")), 0',
        ORDERS,
    ),
    "mixture-ignores-weights": Mutant(
        "loaders/order.py", "exact = np.array(weights, dtype=np.float64) / sum(weights) * total",
        "exact = np.ones(len(weights)) / len(weights) * total", ORDERS,
    ),
    "media-of-the-wrong-microbatch": Mutant(
        "loaders/pp_media.py", "return _cut(pixel_values, _sums(rows, images)), _cut(image_grid, images)",
        "return _cut(pixel_values, _sums(rows, images))[::-1], _cut(image_grid, images)",
        "tests/loaders/test_pp_media.py",
    ),
}  # fmt: skip


def run_mutant(mutant: Mutant) -> str:
    """Return "caught", "NOT CAUGHT" or "to be moved"."""
    file = ROOT / mutant.file
    text = file.read_text() if file.is_file() else ""
    if mutant.old not in text:
        return "to be moved"
    with tempfile.TemporaryDirectory() as name:
        tree = copy_tree(Path(name) / "project")
        (tree / mutant.file).write_text(text.replace(mutant.old, mutant.new))
        code, printed = run_tests(tree, mutant.tests.split())
    if code not in (0, 1):
        raise RuntimeError(f"pytest ended with {code}: {printed[-2000:]}")
    return "caught" if code else "NOT CAUGHT"


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests of a tree in a fork of this process, which has imported what is slow to import."""
    output = tree.parent / "output"
    if not (child := os.fork()):
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(tree)
        os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.read_text()


def copy_tree(tree: Path) -> Path:
    """Copy what tests need; the environment and the shared data are linked."""
    for folder in ("neatpack", "pipeline", "loaders", "jobs", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    for name in ("docs", ".venv"):
        (tree / name).symlink_to(ROOT / name)
    (tree.parent / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def main(names: list[str]) -> int:
    import transformers.processing_utils  # noqa: F401 (for all forks)

    results = {}
    for name in names or MUTANTS:
        results[name] = run_mutant(MUTANTS[name])
        print(f"{results[name]:12} {name:36} {MUTANTS[name].file}", flush=True)
    caught = sum(result == "caught" for result in results.values())
    print(f"{caught} of {len(results)} caught")
    return int(caught < len(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
