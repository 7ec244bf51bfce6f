"""A Nemotron-Parse processor on the demo's vocabulary: task tokens, and no chat template."""

from pathlib import Path

from processors.common import write_processor

TOKENS = ["<s>", "</s>", "<predict_bbox>", "<predict_classes>", "<output_markdown>"]


def make(folder: Path) -> Path:
    config = {"processor_class": "NemotronParseProcessor", "image_processor_type": "NemotronParseImageProcessor"}
    write_processor(folder, tokens=TOKENS, template="", preprocessor_config=config)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder
