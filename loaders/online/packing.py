"""Packing while training: samples are tokenized and packed in loader workers by the functions of the offline job."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ...pipeline.ingest.conversation import from_conversation
from ...pipeline.labels import shifted
from ...pipeline.measure.length import measure
from ...pipeline.plan.knapsack import greedy_knapsack, greedy_knapsack_vt_balanced
from ...pipeline.records import TOKEN_TYPES, Skip
from ...pipeline.render.pack import end_to_end
from ..media import LAYOUT_KEY, MEDIA_KEYS, document_numbers
from .estimate import estimate_sample_length
from .grouped import raw_samples
from .processor import family_of
from .processor_config import extract_image_config, extract_video_config
from .robust import Replacing, make_robust_collate
from .tokenized import PER_TOKEN, fake_image_document, tokenized_example, with_fake_image

logger = logging.getLogger(__name__)

MEASURED_AT_ONCE = 64  # conversations: the tokenizer is fastest in batches


class PreTokenizedDatasetWrapper(Replacing):
    """Conversations -> tensors of one sample each, before the shift: input_ids, attention_mask, labels, media.

    max_length           samples of more tokens, media included, are replaced (or cut, with `truncate`)
    inject_fake_images   a sample without image or video gets a tiny one behind it, masked: the vision tower runs
    """

    def __init__(
        self,
        dataset: Any,
        processor: Any,
        max_length: int | None = None,
        max_retries: int = 10,
        *,
        truncate: bool = False,
        inject_fake_images: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(len(dataset), max_retries, seed)
        self.dataset, self.processor, self.max_length = dataset, processor, max_length
        self.truncate, self.inject_fake_images = truncate, inject_fake_images

    def load(self, index: int) -> dict[str, Any]:
        sample = self.tokenized(index)
        if not self.inject_fake_images:
            return sample
        seen = with_fake_image(sample, family_of(self.processor))
        return seen if self.max_length is None or len(seen["input_ids"]) <= self.max_length else sample

    def tokenized(self, index: int, *, needs_target: bool = False) -> dict[str, Any]:
        """Sample `index` itself, without a fake image; a SampleError where it cannot be had."""
        return tokenized_example(
            self.dataset[index],
            family_of(self.processor),
            max_length=self.max_length,
            truncate=self.truncate,
            needs_target=needs_target,
        )


class PackedDatasetWrapper(Dataset[dict[str, Any]]):
    """Pack k on request: the samples of bin k, each shifted, laid end to end. For `neat_packed_vlm_collater`.

    A sample that fails is left out of its pack, and so is one for which the pack has no room left (bins come from
    estimated lengths): both are logged, and counted in `dropped`. Nothing random takes their place, unless nothing at
    all is left; then another pack does, up to max_retries times. `neatpack pack` loses nothing: its lengths are exact.
    """

    def __init__(
        self,
        inner_dataset: Any,
        bins: list[list[int]],
        pack_size: int,
        padding_idx: int = 0,
        get_rope_index: Callable[..., Any] | None = None,
        max_retries: int = 10,
    ) -> None:
        self.inner_dataset, self.bins, self.pack_size = inner_dataset, bins, pack_size
        self.padding_idx, self.get_rope_index, self.max_retries = padding_idx, get_rope_index, max_retries
        self.dropped: Counter[str] = Counter()

    @property
    def has_mrope(self) -> bool:
        return self.get_rope_index is not None

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, pack_idx: int) -> dict[str, Any]:
        if not -len(self.bins) <= pack_idx < len(self.bins):
            raise IndexError(f"pack {pack_idx} of {len(self.bins)}")
        for attempt in range(self.max_retries + 1):
            samples = self._samples((pack_idx + attempt) % len(self.bins))
            if samples:
                if attempt:
                    self.dropped["empty_pack"] += 1
                    logger.warning("pack %d has no sample left; pack %d takes its place", pack_idx, pack_idx + attempt)
                return _build_packed_vlm_sample(samples, self.pack_size, self.padding_idx, self.has_mrope)
        raise RuntimeError(
            f"no sample of pack {pack_idx} nor of the {self.max_retries} after it could be had: {dict(self.dropped)}"
        )

    def _samples(self, pack_idx: int) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = []
        room = self.pack_size
        for index in self.bins[pack_idx]:
            try:
                sample = self._load(index)
            except MemoryError:
                raise
            except Exception as error:  # whatever a foreign dataset raises
                self._drop(index, getattr(error, "reason", None) or type(error).__name__, str(error))
                continue
            if sample.get("position_ids") is None and self.get_rope_index is not None:
                sample["position_ids"] = _compute_mrope_position_ids(sample, self.get_rope_index)
            shorter = _shift_sample(sample, self.has_mrope)
            if len(shorter["input_ids"]) > room:
                self._drop(index, "no_room", f"{len(shorter['input_ids'])} tokens, {room} left in pack {pack_idx}")
                continue
            room -= len(shorter["input_ids"])
            samples.append(shorter)
        fake = self._fake_image(samples)
        if samples and fake is not None and len(fake["input_ids"]) <= room:
            samples.append(fake)
        return samples

    def _load(self, index: int) -> dict[str, Any]:
        if isinstance(self.inner_dataset, PreTokenizedDatasetWrapper):
            return self.inner_dataset.tokenized(index, needs_target=True)
        return dict(self.inner_dataset[index])

    def _fake_image(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        inner = self.inner_dataset
        if not isinstance(inner, PreTokenizedDatasetWrapper) or not inner.inject_fake_images:
            return None
        family = family_of(inner.processor)
        seen = sum(sample["n_images"] + sample["n_videos"] for sample in samples)
        heard = sum(sample["n_audios"] for sample in samples)
        return fake_image_document(family) if family.wants_fake_image(seen, heard) else None

    def _drop(self, index: int, reason: str, detail: str) -> None:
        self.dropped[reason] += 1
        logger.warning("sample %d is left out of its pack: %s: %s", index, reason, detail)

    def robust_collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Wrap collate_fn so that on failure the entire batch is drawn anew."""
        return make_robust_collate(self, collate_fn, self.max_retries, seed=getattr(self.inner_dataset, "seed", 0))


