"""Documents laid end to end, by hand."""

import numpy as np

from neatpack.pipeline.render.pack import end_to_end
from neatpack.pipeline.render.sample import expand


def document(ids, labels, positions):
    return {
        "input_ids": np.array(ids, dtype=np.int32),
        "labels": np.array(labels, dtype=np.int32),
        "position_ids": np.array(positions, dtype=np.int32),
        "mm_token_type_ids": np.array([0] * len(ids), dtype=np.uint8),
    }


def test_documents_without_alignment():
    arrays = end_to_end([document([5, 6, 7], [-100, 7, 8], [0, 1, 2]), document([9], [4], [0])], padding_id=0)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "input_ids": [5, 6, 7, 9],
        "labels": [-100, 7, 8, 4],
        "position_ids": [0, 1, 2, 0],
        "seq_lens": [3, 1],
        "seq_lens_padded": [3, 1],
        "mm_token_type_ids": [0, 0, 0, 0],
    }
    assert list(arrays) == ["input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded", "mm_token_type_ids"]


def test_each_document_is_padded_to_the_alignment():
    one, two = document([5, 6, 7], [6, 7, 8], [[0, 1, 1], [0, 1, 3], [0, 1, 2]]), document([9], [4], [[0], [0], [0]])
    arrays = end_to_end([one, two], padding_id=77, align=2)
    assert arrays["input_ids"].tolist() == [5, 6, 7, 77, 9, 77]
    assert arrays["labels"].tolist() == [6, 7, 8, -100, 4, -100]
    # They go on behind the largest position of the document, on every axis.
    assert arrays["position_ids"].tolist() == [[0, 1, 1, 4, 0, 1], [0, 1, 3, 4, 0, 1], [0, 1, 2, 4, 0, 1]]
    assert (arrays["seq_lens"].tolist(), arrays["seq_lens_padded"].tolist()) == ([3, 1], [4, 2])
    assert arrays["labels"].dtype == np.int32 and arrays["mm_token_type_ids"].dtype == np.uint8


def test_fractional_positions_go_on_at_the_next_whole_number():
    sample = document([1, 2], [2, 3], [0, 0]) | {"position_ids": np.array([[0.0, 2.5]] * 3, dtype=np.float32)}
    assert end_to_end([sample], padding_id=0, align=4)["position_ids"][0].tolist() == [0.0, 2.5, 4.0, 5.0]


def test_placeholders_give_way_to_their_ids():
    ids = np.array([1, 9, 2, 8])
    assert expand(ids, [(1, np.array([5, 9, 9])), (3, np.array([7]))]).tolist() == [1, 5, 9, 9, 2, 7]
    assert expand(ids, []).tolist() == [1, 9, 2, 8]
