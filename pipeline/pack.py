"""The script of the main job: `python pipeline/pack.py --meta … --processor … --out …`, the same as `neatpack pack`.

Needs no install: `ray job submit --working-dir . -- python pipeline/pack.py …` runs it from a bare checkout.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a script, this folder is first on sys.path, and its parent, which holds the package, is not there at all.
    checkout = Path(__file__).resolve().parent.parent
    sys.path[0] = str(checkout)
    # Ray's workers look where the program lies that was called, if that is on sys.path: let it be the checkout.
    sys.argv[0] = str(checkout / "neatpack")
    from neatpack.pipeline.cli import main

    raise SystemExit(main(["pack", *sys.argv[1:]], in_fork=True))