def neat_pack_dataset_vlm(
    dataset: Any,
    pack_size: int,
    padding_idx: int = 0,
    drop_long_samples: bool = False,
    max_packs: int | None = None,
    get_rope_index: Callable[..., Any] | None = None,
    ds_raw: Any = None,
    packing_ratio: float = 1.0,
    processor: Any = None,
    balance_media_tokens: bool = True,
    *,
    exact_lengths: bool = False,
) -> PackedDatasetWrapper:
    """Plan packs from estimated lengths; they are filled when they are asked for.

    ds_raw holds the conversations to estimate by, with `_text_tokens` and `mm_inputs_meta` where they were computed
    (`neatpack plan --write-lengths`: then the estimate is exact); default: those that `dataset` wraps.
    exact_lengths tokenizes all of them here instead, half a millisecond each, and reads the headers of their media:
    no sample is left out of its pack for want of room. Those that cannot be used are left out of the plan, and logged.
    """
    if not 0 < packing_ratio <= 1:
        raise ValueError(f"packing_ratio is {packing_ratio}; it must be above 0 and at most 1")
    raw = ds_raw if ds_raw is not None else raw_samples(dataset)
    if len(raw) != len(dataset):
        raise ValueError(f"ds_raw has {len(raw)} samples and dataset {len(dataset)}; they must be the same ones")
    processor = processor if processor is not None else getattr(dataset, "processor", None)
    processor = family_of(processor) if isinstance(processor, str) else processor
    image_cfg = extract_image_config(processor) if processor is not None else None
    video_cfg = extract_video_config(processor) if processor is not None else None
    if exact_lengths and processor is None:
        raise ValueError("exact_lengths needs the processor: give it here, or in a PreTokenizedDatasetWrapper")
    capacity = int(pack_size * packing_ratio)
    kept, lengths, media = [], [], []
    num_long = 0
    measured = _exact(raw, processor) if exact_lengths else (_length(item, image_cfg, video_cfg) for item in raw)
    for index, found in enumerate(measured):
        if found is None:
            continue
        length, media_tokens = found
        if length > pack_size and not drop_long_samples:
            raise ValueError(
                f"sample {index} has about {length} tokens, a pack holds {pack_size}; raise pack_size, or set "
                "drop_long_samples"
            )
        if length > pack_size:
            num_long += 1
            continue
        kept.append(index)
        lengths.append(length)
        media.append(media_tokens)
    if 0 in media and isinstance(dataset, PreTokenizedDatasetWrapper) and dataset.inject_fake_images:
        capacity -= len(family_of(dataset.processor).fake_image_ids)  # a pack of text alone must have room for it
    lengths = [min(length, capacity) for length in lengths]  # one between the two fills a pack of its own
    if num_long:
        logger.warning("%d of %d samples are dropped: longer than a pack of %d tokens", num_long, len(raw), pack_size)
    if balance_media_tokens and any(media):
        bins = greedy_knapsack_vt_balanced(lengths, capacity, media)
    else:
        bins = greedy_knapsack(lengths, capacity)
    chosen = [[kept[place] for place in bin_] for bin_ in bins]
    if max_packs is not None and len(chosen) > max_packs:
        logger.warning("%d of %d packs are left out by max_packs", len(chosen) - max_packs, len(chosen))
        chosen = chosen[:max_packs]
    logger.info("%d samples in %d packs, %.1f%% full", len(kept), len(chosen), _fill(chosen, lengths, kept, pack_size))
    return PackedDatasetWrapper(dataset, chosen, pack_size, padding_idx, get_rope_index)


