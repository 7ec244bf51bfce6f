"""Where things are. Imports nothing."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO_PROCESSOR = ROOT / "jobs" / "demo" / "processor"
SHARED = (ROOT.parent / "shared").resolve()  # real data and processors
REAL_PROCESSORS = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")
RECIPE_PACKAGES = ROOT / ".venv" / "recipes"  # Energon, NeMo Automodel: what they pin must not move the environment
PROOFS = "NEATPACK_TEST_PROOFS"  # a variable: where the processes of one run keep what they have proved of tokenizers
