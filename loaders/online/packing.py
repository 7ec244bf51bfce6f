"""Packing while training: samples are tokenized and packed in loader workers by the functions of the offline job."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from neatpack.errors import ItemError, LoaderError, UserError

from ...pipeline.ingest.conversation import from_conversation
from ...pipeline.measure.length import measure
from ...pipeline.plan.assign import aligned
from ...pipeline.plan.knapsack import greedy_knapsack, greedy_knapsack_vt_balanced
from ...pipeline.records import Skip
from .estimate import _estimate_sample_length
from .grouped import raw_samples
from .join import _build_packed_vlm_sample, _compute_mrope_position_ids, _shift_sample, has, token_types
from .processor import family_of
from .processor_config import extract_image_config as _extract_image_config, extract_video_config
from .robust import Replacing, make_robust_collate, type_of
from .tokenized import fake_image_document, tokenized_example, with_fake_image, without_empty_media

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
        if self.inject_fake_images:
            seen = with_fake_image(sample, family_of(self.processor))
            sample = seen if self.max_length is None or len(seen["input_ids"]) <= self.max_length else sample
        return without_empty_media(sample)

    def tokenized(self, index: int, *, needs_target: bool = False, restore: bool = True) -> dict[str, Any]:
        """Sample `index` itself, without a fake image; a SampleError where it cannot be had."""
        return tokenized_example(
            self.dataset[index],
            family_of(self.processor),
            max_length=self.max_length,
            truncate=self.truncate,
            needs_target=needs_target,
            restore=restore,
        )


class PackedDatasetWrapper(Dataset[dict[str, Any]]):
    """Pack k on request: the samples of bin k, each shifted, laid end to end. For `neat_packed_vlm_collater`.

    inner_dataset   a PreTokenizedDatasetWrapper, or any data set of tokenized samples that are not yet shifted
    padding_idx     the token that fills documents up to `align`; with align 1 nothing is filled up here
    get_rope_index  a model's own: its positions then take the place of those that samples come with
    max_retries     a sample that fails to load is tried again so many times, unless it fails for what it is (with a
                    reason of the ledger's); and so many packs after this one are tried where nothing of it is left
    align           documents are padded to a multiple of it, for kernels of context parallelism

    A sample that still fails is left out of its pack, and so is one for which the pack has no room left (bins come from
    estimated lengths): both are logged, and counted in `dropped`. Nothing random takes their place, unless nothing at
    all is left; then another pack does. `neatpack pack` loses nothing: its lengths are exact.
    """

    def __init__(
        self,
        inner_dataset: Any,
        bins: list[list[int]],
        pack_size: int,
        padding_idx: int = 0,
        get_rope_index: Callable[..., Any] | None = None,
        max_retries: int = 10,
        *,
        align: int = 1,
    ) -> None:
        if max_retries < 0 or align < 1:
            raise UserError(
                f"max_retries is {max_retries} and align {align}; expected at least 0 and 1",
                code="loader-argument",
                max_retries=max_retries,
                align=align,
            )
        self.inner_dataset, self.bins, self.pack_size = inner_dataset, bins, pack_size
        self.padding_idx, self.get_rope_index, self.max_retries = padding_idx, get_rope_index, max_retries
        self.has_mrope, self.align = get_rope_index is not None, align
        self.dropped: Counter[str] = Counter()  # of this process: loader workers count their own

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, pack_idx: int) -> dict[str, Any]:
        if not -len(self.bins) <= pack_idx < len(self.bins):
            raise ItemError(
                f"pack {pack_idx} of {len(self.bins)}", code="document-unknown", pack=pack_idx, packs=len(self.bins)
            )
        for attempt in range(self.max_retries + 1):
            number = (pack_idx + attempt) % len(self.bins)
            samples = self._samples(number)
            if samples:
                if attempt:
                    self.dropped["empty_pack"] += 1
                    logger.warning("pack %d has no sample left; pack %d takes its place", pack_idx, number)
                has_positions = any(has(sample, "position_ids") for sample in samples)
                return _build_packed_vlm_sample(
                    samples, self.pack_size, self.padding_idx, has_positions, align=self.align
                )
        raise LoaderError(
            f"no sample of pack {pack_idx} nor of the {self.max_retries} after it could be had: {dict(self.dropped)}",
            code="sample-retries",
            pack=pack_idx,
            retries=self.max_retries,
            dropped=dict(self.dropped),
        )

    def _samples(self, pack_idx: int) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = []
        room = self.pack_size
        for index in self.bins[pack_idx]:
            sample = self._load(index)
            if sample is None:
                continue
            placed = self._placed(sample)
            shorter = _shift_sample(placed, has(placed, "position_ids"))
            needed = aligned(len(shorter["input_ids"]), self.align)
            if needed > room:
                self._drop(index, "no_room", f"{needed} tokens, {room} left in pack {pack_idx}")
                continue
            room -= needed
            samples.append(shorter)
        fake = self._fake_image(samples)
        if samples and fake is not None and aligned(len(fake["input_ids"]), self.align) <= room:
            samples.append(self._placed(fake))
        return samples

    def _load(self, index: int) -> dict[str, Any] | None:
        inner = self.inner_dataset
        for attempt in range(self.max_retries + 1):
            try:
                if isinstance(inner, PreTokenizedDatasetWrapper):
                    return inner.tokenized(index, needs_target=True, restore=False)
                return dict(inner[index])
            except MemoryError:
                raise
            except Exception as error:  # whatever a foreign dataset raises
                if hasattr(error, "reason") or attempt == self.max_retries:
                    self._drop(index, type_of(error), f"{error} (attempt {attempt + 1})")
                    break
        return None

    def _placed(self, sample: dict[str, Any]) -> dict[str, Any]:
        """With the positions that get_rope_index gives, where it is given."""
        if self.get_rope_index is None:
            return sample
        placed = sample | {"mm_token_type_ids": token_types(sample, self.get_rope_index)}
        positions = _compute_mrope_position_ids(placed, self.get_rope_index)
        return placed if positions is None else placed | {"position_ids": positions}

    def _fake_image(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        inner = self.inner_dataset
        if not isinstance(inner, PreTokenizedDatasetWrapper) or not inner.inject_fake_images:
            return None
        family = family_of(inner.processor)
        seen = sum(sample["n_images"] + sample["n_videos"] for sample in samples)
        heard = sum(sample["n_audios"] for sample in samples)
        return fake_image_document(family, restore=False) if family.wants_fake_image(seen, heard) else None

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
    align: int = 1,
) -> PackedDatasetWrapper:
    """Plan packs from estimated lengths; they are filled when they are asked for.

    ds_raw holds the conversations to estimate by, with `_text_tokens` and `mm_inputs_meta` where they were computed
    (`neatpack plan --write-lengths`: then the estimate is exact); default: those that `dataset` wraps.
    A sample that seems longer than a pack gets one of its own, unless drop_long_samples; whether it fits is seen then.
    exact_lengths tokenizes all of them here instead, half a millisecond each, and reads the headers of their media:
    no sample is left out of its pack for want of room. Those that cannot be used are left out of the plan, and logged.
    """
    if not 0 < packing_ratio <= 1:
        raise UserError(
            f"packing_ratio is {packing_ratio}; it must be above 0 and at most 1",
            code="loader-argument",
            argument="packing_ratio",
            got=packing_ratio,
        )
    raw = ds_raw if ds_raw is not None else raw_samples(dataset)
    if len(raw) != len(dataset):
        raise UserError(
            f"ds_raw has {len(raw)} samples and dataset {len(dataset)}; they must be the same ones",
            code="lengths-invalid",
            name="ds_raw",
            got=len(raw),
            expected=len(dataset),
        )
    processor = processor if processor is not None else getattr(dataset, "processor", None)
    processor = family_of(processor) if isinstance(processor, str) else processor
    image_cfg = _extract_image_config(processor) if processor is not None else None
    video_cfg = extract_video_config(processor) if processor is not None else None
    if exact_lengths and processor is None:
        raise UserError(
            "exact_lengths needs the processor: give it here, or in a PreTokenizedDatasetWrapper",
            code="option-missing",
            argument="processor",
        )
    kept, lengths, media = [], [], []
    measured = _exact(raw, processor) if exact_lengths else (_length(item, image_cfg, video_cfg) for item in raw)
    num_long = 0
    for index, found in enumerate(measured):
        if found is None:
            continue
        num_long += found[0] > pack_size
        if found[0] <= pack_size or not drop_long_samples:
            kept.append(index)
            lengths.append(found[0])
            media.append(found[1])
    if num_long:
        what = "are dropped" if drop_long_samples else "get a pack each, and are left out of it if they are"
        logger.warning("%d of %d samples %s: longer than a pack of %d tokens", num_long, len(raw), what, pack_size)
    capacity = int(pack_size * packing_ratio)
    if 0 in media and isinstance(dataset, PreTokenizedDatasetWrapper) and dataset.inject_fake_images:
        # A pack of text alone must have room for it.
        capacity -= aligned(len(family_of(dataset.processor).fake_image_ids), align)
    capacity = max(1, capacity)
    lengths = [min(aligned(length, align), capacity) for length in lengths]  # a longer one fills a pack of its own
    if balance_media_tokens and any(media):
        bins = greedy_knapsack_vt_balanced(lengths, capacity, media)
    else:
        bins = greedy_knapsack(lengths, capacity)
    chosen = [[kept[place] for place in bin_] for bin_ in bins]
    if max_packs is not None and len(chosen) > max_packs:
        logger.warning("%d of %d packs are left out by max_packs", len(chosen) - max_packs, len(chosen))
        chosen = chosen[:max_packs]
    logger.info("%d samples in %d packs, %.1f%% full", len(kept), len(chosen), _fill(chosen, lengths, kept, pack_size))
    return PackedDatasetWrapper(dataset, chosen, pack_size, padding_idx, get_rope_index, align=align)


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
    total, media = _estimate_sample_length(example, image_cfg, video_cfg, return_media_tokens=True)  # type: ignore[misc]
    return max(1, total - 1), media


def _fill(bins: Sequence[Sequence[int]], lengths: Sequence[int], kept: Sequence[int], pack_size: int) -> float:
    by_sample = dict(zip(kept, lengths, strict=True))
    return 100 * sum(by_sample[i] for bin_ in bins for i in bin_) / max(1, len(bins) * pack_size)
