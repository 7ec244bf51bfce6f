"""Media under pipeline parallelism: cut by microbatch when collating, attached to stage 0 while a schedule runs.

torch.distributed.pipelining cuts every tensor of a batch along its rows. That is right for input_ids and wrong for
media: the patches of all images lie end to end, and a sample may own three images or none. So the collater cuts them,
at the samples where torch does (by tensor_split: 5 samples over 4 microbatches are 2, 1, 1, 1), and stage 0 takes its
chunk from there:

    loader = packs.loader(batch_size=8, collate_fn=wrap_vlm_collate_for_pp(packs.collater(model), n_microbatches=4))
    kwargs = {"attention_mask": mask, "position_ids": positions}
    schedule = ScheduleGPipe(stage, 4, loss_fn, kwargs_chunk_spec=get_kwargs_chunk_spec(kwargs))
    with stage_vlm_media_for_pp(pp, model_parts, batch):  # on every rank
        schedule.step(*inputs_of_stage_0, target=labels, **kwargs)

Mask and positions are kwargs of `step` on every rank: torch itself passes only activations from stage to stage. In
stage 0's forward (chunks lie where the loader left them: move them to the device there, and if they are uint8, look
them up there, by neatpack.loaders.pixels.restored and the stored_pixels of the batch; families that pad pictures to the
largest are refused with uint8):

    number, self._vlm_chunk_idx = self._vlm_chunk_idx, self._vlm_chunk_idx + 1  # in microbatches without media, too
    pixels, grid = self._vlm_pixel_values_chunks[number], self._vlm_image_grid_hws_chunks[number]

- A PipelineStage made without input_args and output_args runs this forward once more, on the first microbatch, before
  the first step and at each change between step and eval. Where `pp.info.stages` lists the stages of the rank, each
  microbatch's number comes from the schedule itself and that does no harm; otherwise give PipelineStage both.
- Make B a multiple of n_microbatches. Uneven chunks are cut rightly here, but torch's stages receive activations into
  buffers of one shape.
- Recomputing the whole of stage 0 in the backward pass would take further chunks: checkpoint its layers instead.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch

from neatpack.errors import LoaderError, UserError
from neatpack.format.layout import TOKEN_TYPES, Layout, MediaArray, MediaKind, delivered, rows_per_part, split_media

from .media import collate_with_owners
from .microbatches import cut_borders, fold_row
from .pixels import refuse_to_cut

Grid = TypeVar("Grid")

VLM_PP_MEDIA_KEY = "_vlm_pp_media_chunks"

_IMAGE_GRID_KEYS = ("image_grid_hws", "image_grid_thw", "image_sizes", "image_position_ids")
_STEP3_KEYS = ("num_patches", "patch_pixel_values", "patch_newline_mask")
_VLM_MEDIA_KEYS = (
    "pixel_values",
    "patch_pixel_values",
    "num_patches",
    "patch_newline_mask",
    *_IMAGE_GRID_KEYS,
    "n_images_per_sample",
    "pixel_values_videos",
    "video_grid_thw",
    "n_videos_per_sample",
)
_COUNT_KEYS = tuple(f"n_{kind}s_per_sample" for kind in TOKEN_TYPES)
_VIDEO_GRID_KEYS = ("video_grid_thw", "second_per_grid_ts", "video_second_per_grid")  # seconds: one for each video
# What stage 0 can always ask for; "image_grid_hws" is whichever image grid there is.
_CHUNK_KEYS = ("pixel_values", "image_grid_hws", *_STEP3_KEYS, "pixel_values_videos", "video_grid_thw")


def _select_image_grid(
    image_grid_hws: Grid | None,
    image_grid_thw: Grid | None,
    image_sizes: Grid | None,
    image_position_ids: Grid | None,
) -> Grid | None:
    """The first one given (a tensor, or its chunks): patch grids before pixel sizes before positions."""
    grids = (image_grid_hws, image_grid_thw, image_sizes, image_position_ids)
    return next((grid for grid in grids if grid is not None), None)


def chunk_vlm_media(
    pixel_values: torch.Tensor,
    image_grid: torch.Tensor,
    batch_size: int,
    n_microbatches: int,
    n_images_per_sample: torch.Tensor | Sequence[int] | None = None,
    *,
    axis: str | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Pixels and grid rows of each microbatch, as views; a microbatch without images gets empty ones.

    Rows of `pixel_values` are whole images, [N, C, H, W] or [N, patches, D], or the patches of all images end to end,
    as many for an image as the product of its grid row. `axis` ("images" or "patches") says which; by default the
    shapes tell. Images belong to samples by `n_images_per_sample`; without it, one to each, or all to the only one.
    """
    rows = _rows_per_item(pixel_values, image_grid, axis, "pixel_values")
    images = _items_per_microbatch(len(rows), n_images_per_sample, batch_size, n_microbatches, "image")
    return _cut(pixel_values, _sums(rows, images)), _cut(image_grid, images)


