"""The script of the main job: `python pipeline/pack.py --meta … --processor … --out …`, the same as `neatpack pack`.

Needs no install: `ray job submit --working-dir . -- python pipeline/pack.py …` runs it from a bare checkout.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the folder of a script first on sys.path; the package is in its parent.
    checkout = Path(__file__).resolve().parent.parent
    sys.path[0] = str(checkout)
    # Ray's workers import from the folder of the program if it is on sys.path: name the checkout.
    sys.argv[0] = str(checkout / "neatpack")
    from neatpack.pipeline.cli import main

    raise SystemExit(main(["pack", *sys.argv[1:]], in_fork=True))
