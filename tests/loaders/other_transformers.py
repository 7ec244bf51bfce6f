"""Which kinds of attention give packs the loss of their documents alone, with another transformers than the tests'.

    .venv/bin/python tests/loaders/other_transformers.py pack DIR
    PYTHONPATH=FOLDER_OF_ANOTHER_TRANSFORMERS .venv/bin/python tests/loaders/other_transformers.py run DIR

FOLDER_… is what `pip install --target FOLDER transformers==…` with its tokenizers and huggingface_hub makes. Prints the
rows of the table under "Masks" in docs/API.md.
"""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from types import ModuleType
from typing import Any

import torch
import transformers

if not hasattr(transformers, "Gemma4Config"):  # packing imports what it has for Gemma; nothing of that runs here
    sound = ModuleType("transformers.models.gemma4.feature_extraction_gemma4")
    sound.Gemma4AudioFeatureExtractor = object  # type: ignore[attr-defined]
    sys.modules |= {sound.__name__: sound, "transformers.models.gemma4": ModuleType("transformers.models.gemma4")}

from helpers import TinyData, documents_of, mixed_rows, tiny_config
from test_model_loss import PATHS, Made, attention  # type: ignore[import-not-found]
from tiny_models import tiny_model

from neatpack import PackedShards

MODELS = {"qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl"}


def pack(folder: Path) -> None:
    from neatpack.pipeline.run import run_pack

    meta = mixed_rows(TinyData(folder / "data"), num_text=6, num_images=4).write()
    for family in MODELS.values():
        run_pack(tiny_config(meta, folder / family, family=family, pack_size=2048))


class Positioned(Made):  # type: ignore[misc]
    """Documents with the positions that they have on disk: 5.5.0 gives pictures of Qwen2.5-VL other ones by itself."""

    def unpacked(self, document: dict[str, Any]) -> dict[str, Any]:
        positions = document["position_ids"].long()
        positions = torch.cat([positions, positions.amax() + torch.ones_like(positions[:, :1])], dim=-1)
        return super().unpacked(document) | {"position_ids": positions[:, None]}


@torch.no_grad()
def run(folder: Path) -> None:
    for kind, family in MODELS.items():
        out = folder / family
        (whole,) = PackedShards(out, pixels="fp32")
        documents = list(documents_of(out, whole))
        parts = out, tiny_model(kind), [whole, documents[0]], [*documents, documents[0]]
        made = Positioned(*parts)
        alone, own, found = made.alone[0], Made(*parts).alone[0], []
        for name, way in PATHS:
            with attention(made.model, name):
                try:
                    loss = float(made.loss(PackedShards(out).collater(made.model, isolate=way)(made.packs)))
                    found.append(judged(loss, alone))
                except Exception as error:
                    found.append(f"{type(error).__name__}: {str(error)[:120]}")
        collater = PackedShards(out).collater(made.model)
        labels = "unshifted" if collater.unshifted_labels else "shift_labels"
        print("|", " | ".join([transformers.__version__, kind, *found, judged(own, alone), collater.way, labels]), "|")


def judged(loss: float, expected: float) -> str:
    return "right" if abs(loss / expected - 1) < 1e-5 else f"wrong: {loss:.4f}, not {expected:.4f}"


if __name__ == "__main__":
    {"pack": pack, "run": run}[sys.argv[1]](Path(sys.argv[2]))
