"""`make demo`: draw a data set, pack it on a local Ray, verify it, and show what came out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.demo.make_data import make_demo

PROCESSOR = os.path.relpath(Path(__file__).parent / "processor")


def main(folder: str) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    meta = make_demo(Path(folder) / "data")
    print(f"drew {sum(1 for _ in meta.parent.rglob('*.*'))} files under {folder}/data\n", flush=True)
    packed = f"{folder}/packed"
    what = ["--meta", str(meta), "--processor", PROCESSOR, "--pack-size", "2048"]
    for arguments in (
        ["plan", *what, "--work", f"{packed}/work", "--engine", "inline"],
        ["pack", *what, "--out", packed, "--shard-mb", "16"],
        ["verify", packed],
        ["skipped", packed],
    ):
        print("$ neatpack " + " ".join(arguments), flush=True)
        code = subprocess.run([sys.executable, "-m", "neatpack.pipeline.cli", *arguments], check=False).returncode
        if code:
            return code
        print(flush=True)
    print(f"what is in it, in a page: {packed}/report.html")
    print(f"the shards are plain webdataset tars: tar tf {packed}/shards/pack-000000.tar | head")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "demo-out"))
