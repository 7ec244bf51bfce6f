"""`make demo`: draw a data set, pack it on a local Ray, verify it, and show what came out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow.parquet as pq

from jobs.demo.make_data import make_demo

PROCESSOR = Path(__file__).parent / "processor"


def main(folder: str) -> int:
    out = Path(folder).resolve()
    shutil.rmtree(out, ignore_errors=True)
    meta = make_demo(out / "data")
    print(
        f"drew {sum(1 for _ in (out / 'data').rglob('*.*'))} files under {os.path.relpath(out / 'data')}\n", flush=True
    )
    packed = out / "packed"
    for command in (
        [
            "plan",
            "--meta",
            meta,
            "--processor",
            PROCESSOR,
            "--pack-size",
            "2048",
            "--work",
            packed / "work",
            "--engine",
            "inline",
        ],
        ["pack", "--meta", meta, "--processor", PROCESSOR, "--pack-size", "2048", "--out", packed, "--shard-mb", "16"],
        ["verify", packed],
    ):
        arguments = [os.path.relpath(part) if isinstance(part, Path) else part for part in command]
        print("$ neatpack " + " ".join(arguments), flush=True)
        code = subprocess.run([sys.executable, "-m", "pipeline.cli", *arguments], check=False).returncode
        if code:
            return code
        print(flush=True)
    show_skipped(packed)
    print(
        f"\nthe shards are plain webdataset tars: tar tf {os.path.relpath(packed / 'shards' / 'pack-000000.tar')} | head"
    )
    return 0


def show_skipped(packed: Path) -> None:
    """The rows that were not packed, as the ledger has them."""
    print("skipped, from the ledger:")
    for path in sorted((packed / "ledger").glob("*.parquet")):
        for line in pq.read_table(
            path, filters=[("status", "=", "skipped"), ("reason", "!=", "sampled_out")]
        ).to_pylist():
            detail = line["detail"].replace(str(packed.parent) + "/", "")
            print(f"  {line['dataset']:<8} row {line['row']:>3}  {line['reason']:<16} {detail[:90]}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
