"""Placeholders of images that are not expanded yet."""

import torch
from support.errors import raises

from neatpack.loaders.online.kimi import _expand_image_tokens


def expanded(ids, grids, mask=None, **more):
    mask = [1] * len(ids) if mask is None else mask
    return [
        row.tolist()
        for row in _expand_image_tokens(torch.tensor(ids), torch.tensor(mask), torch.tensor(grids), 9, **more)
    ]


def test_one_image():
    assert expanded([1, 9, 2], [[1, 4, 4]]) == [[1, 9, 9, 9, 9, 2], [1] * 6]


def test_several_images_in_their_order():
    ids, mask = expanded([9, 5, 9, 0], [[1, 2, 2], [1, 4, 6]], mask=[1, 1, 1, 0])
    assert ids == [9, 5, 9, 9, 9, 9, 9, 9, 0]
    assert mask == [1] * 8 + [0]


def test_frames_are_pooled_and_kernels_may_differ():
    assert expanded([9], [[4, 4, 4]])[0] == [9] * 4
    assert expanded([9], [[1, 4, 4]], merge_kernel_size=(4, 2))[0] == [9] * 2


def test_no_image():
    ids = torch.tensor([1, 2], dtype=torch.int32)
    mask = torch.tensor([True, True])
    new_ids, new_mask = _expand_image_tokens(ids, mask, torch.zeros(0, 3, dtype=torch.long), 9)
    assert (new_ids.tolist(), new_mask.tolist()) == ([1, 2], [True, True])
    assert (new_ids.dtype, new_mask.dtype) == (torch.int32, torch.bool)


def test_numbers_that_differ_are_an_error():
    with raises(ValueError, "batch-mismatch", images=1, placeholders=2):
        expanded([9, 9], [[1, 2, 2]])