def chunk_step3_media(
    pixel_values: torch.Tensor,
    batch_size: int,
    n_microbatches: int,
    num_patches: torch.Tensor | None = None,
    patch_pixel_values: torch.Tensor | None = None,
    patch_newline_mask: torch.Tensor | None = None,
    n_images_per_sample: torch.Tensor | Sequence[int] | None = None,
) -> dict[str, list[torch.Tensor]]:
    """Step3 media of each microbatch: per image a row of `pixel_values` and a number of crops; all crops end to end.

    The result has the keys that were given, and `num_patches`: zeros where it was not.
    """
    images = _items_per_microbatch(len(pixel_values), n_images_per_sample, batch_size, n_microbatches, "image")
    chunks = {"pixel_values": _cut(pixel_values, images)}
    told = "is missing" if num_patches is None else f"adds up to {sum(_ints(num_patches))}"
    counts = torch.zeros(len(pixel_values), dtype=torch.long) if num_patches is None else torch.as_tensor(num_patches)
    crops = _ints(counts)
    if len(crops) != len(pixel_values):
        raise UserError(
            f"num_patches {_shape(counts)} does not fit pixel_values {_shape(pixel_values)}; "
            "give the number of crops of each image",
            code="batch-mismatch",
            name="num_patches",
            got=len(crops),
            expected=len(pixel_values),
        )
    chunks["num_patches"] = _cut(counts.to(pixel_values.device), images)
    for key, rows in (("patch_pixel_values", patch_pixel_values), ("patch_newline_mask", patch_newline_mask)):
        if rows is None:
            continue
        if len(rows) != sum(crops):
            raise UserError(
                f"{key} {_shape(rows)}, but num_patches {told}; give the number of crops of each image",
                code="batch-mismatch",
                name=key,
                got=len(rows),
                expected=sum(crops),
            )
        chunks[key] = _cut(rows, _sums(crops, images))
    return chunks


def prepare_vlm_media_for_pp(
    batch: MutableMapping[str, Any],
    batch_size: int,
    n_microbatches: int,
    layout: Layout | None = None,
) -> MutableMapping[str, Any]:
    """Exchange a batch's media, in place, for VLM_PP_MEDIA_KEY: {name: a list of one chunk per microbatch, or None}.

    `batch_size` is the number of rows of input_ids. Where that is 1 and the counts name several samples (packs laid end
    to end, [1, total]), those samples are divided. `layout` (PackedShards.layout, Family.media) says what each media
    array is; without it, names and shapes tell. A batch without media gets no VLM_PP_MEDIA_KEY.
    """
    refuse_to_cut(batch)
    arrays = _guessed_layout(batch) if layout is None else delivered(layout)
    present = {name: array for name, array in arrays.items() if batch.get(name) is not None}
    for name, array in present.items():
        if array.counts and batch.get(array.counts) is None:
            raise UserError(
                f"the batch has {name} but no {array.counts}, which counts its rows; give both or neither",
                code="batch-mismatch",
                name=name,
                missing=array.counts,
            )
    parts = {kind: _media_per_microbatch(kind, batch, present, batch_size, n_microbatches) for kind in TOKEN_TYPES}
    for name, array in present.items():
        wanted, rows = sum(rows_per_part(name, batch, present, parts)), _num_rows(batch[name], array)
        if wanted != rows:
            counted = f"{array.counts} {_shape(batch[array.counts])}" if array.counts else "the other media arrays"
            raise UserError(
                f"{name} {_shape(batch[name])} cannot be aligned with {counted}, which wants {wanted} "
                f"{'(its patches) ' if array.counts else ''}rows",
                code="batch-mismatch",
                name=name,
                other=counted,
                expected=wanted,
            )
    chunks: dict[str, list[torch.Tensor] | None] = dict.fromkeys(_CHUNK_KEYS)
    for part in split_media(batch, present, parts, of_batch=True):
        for name, rows_of_part in part.items():
            chunks[name] = [*(chunks.get(name) or []), rows_of_part]
    chunks["image_grid_hws"] = _select_image_grid(*(chunks.get(name) for name in _IMAGE_GRID_KEYS))
    for name in (*_VLM_MEDIA_KEYS, *_COUNT_KEYS, *arrays):
        batch.pop(name, None)
    if present:
        batch[VLM_PP_MEDIA_KEY] = chunks
    return batch


