"""Nemotron-Parse: reads a page into text. Known, so that it is refused with a reason; it cannot be packed."""

from neatpack.pipeline.families.base import Family


class NemotronParse(Family):
    name = "nemotron_parse"
    processor_classes = ("NemotronParseProcessor",)
    takes = ("image",)
    placeholders = {}
    position_axes = 1
    not_packable = (
        "it is an encoder-decoder: the page goes to the encoder, the decoder starts from a task prompt, and there is "
        "no chat template; documents laid end to end would all see one page. Train it unpacked, with the online "
        "nemotron_parse_collate_fn of loaders"
    )
