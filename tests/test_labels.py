import numpy as np
from hypothesis import given, strategies as st

from neatpack.pipeline.labels import TurnMarkers, assistant_spans, labels_of, shifted, target_mask

MARKERS = TurnMarkers(header=(7, 8), end=9)


def targets(*ids):
    return [i for i, target in enumerate(target_mask(np.array(ids, dtype=np.int32), MARKERS)) if target]


def test_assistant_text_and_its_end_only():
    assert targets(7, 5, 1, 4, 9, 1, 7, 8, 1, 4, 4, 9, 1) == [9, 10, 11]


def test_several_turns():
    assert targets(7, 8, 1, 3, 9, 1, 7, 5, 1, 3, 9, 1, 7, 8, 1, 9, 1) == [3, 4, 15]


def test_a_header_needs_all_its_tokens():
    assert targets(7, 5, 8, 1, 3, 9) == []
    assert targets(8, 7, 1, 3, 9) == []
    assert targets(7) == targets(7, 8) == targets(7, 8, 1) == targets() == []


def test_a_truncated_answer_is_trained_to_its_end():
    assert targets(7, 8, 1, 3, 3) == [3, 4]


@given(st.lists(st.integers(0, 3).map(lambda n: [7, 8, 9, 4][n]), max_size=30))
def test_against_a_state_machine(ids):
    expected, i = [], 0
    while i < len(ids):
        if ids[i : i + 2] == [7, 8]:
            start = i + 3
            end = next((j for j in range(start, len(ids)) if ids[j] == 9), len(ids) - 1)
            expected += range(start, end + 1)
        i += 1
    assert targets(*ids) == sorted(set(expected))


def test_labels_and_shift():
    ids = np.array([1, 2, 3], dtype=np.int32)
    labels = labels_of(ids, np.array([False, False, True]))
    assert labels.tolist() == [-100, -100, 3]
    assert labels.dtype == np.int32
    after = shifted({"input_ids": ids, "labels": labels, "position_ids": np.array([[0, 1, 2]] * 3)})
    assert after["input_ids"].tolist() == [1, 2]
    assert after["labels"].tolist() == [-100, 3]
    assert after["position_ids"].tolist() == [[0, 1]] * 3


@given(st.lists(st.sampled_from([1, 256, 65536, 1 << 24, 0, 257]), max_size=30), st.data())
def test_tokens_are_found_as_wholes(ids, data):
    """As bytes, the end of a token and the beginning of the next may look like another."""
    header = tuple(data.draw(st.lists(st.sampled_from([1, 256, 65536, 1 << 24]), min_size=1, max_size=2)))
    markers = TurnMarkers(header=header, end=257, tail=0, other_ends=(0,))
    expected = []
    for at in range(len(ids) - len(header) + 1):
        if tuple(ids[at : at + len(header)]) == header:
            start = at + len(header)
            expected.append((start, next((j + 1 for j in range(start, len(ids)) if ids[j] in (257, 0)), len(ids))))
    assert assistant_spans(np.array(ids, dtype=np.int32), markers) == expected
