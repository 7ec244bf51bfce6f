"""`make demo`: a data set is drawn, packed, proved, compared with other ways, looked at, and trained on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.demo.make_data import make_demo

PROCESSOR = os.path.relpath(Path(__file__).parent / "processor")


def main(folder: str) -> int:
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    meta, packed = Path(folder) / "data" / "meta.json", f"{folder}/packed"

    chapter(1, "A data set", "pictures drawn by code, conversations about them, text; eight rows are bad on purpose")
    make_demo(meta.parent)
    print(f"  {sum(1 for _ in meta.parent.rglob('*.*'))} files under {meta.parent}, named by {meta}")

    chapter(2, "Packed, once, on Ray", "exact lengths, full packs; what cannot be packed is skipped with a reason")
    what = ["--meta", str(meta), "--processor", PROCESSOR, "--pack-size", "2048", "--shard-mb", "16"]
    neatpack("pack", *what, "--out", packed)

    chapter(3, "Proved", "every row accounted for, every length as planned; then the rows that are in no pack")
    neatpack("verify", packed)
    neatpack("skipped", packed)

    from jobs.demo import compare, train

    chapter(4, "Compared", "the same samples padded, packed on the fly as trainers do it, and packed here")
    ways = compare.compare(meta, Path(packed))
    print(compare.table(ways))
    print(compare.meaning(ways))

    chapter(5, "Looked at", "one pack of it")
    neatpack("show", packed, "0", "--doc", "0")
    print(f"  the shards are plain webdataset tars: tar tf {packed}/shards/pack-000000.tar | head")
    print(f"  the whole output in pictures: open {packed}/report.html")

    chapter(6, "Trained on", "a tiny Qwen2.5-VL with random weights; packed training equals unpacked training")
    train.train(meta, Path(packed))

    print(f"\nThat was all, in {time.monotonic() - started:.0f} s. It lies in {folder}; README.md goes on from here.")
    return 0


def chapter(number: int, title: str, about: str) -> None:
    print(f"\n{number}. {title}: {about}", flush=True)


def neatpack(*arguments: str) -> None:
    """A command as a user gives it; if it fails, so does the demo."""
    print("$ neatpack " + " ".join(arguments), flush=True)
    code = subprocess.run([sys.executable, "-m", "neatpack.pipeline.cli", *arguments], check=False).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
