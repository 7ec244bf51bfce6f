"""What is wrong with a pack, from its arrays, its documents and what the manifest says of the family."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from neatpack.format.layout import IGNORE, IMAGE, TEXT, TOKEN_TYPES, VIDEO, layout_of, misfit, split_media
from neatpack.format.manifest import Manifest
from neatpack.format.members import Document, Pack, text_problem

from ..families.registry import FAMILIES
from ..labels import TrainOn, TurnMarkers, assistant_spans, spans_mask
from ..measure.targets import is_trained
from ..token_types import token_types
from .problems import Problem


def check_pack(pack: Pack, manifest: Manifest) -> list[Problem]:
    """What is wrong with the arrays of a pack."""
    arrays, length = pack.arrays, len(pack.arrays["input_ids"])
    pack_size, align = (manifest.identity.config[key] for key in ("pack_size", "align"))
    if problem := text_problem(arrays, manifest.family["position_axes"], manifest.family["position_dtype"]):
        return [Problem(problem, "pack-arrays", array=problem.array)]
    problems = []
    if length > pack_size:
        problems.append(Problem(f"{length} tokens, above pack_size {pack_size}", "pack-length", got=length))
    planned = [document.tokens for document in pack.documents]
    if arrays["seq_lens"].tolist() != planned:
        lengths = arrays["seq_lens"].tolist()
        problems.append(Problem(f"document lengths {lengths} differ from the planned {planned}", "pack-length"))
    padded = [-(-tokens // align) * align for tokens in planned]
    if not problems and (arrays["seq_lens_padded"].tolist() != padded or sum(padded) != length):
        lengths = arrays["seq_lens_padded"].tolist()
        problems.append(Problem(f"padded lengths {lengths}, expected {padded} of {length} in all", "pack-length"))
    if problems:
        return problems
    config = manifest.identity.config
    train_on = TrainOn(turns=config["train_on"], reasoning=config["reasoning"])
    found = _document_problems(pack, manifest.family, train_on)
    return [problem.inside(f"document {index}", document=index) for index, problem in found]


def _document_problems(pack: Pack, described: dict[str, Any], train_on: TrainOn) -> Iterator[tuple[int, Problem]]:
    """`described`: what the manifest says of the family."""
    arrays, layout = pack.arrays, layout_of(described)
    family, facts, padding_id = FAMILIES[described["name"]], described["facts"], described["padding_id"]
    markers = TurnMarkers(
        header=tuple(described["assistant_header_ids"]),
        end=described["end_of_turn_id"],
        tail=described["assistant_header_tail"],
        other_ends=tuple(described.get("other_end_ids", ())),
    )
    parts = {kind: [getattr(document, f"num_{kind}s") for document in pack.documents] for kind in TOKEN_TYPES}
    problem = misfit(arrays, layout, parts)
    if problem:
        yield len(pack.documents), Problem(problem, "pack-arrays", array=problem.array)
        return
    start = 0
    for index, (document, media) in enumerate(zip(pack.documents, split_media(arrays, layout, parts), strict=True)):
        stop = start + document.tokens
        ids, labels = arrays["input_ids"][start:stop], arrays["labels"][start:stop]
        is_fake = document.row < 0
        if is_fake and ids.tolist() != described["fake_image_ids"]:
            yield index, Problem("the fake image has other tokens", "document-fake-image")
        types = arrays["mm_token_type_ids"][start:stop]
        if is_fake:
            if (labels != IGNORE).any():
                yield index, Problem("the fake image has labels", "document-fake-image")
        else:
            yield from (
                (index, problem) for problem in _label_problems(ids, labels, types, document, markers, train_on)
            )
        expected_types = token_types(ids, described["placeholder_ids"], described.get("video_span_ids", ()))
        visual = int(np.count_nonzero((expected_types == IMAGE) | (expected_types == VIDEO)))
        tokens, expected = int(np.count_nonzero(expected_types)), family.media_tokens(media, facts)
        if visual != document.visual_tokens or expected not in (tokens, None):
            planned = f"planned {document.visual_tokens} visual ones"
            words = f"{tokens} media tokens, arrays for {expected}, {planned}"
            yield index, Problem(words, "document-media", got=tokens, expected=expected)
        elif not np.array_equal(types, expected_types):
            yield index, Problem("mm_token_type_ids differ from the media tokens", "document-media")
        else:
            # Positions depend on what came before only, so the token that the shift cut off does not matter.
            positions = family.positions(types, media, facts)
            if not np.array_equal(arrays["position_ids"][..., start:stop], positions):
                yield index, Problem("positions differ from those of the document alone", "document-positions")
        end = start + int(arrays["seq_lens_padded"][index])
        if (arrays["labels"][stop:end] != IGNORE).any() or (arrays["input_ids"][stop:end] != padding_id).any():
            yield index, Problem("its padding has labels or tokens", "document-padding")
        start = end


def _label_problems(
    ids: np.ndarray,
    labels: np.ndarray,
    types: np.ndarray,
    document: Document,
    markers: TurnMarkers,
    train_on: TrainOn,
) -> Iterator[Problem]:
    """Labels are the next token in the spans that the pack's JSON names, and -100 elsewhere; the spans are those that
    the config and the row ask for.

    The shift has cut the last token off the inputs; it is known only through its label, if it has one.
    """
    targets = spans_mask(document.targets, len(labels))
    following = np.append(ids[1:], labels[-1])
    expected = np.where(targets, following, IGNORE)
    if not np.array_equal(labels, expected):
        at = int(np.flatnonzero(labels != expected)[0])
        words = f"label {labels[at]} at token {at}, expected {expected[at]}"
        yield Problem(words, "document-labels", token=at, got=int(labels[at]), expected=int(expected[at]))
    if not targets.any():
        yield Problem("no target", "document-targets")
        return
    asked, free = _asked_targets(np.append(ids, labels[-1]), types, document, markers, train_on)
    wrong = (targets != asked[1:]) & ~free[1:]
    wrong[-1] &= labels[-1] != IGNORE  # a token that is not there cannot be told
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        words = f"token {at + 1} is {'trained on' if targets[at] else 'masked'}, against --train-on and its row"
        yield Problem(words, "document-targets", token=at + 1)


def _asked_targets(
    ids: np.ndarray, types: np.ndarray, document: Document, markers: TurnMarkers, train_on: TrainOn
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens are to be trained on, and which may be or not.

    Free are, in answers, tokens of reasoning that is masked: where it stands only the tokenizer tells. In text that is
    trained on as a whole, the markers beside media are.
    """
    is_text = np.append(types == TEXT, True)
    spans = assistant_spans(ids, markers)
    num_turns = len(document.loss) or len(spans)  # more than spans where the document was cut
    trained = [is_trained(number, num_turns, document.loss, train_on) for number in range(len(spans))]
    whole = document.form == "document" or train_on.turns == "all"
    asked = is_text.copy() if whole else np.zeros(len(ids), dtype=bool)
    free = _beside(~is_text) if whole else np.zeros(len(ids), dtype=bool)
    if document.form == "document":
        return asked, free
    for (start, stop), is_asked in zip(spans, trained, strict=True):
        asked[start:stop] = is_asked
        free[start:stop] |= is_asked and train_on.reasoning == "mask"
    return asked, free


def _beside(media: np.ndarray) -> np.ndarray:
    """Text between media tokens, or at most a few tokens from one: markers, and times of frames."""
    reach, here = 16, np.arange(len(media))
    before = np.concatenate([[0], np.cumsum(media)])  # media tokens before each place
    near = before[np.minimum(here + reach + 1, len(media))] > before[np.maximum(here - reach, 0)]
    return np.asarray(near & ~media)
