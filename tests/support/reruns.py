"""Packs a dataset again and again as it changes, by one work folder."""

import shutil
from pathlib import Path
from typing import Any

from support.commands import assert_verified
from support.data import TinyData
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import run_pack


class Reruns:
    """Runs over 40 rows, one of them broken. Each output equals one that is made without a work folder."""

    def __init__(self, folder: Path, num_files: int = 1) -> None:
        self.folder, self.number = folder, 0
        self.data = TinyData(folder / "data")
        for number in range(40):
            self.data.text(f"Count to {number}.", " ".join(map(str, range(3 * number))))
        self.data.rows[20] = "{broken"
        self.data.write()
        lines = self.file.read_bytes().splitlines(keepends=True)
        self.files = [self.file]
        if num_files > 1:
            self.files = [folder / "data" / f"{number}.jsonl" for number in range(num_files)]
            for number, file in enumerate(self.files):
                start, end = (len(lines) * each // num_files for each in (number, number + 1))
                file.write_bytes(b"".join(lines[start:end]))
            self.data.write(file_name=[file.name for file in self.files])

    @property
    def file(self) -> Path:
        return self.folder / "data/rows.jsonl"

    def again(self, meta: Path | None = None, **config: Any) -> list[int]:
        """Return the first rows of the parts that were measured: each has a file in the work folder."""
        meta, self.number = meta or self.folder / "data/meta.json", self.number + 1
        out, alone = self.folder / f"out-{self.number}", self.folder / f"alone-{self.number}"
        before = self._measured()
        run_pack(tiny_config(meta, out, work=str(self.folder / "work"), max_skipped=1.0, **config))
        found = sorted(int(path.name.split("-")[0]) for path in self._measured() - before)
        run_pack(tiny_config(meta, alone, max_skipped=1.0, **config))
        assert_verified(out)
        assert files_of(out) == files_of(alone)
        shutil.rmtree(alone)
        return found

    def _measured(self) -> set[Path]:
        return set((self.folder / "work/measured").rglob("*.arrow"))