def _guessed_layout(batch: Mapping[str, Any]) -> dict[str, MediaArray]:
    """The layout of a batch whose arrays have the names of the online API: grids and shapes tell what a row is."""
    result: dict[str, MediaArray] = {}
    kinds: tuple[tuple[MediaKind, str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("image", "pixel_values", _IMAGE_GRID_KEYS, _STEP3_KEYS),
        ("video", "pixel_values_videos", _VIDEO_GRID_KEYS, ()),
    )
    for kind, name, grid_keys, crop_keys in kinds:
        pixels, count_key = batch.get(name), f"n_{kind}s_per_sample"
        beside = [key for key in (*grid_keys, *crop_keys) if batch.get(key) is not None]
        if pixels is None:
            orphans = [key for key in beside if len(batch[key])]
            if batch.get(count_key) is not None and any(_ints(batch[count_key])):
                orphans.append(count_key)
            if orphans:
                raise UserError(
                    f"the batch has {', '.join(orphans)} but no {name}; give both or neither",
                    code="batch-mismatch",
                    arrays=list(orphans),
                    missing=name,
                )
            continue
        # The preferred grid tells the patches of an image; further ones are only cut along.
        grid_key = next((key for key in grid_keys if key in beside), "")
        crops = [key for key in crop_keys if key in beside]
        if crops == ["num_patches"] and _are_tiles(batch["num_patches"], pixels):
            per_item, grid_key, crops = _ints(batch["num_patches"]), "num_patches", []
        else:
            if crops:  # checks that the crops are as many as num_patches says
                chunk_step3_media(pixels, 1, 1, **{key: batch[key] for key in crops})
            per_item = _rows_per_item(pixels, batch.get(grid_key), "images" if crops else None, name)
        for key in beside:
            counts = "num_patches" if key in crops and key != "num_patches" else ""
            if not counts and len(batch[key]) != len(per_item):
                raise UserError(
                    f"{key} {_shape(batch[key])} is for another number of {kind}s than {len(per_item)}; fix or drop it",
                    code="batch-mismatch",
                    name=key,
                    got=len(batch[key]),
                    expected=len(per_item),
                )
            result[key] = MediaArray(kinds=(kind,), dtype="", row=(), counts=counts)
        is_flat = len(per_item) != len(pixels) or any(rows != 1 for rows in per_item)
        result[name] = MediaArray(kinds=(kind,), dtype="", row=(), counts=grid_key if is_flat else "")
    return result


def _are_tiles(num_patches: Any, pixels: Any) -> bool:
    """Whether num_patches counts rows of pixel_values (InternVL) instead of crops in another array (Step3)."""
    numbers = _ints(num_patches)
    return min(numbers, default=0) > 0 and sum(numbers) == len(pixels)


def _media_per_microbatch(
    kind: MediaKind, batch: Mapping[str, Any], present: Layout, batch_size: int, n_microbatches: int
) -> list[int]:
    """Media of a kind in each microbatch: by the counts of the samples, or by how many there are."""
    arrays = {name: array for name, array in present.items() if kind in array.kinds}
    if not arrays:
        return [0] * n_microbatches
    counts = batch.get(f"n_{kind}s_per_sample")
    numbers = [
        sum(_ints(batch[name])) if array.groups else _num_rows(batch[name], array)
        for name, array in arrays.items()
        if not array.counts and array.kinds == (kind,)
    ]
    if not numbers and counts is None:
        # Arrays of several kinds: a collater leaves out the counts of a kind that no sample of the batch has.
        others = {other for array in arrays.values() for other in array.kinds} - {kind}
        if all(batch.get(f"n_{other}s_per_sample") is None for other in others):
            raise UserError(
                f"{', '.join(arrays)} hold several kinds of media; give n_{kind}s_per_sample",
                code="batch-mismatch",
                arrays=list(arrays),
                missing=f"n_{kind}s_per_sample",
            )
        return [0] * n_microbatches
    num_media = numbers[0] if numbers else sum(_ints(counts))
    if counts is None and num_media and batch_size > 1 and n_microbatches > 1:
        _check_one_each(batch.get("mm_token_type_ids"), batch_size, kind)
    return _items_per_microbatch(num_media, counts, batch_size, n_microbatches, kind)


def _num_rows(rows: Any, array: MediaArray) -> int:
    return int(rows.shape[1]) if array.deliver.batch_axis else len(rows)


@contextmanager
def stage_vlm_media_for_pp(
    pp: Any, model_parts: list[torch.nn.Module], batch: MutableMapping[str, Any]
) -> Iterator[None]:
    """Attach a batch's chunks to stage 0 for one call of the schedule; they are removed afterwards, also on errors.

    Enter it on every rank: it takes VLM_PP_MEDIA_KEY out of the batch, and only the rank with `pp.info.has_first_stage`
    attaches it, as `_vlm_<key>_chunks` and `_vlm_chunk_idx` of model_parts[0].
    """
    chunks = batch.pop(VLM_PP_MEDIA_KEY, None) or {}
    if not pp.info.has_first_stage:
        yield
        return
    first: Any = model_parts[0]
    names = {key: f"_vlm_{key}_chunks" for key in (*_CHUNK_KEYS, *chunks)}
    num_chunks = max((len(value) for value in chunks.values() if value is not None), default=None)
    stages = [stage for stage in getattr(pp.info, "stages", None) or () if stage.submod is first]
    originals = [stage.forward_one_chunk for stage in stages]
    try:
        for key, name in names.items():
            setattr(first, name, chunks.get(key))
        first._vlm_chunk_idx = 0 if chunks else None
        if chunks:
            for stage, original in zip(stages, originals, strict=True):
                stage.forward_one_chunk = _numbered(original, first)
        yield
        if num_chunks is not None and first._vlm_chunk_idx > num_chunks:
            raise LoaderError(
                f"stage 0 took {first._vlm_chunk_idx} chunks of {num_chunks}, so some went to the wrong microbatch: "
                "give PipelineStage its input_args and output_args, or stage_vlm_media_for_pp the pp.info.stages",
                code="batch-mismatch",
                chunks=num_chunks,
                taken=first._vlm_chunk_idx,
            )
    finally:
        for name in (*names.values(), "_vlm_chunk_idx"):
            setattr(first, name, None)
        for stage, original in zip(stages, originals, strict=True):
            stage.forward_one_chunk = original


def wrap_vlm_collate_for_pp(
    collate_fn: Callable[[Any], MutableMapping[str, Any]],
    n_microbatches: int,
    layout: Layout | None = None,
) -> Callable[[Any], MutableMapping[str, Any]]:
    """Wrap a collater, so that torch.distributed.pipelining cuts its batches into microbatches of whole packs.

    Media become chunks (prepare_vlm_media_for_pp). Borders of documents (cu_seq_lens_q, cu_seqlens) become those of
    each microbatch, end to end, and packs in one row become a row for each microbatch. Other values pass through.

    Args:
        collate_fn: any collater. One from outside neatpack names its media as the online API does, and gives
            n_images_per_sample where samples differ in images.
        n_microbatches: that of the schedule. A batch of fewer packs raises ValueError.
        layout: the media arrays of a collater from outside neatpack that names them otherwise (Family.media).
    """
    return CollateForPP(collate_fn, n_microbatches, layout)


@dataclass(frozen=True)
class CollateForPP:
    """A class and not a closure, so that it can be sent to spawned workers."""

    collate_fn: Callable[[Any], Any]
    n_microbatches: int
    layout: Layout | None

    def __post_init__(self) -> None:
        if self.n_microbatches < 1:
            raise UserError(
                f"n_microbatches is {self.n_microbatches}; it must be at least 1",
                code="loader-argument",
                argument="n_microbatches",
                got=self.n_microbatches,
            )

    def __call__(self, samples: Any) -> Any:
        batch, owners = collate_with_owners(self.collate_fn, samples)
        if not isinstance(batch, MutableMapping):
            return batch
        layout = self.layout or (owners and owners.layout) or None
        arrays = delivered(layout or {})
        has_media = any(batch.get(key) is not None for key in (*_VLM_MEDIA_KEYS, *arrays))
        rows = next(
            (batch[key] for key in ("input_ids", "inputs_embeds", "labels") if batch.get(key) is not None), None
        )
        if rows is None:
            if not has_media:
                return batch
            raise UserError(
                "the batch has media but neither input_ids, inputs_embeds nor labels; how many samples is it?",
                code="batch-mismatch",
                missing="input_ids",
            )
        # [total] is one sequence of packs end to end, as [1, total] is.
        batch_size = 1 if rows.ndim == 1 else len(rows)
        counts = {name: numbers for name, numbers in batch.items() if name in _COUNT_KEYS and numbers is not None}
        if has_media and owners:
            counts = {**owners.counts, **counts}
            counting = {array.counts: owners.arrays.get(array.counts) for array in arrays.values() if array.counts}
            batch.update({name: value for name, value in {**counting, **counts}.items() if batch.get(name) is None})
        num_packs = batch_size
        if batch_size == 1:
            num_packs = max([1, *map(len, counts.values()), *([owners.num_samples] if owners else [])])
        if num_packs < self.n_microbatches:
            raise UserError(
                f"batch of {num_packs} packs: too few for {self.n_microbatches} microbatches. Choose a batch_size that "
                "is a multiple of n_microbatches, and drop_last=True in a DataLoader of your own",
                code="batch-mismatch",
                packs=num_packs,
                n_microbatches=self.n_microbatches,
            )
        if has_media:
            batch = prepare_vlm_media_for_pp(batch, batch_size, self.n_microbatches, layout)
        shape = tuple(rows.shape[:2])
        if rows.ndim == 2 and batch_size < self.n_microbatches:
            fold_row(batch, shape[1], num_packs, self.n_microbatches)
            shape = self.n_microbatches, shape[1] // self.n_microbatches
        cut_borders(batch, shape, self.n_microbatches)
        return batch


def _items_per_microbatch(num_items: int, counts: Any, batch_size: int, n_microbatches: int, medium: str) -> list[int]:
    """Images or videos of each microbatch: counts [2, 0, 1, 1] over 2 microbatches -> [2, 2]."""
    if batch_size < 1 or n_microbatches < 1:
        raise UserError(
            f"batch_size {batch_size} and n_microbatches {n_microbatches} must be at least 1",
            code="loader-argument",
            batch_size=batch_size,
            n_microbatches=n_microbatches,
        )
    if counts is not None:
        per_sample = _ints(counts)
        if min(per_sample, default=0) < 0 or sum(per_sample) != num_items:
            raise UserError(
                f"n_{medium}s_per_sample {per_sample} adds up to {sum(per_sample)}, not to the {num_items} {medium}s; "
                "fix the counts that the collater makes",
                code="batch-mismatch",
                name=f"n_{medium}s_per_sample",
                got=sum(per_sample),
                expected=num_items,
                counts=list(per_sample),
            )
        if len(per_sample) != batch_size and batch_size != 1:
            raise UserError(
                f"n_{medium}s_per_sample {per_sample} is for {len(per_sample)} samples but the batch has {batch_size}; "
                "give one count per row of input_ids",
                code="batch-mismatch",
                name=f"n_{medium}s_per_sample",
                got=len(per_sample),
                batch_size=batch_size,
            )
    elif batch_size == 1 or n_microbatches == 1 or num_items == 0:
        per_sample = [num_items] + [0] * (batch_size - 1)
    elif num_items == batch_size:
        per_sample = [1] * batch_size
    else:
        raise UserError(
            f"{num_items} {medium}s in a batch of {batch_size} samples: whose are they? "
            f"Give n_{medium}s_per_sample, one count per row of input_ids",
            code="batch-mismatch",
            missing=f"n_{medium}s_per_sample",
            items=num_items,
            batch_size=batch_size,
        )
    # By torch's own function: it is what cuts input_ids in torch.distributed.pipelining.
    return [int(part.sum()) for part in torch.tensor(per_sample, dtype=torch.int64).tensor_split(n_microbatches)]


def _rows_per_item(pixels: Any, grid: Any, axis: str | None, name: str) -> list[int]:
    """Rows of pixels that belong to each image or video: 1, or its patches."""
    if not isinstance(pixels, torch.Tensor):
        raise UserError(
            f"{name} is a {type(pixels).__name__}, not a tensor; stack or concatenate it when collating",
            code="batch-mismatch",
            name=name,
            got=type(pixels).__name__,
        )
    if axis not in (None, "patches", "images"):
        raise UserError(
            f"axis is {axis!r}; it must be 'patches' or 'images'", code="loader-argument", argument="axis", got=axis
        )
    num_rows = len(pixels)
    num_items = num_rows if grid is None else len(grid)
    patches: list[int] | None = None  # of each item, where the grid can tell: (h, w) or (t, h, w)
    if grid is not None and grid.ndim == 2 and grid.shape[1] in (2, 3) and not grid.is_floating_point():
        patches = grid.prod(1).tolist()
    if axis in (None, "patches") and patches is not None and sum(patches) == num_rows:
        return patches
    # Without being told, a flat [N, D] is taken for patches: if it does not fit them, it is broken.
    if axis != "patches" and num_items == num_rows and (axis or pixels.ndim > 2):
        return [1] * num_rows
    wanted = [] if grid is None or axis == "patches" else [f"{num_items} (one per image)"]
    wanted += [f"{sum(patches)} (its patches)"] if patches is not None and axis in (None, "patches") else []
    against = "no grid" if grid is None else f"a grid {_shape(grid)}, which wants {' or '.join(wanted) or 'other'} rows"
    raise UserError(
        f"{name} {_shape(pixels)} cannot be aligned with {against}; "
        "give the grid that belongs to it, and say by a layout what a row is",
        code="batch-mismatch",
        name=name,
        shape=_shape(pixels),
        images=num_items if wanted and grid is not None and axis != "patches" else None,
        patches=sum(patches) if patches is not None and axis in (None, "patches") else None,
    )


def _check_one_each(token_types: Any, batch_size: int, kind: MediaKind) -> None:
    """As many images as samples may still be two and none: where token types are at hand, look."""
    if not isinstance(token_types, torch.Tensor) or token_types.ndim != 2 or len(token_types) != batch_size:
        return
    without = (~(token_types == TOKEN_TYPES[kind]).any(1)).nonzero().flatten().tolist()
    if without:
        raise UserError(
            f"samples {without} have no {kind} tokens, so it is not one {kind} per sample; give n_{kind}s_per_sample",
            code="batch-mismatch",
            samples=without,
            kind=kind,
        )


def _numbered(forward_one_chunk: Callable[..., Any], first: Any) -> Callable[..., Any]:
    """torch's own step of a stage, after telling the model which microbatch it is."""

    def step(fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        first._vlm_chunk_idx = fwd_chunk_id
        return forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    return step


def _cut(rows: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    return list(torch.split(rows, sizes))


def _sums(values: list[int], sizes: list[int]) -> list[int]:
    """Sums of consecutive groups: [4, 6, 8] in groups of 2, 0 and 1 -> [10, 0, 8]."""
    rest = iter(values)
    return [sum(islice(rest, size)) for size in sizes]


def _ints(values: Any) -> list[int]:
    return [int(value) for value in torch.as_tensor(values).flatten().tolist()]


def _shape(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)