def _exact(raw: Any, processor: Any) -> Iterator[tuple[int, int] | None]:
    """Tokens in a pack and those of media, by measuring as packing does; None for what cannot be used."""
    family = family_of(processor)
    reasons: Counter[str] = Counter()
    for start in range(0, len(raw), MEASURED_AT_ONCE):
        parsed = [from_conversation(raw[index]) for index in range(start, min(start + MEASURED_AT_ONCE, len(raw)))]
        results = iter(measure([example for example in parsed if not isinstance(example, Skip)], family))
        for example in parsed:
            found = example if isinstance(example, Skip) else next(results)
            if isinstance(found, Skip):
                reasons[found.reason] += 1
                yield None
            else:
                yield found.tokens, found.visual_tokens
    if reasons:
        logger.warning("%d of %d samples cannot be used: %s", reasons.total(), len(raw), dict(reasons))


def _length(example: Any, image_cfg: Any, video_cfg: Any) -> tuple[int, int]:
    """Tokens in a pack (after the shift) and those of its media: exact of a tokenized sample, else an estimate."""
    if isinstance(example, Mapping) and "input_ids" in example:
        types = example.get("mm_token_type_ids")
        return len(example["input_ids"]) - 1, int((types > 0).sum()) if types is not None else 0
    total, media = estimate_sample_length(example, image_cfg, video_cfg, return_media_tokens=True)  # type: ignore[misc]
    return max(1, total - 1), media


def _fill(bins: Sequence[Sequence[int]], lengths: Sequence[int], kept: Sequence[int], pack_size: int) -> float:
    by_sample = dict(zip(kept, lengths, strict=True))
    return 100 * sum(by_sample[i] for bin_ in bins for i in bin_) / max(1, len(bins) * pack_size)


# Steps of packing, by their names in the online API


def _shift_sample(sample: dict[str, Any], has_mrope: bool = False) -> dict[str, Any]:
    """The autoregressive shift of one sample, before it is laid behind others."""
    return sample | shifted({name: sample[name] for name in PER_TOKEN if sample.get(name) is not None})


def _compute_mrope_position_ids(sample: dict[str, Any], get_rope_index: Callable[..., Any]) -> torch.Tensor | None:
    """[3, L] by a model's own `get_rope_index`; None where it gives no three axes."""
    known = {
        name: sample[name][None]
        for name in ("input_ids", "attention_mask", "mm_token_type_ids")
        if sample.get(name) is not None
    }
    grids = {
        name: sample[name]
        for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        if sample.get(name) is not None and len(sample[name])
    }
    positions = get_rope_index(**known, **grids)
    positions = positions[0] if isinstance(positions, tuple) else positions
    return positions[:, 0] if positions is not None and positions.ndim == 3 else None


def _build_packed_vlm_sample(
    samples: list[dict[str, Any]], pack_size: int, padding_idx: int, has_mrope: bool = False
) -> dict[str, Any]:
    """Shifted samples end to end, as `PackedShards` gives a pack: not padded, attention_mask 1, 2, … by document."""
    lengths = [len(sample["input_ids"]) for sample in samples]
    if sum(lengths) > pack_size:
        raise ValueError(f"samples of {lengths} tokens are {sum(lengths)} in all; a pack holds {pack_size}")
    known = [name for name in ("input_ids", "labels", "position_ids", "mm_token_type_ids")
             if all(sample.get(name) is not None for sample in samples)]  # fmt: skip
    documents = [{name: sample[name].numpy() for name in known} for sample in samples]
    if "position_ids" not in known:
        documents = [document | {"position_ids": np.arange(len(document["input_ids"]))} for document in documents]
    pack: dict[str, Any] = {
        name: torch.from_numpy(array) for name, array in end_to_end(documents, padding_id=padding_idx).items()
    }
    pack["attention_mask"] = document_numbers(pack["seq_lens_padded"])
    layout = samples[0].get(LAYOUT_KEY)
    for name in layout or MEDIA_KEYS:
        arrays = [sample[name] for sample in samples if sample.get(name) is not None]
        if arrays:
            pack[name] = torch.cat(arrays)
    for kind in TOKEN_TYPES:
        if all(f"n_{kind}s" in sample for sample in samples):
            pack[f"n_{kind}s"] = sum(sample[f"n_{kind}s"] for sample in samples)
    return pack | ({LAYOUT_KEY: layout} if layout else {})
