"""Words of conversations that property tests draw."""

from typing import Any

from hypothesis import strategies as st

QUESTION, ANSWER = st.text(max_size=20), st.text(max_size=20)
# Rows that look like the format's, some of them good.
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.builds(
        lambda asked, said, loss: {
            "id": asked,
            "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said, "loss": loss}],
        },
        QUESTION, ANSWER, st.sampled_from([None, True, False, 0.5]),
    ),
    "vsft": st.builds(
        lambda asked, said, index: {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": asked}, {"type": "image", "index": index}]},
                {"role": "assistant", "content": [{"type": "text", "text": said}]},
            ],
            "images": ["absent.png"],
        },
        QUESTION, ANSWER, st.integers(-1, 2),
    ),
    "sharegpt": st.builds(
        lambda asked, said: {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]},
        QUESTION, ANSWER,
    ),
    "llava": st.builds(
        lambda asked, said: {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]},
        st.sampled_from(["<image>?", "?"]), ANSWER,
    ),
    "cauldron": st.builds(lambda asked, said: {"texts": [{"user": asked, "assistant": said}]}, QUESTION, ANSWER),
    "alpaca": st.builds(lambda asked, said: {"instruction": asked, "input": "", "output": said}, QUESTION, ANSWER),
    "prompt_response": st.builds(lambda asked, said: {"prompt": asked, "response": said}, QUESTION, ANSWER),
    "document": st.builds(lambda text: {"text": text}, QUESTION),
}  # fmt: skip
