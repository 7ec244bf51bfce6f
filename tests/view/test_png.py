"""The view as a picture: text in its place, pictures pixel by pixel, and no character that ends it."""

import numpy as np
from helpers import TinyData, packs_of, tiny_config
from shown_packs import HOSTILE, pack_of, view_of
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.view import png
from neatpack.pipeline.view.png import COLOURS, png_picture


def has(picture: np.ndarray, part: np.ndarray) -> bool:
    """Whether a picture is in another, unchanged; its corner is looked for first."""
    height, width = part.shape[:2]
    for y, x in np.argwhere((picture[: -height + 1 or None, : -width + 1 or None] == part[0, 0]).all(axis=-1)):
        if np.array_equal(picture[y : y + height, x : x + width], part):
            return True
    return False


def test_pictures_are_as_the_model_sees_them(tmp_path):
    data = TinyData(tmp_path / "data").image(90, 130).text("Why?", "So.")
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    (pack,) = packs_of(tmp_path / "out")
    view = view_of(pack)
    drawn = png_picture(view)
    (medium,) = view.documents[0].media if view.documents[0].media else view.documents[1].media
    assert has(drawn, medium.pictures[0].pixels)
    assert not has(drawn, medium.pictures[0].pixels[:, ::-1])


def test_what_is_trained_on_is_coloured():
    ground = np.array(COLOURS["trained"][1])
    count = {
        trained: int(((png_picture(view_of(pack_of([("Why? ", False), ("So.", trained)])))) == ground).all(-1).sum())
        for trained in (False, True)
    }
    assert count[False] == 0 < count[True]


def test_hostile_text_is_drawn():
    view = view_of(pack_of([(HOSTILE, False), (HOSTILE, True)], id="\ud800", dataset="漢"))
    assert png_picture(view).shape[1] == png.WIDTH


def test_without_fonts_pillow_has_one(monkeypatch):
    monkeypatch.setattr(png, "FONTS", ("absent.ttf",))
    assert png_picture(view_of(pack_of([(HOSTILE, True)]))).shape[0] > 100


def test_what_is_too_high_is_refused(monkeypatch):
    monkeypatch.setattr(png, "MAX_HEIGHT", 100)
    with raises(UserError, "option-conflict", option="png", most=100):
        png_picture(view_of(pack_of([("a\n" * 20, True)])))
