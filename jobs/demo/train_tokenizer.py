"""Train the demo processor: a byte-level BPE of 2,048 entries with ChatML and vision tokens, and its config files.

    python jobs/demo/train_tokenizer.py [OUT]        default: jobs/demo/processor, which is shipped

It learns from the demo conversations and from the text in this file, nothing else, and writes the same bytes on every
run. The layout is that of a Qwen2.5-VL folder, small enough to be read: a tiny random model can be built from it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, `jobs` is not on the path
from jobs.demo.make_data import META, good_rows

PROCESSOR = Path(__file__).parent / "processor"
VOCAB_SIZE = 2048  # special tokens included; a multiple of 64, so the embedding needs no padding rows
MODEL_MAX_LENGTH = 32768

# Qwen2's: contractions, words with one leading non-letter, single digits, punctuation, line breaks, spaces.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = [  # in Qwen's order, after the learned entries
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]

CHAT_TEMPLATE = r"""
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part['type'] == 'video' -%}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- elif part['type'] == 'text' -%}
                {{- part['text'] -}}
            {%- else -%}
                {{- raise_exception('unknown content part: ' + part['type']) -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
""".lstrip()

PROSE = """
A picture is a table of numbers. Each number says how bright one small point is, and three such numbers together give
its colour. When a model looks at a picture, it does not see the whole at once; it cuts it into little square patches,
turns every patch into a list of numbers, and reads the patches one after another, as a reader follows the words on a
page. A larger picture has more patches and therefore takes more room. That is why pictures are made smaller before
they are used: enough to keep what matters, not so much that the details are lost.

Words are handled in the same way. A text is split into pieces that occur often. A common word is one piece; a rare
one is built from several, and in the worst case from single bytes, so that nothing that can be written is ever
impossible to read. The list of pieces is learned from examples: begin with the letters, look for the pair that stands
side by side most often, join it into a new piece, and repeat until the list is long enough.

Packing is like loading a ship. There are many boxes of different sizes and only so many containers. If each box had a
container of its own, most of the space would travel empty. So the large boxes go in first, and the small ones fill the
gaps between them. Someone must keep a book in which every box is written down: where it went, or why it stayed on the
shore. A good captain trusts the book only when the numbers add up.

The question "How many circles are there?" has one right answer, and a child could give it by pointing. What colour is
the square on the left? Which bar is the highest? Is the triangle above the circle or below it? Such questions are
simple, but they can be checked, and what can be checked can be trusted. If you don't know, say that you don't know.
It's better to ask again than to guess; we've all seen what happens when nobody looks twice.

In the morning the harbor is quiet. The boats lie in a row, white and blue, and the water moves slowly between the
stones. An old man sits on the wall and mends a net. Later the market opens: there are apples and pears, fresh bread,
cheese, fish from the night, flowers in every colour. People come from the hills with baskets, they talk about the
weather, the price of wheat and the new bridge over the river. By noon it is too warm to work, and the streets are
empty until the evening wind arrives from the sea.

To bake bread you need flour, water, salt and time. Mix the flour and the water, let them rest for half an hour, add
the salt, and fold the dough a few times. After some hours in a cool place it has doubled. Shape it, let it rise again,
and put it into a very hot oven. After forty minutes the crust should be dark and sound hollow when you knock on it.
Let it cool before you cut it, even though that is the hardest part.

A train leaves the station at nine and travels at eighty kilometres per hour. Another leaves an hour later and is
faster by forty. When does the second reach the first? After one hour the first is eighty kilometres ahead; the second
gains forty in each hour; so two hours later, at noon, they meet. First write down what is given, then what is asked,
then the steps between them, and finally check the result with the numbers of the question.

def area(width: int, height: int) -> int:
    return width * height

for index, value in enumerate(values):
    if value is None:
        continue
    total = total + value
    print(f"{index}: {value}")

{"name": "picture", "size": [320, 240], "colour": "red", "count": 3, "valid": true, "next": null}

| shape | colour | count |
|-------|--------|-------|
| circle | red | 2 |
| square | blue | 1 |

Ein Bild sagt mehr als viele Worte, und die Antwort ist nicht immer die erste. Wie viele Kreise sind auf dem Bild? Es
sind drei Kreise und ein Dreieck. Le chat est sur la table, la porte est ouverte et il fait beau. Combien de cercles y
a-t-il dans cette image ? Il y a deux cercles et un triangle. ¿Cuántos círculos hay en la imagen? Hay tres círculos y un
cuadrado. 图中有几个圆？图中有三个圆和一个方块。左边的是红色，右边的是蓝色。
"""

COMMON = """
the be to of and a in that have it for not on with he as you do at this but his by from they we say her she or an will
my one all would there their what so up out if about who get which go me when make can like time no just him know take
people into year your good some could them see other than then now look only come its over think also back after use
two how our work first well way even new want because any these give day most us is are was were has had did been being
does said made went came took saw knew thought looked used found gave told asked seemed felt tried left called kept let
begin began show shown heard play run moved lived believe hold bring happen must write wrote provide sit stand lose pay
meet include continue set learn change lead understand watch follow stop create speak read allow add spend grow open
walk win offer remember love consider appear buy wait serve die send expect build stay fall cut reach kill remain
suggest raise pass sell require report decide pull return explain hope develop carry break receive agree support hit
produce eat cover catch draw choose cause point listen realize place close involve increase person man woman child
world school state family student group country problem hand part case week company system program question work
government number night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car city community name
president team minute idea body information nothing ago lead social whether back parent face others level office door
health art war history party result morning reason research girl guy moment air teacher force education foot boy age
policy music market sense nation plan college interest death experience effect class control field paper group space
ground form event matter center couple site project activity star table need court oil situation cost industry figure
street image phone data picture practice piece land product doctor wall patient worker news test movie north south east
west love support technology step type attention film tree source organization hair window culture chance brother energy
period course summer plant opportunity term letter condition choice rule daughter husband floor campaign material
population call economy hospital church risk fire future bank fear sister shape circle square triangle bar chart colour
color red green blue yellow purple orange black white gray pink cyan brown large small big little long short high low
higher lower highest lowest left right above below between before behind under near far early late old young great same
different important public able bad best better certain clear common current dead easy economic entire environmental
final financial free full general happy hard hot cold hot huge human international likely local main major medical
military modern national natural nice only open particular past personal physical political poor popular possible
present private ready real recent religious serious significant similar simple single special strong successful sure
third total traditional true false various warm wide wrong again almost already always away down else enough ever every
finally here however indeed instead later maybe more much never next often once perhaps probably quickly quite rather
really several simply since so sometimes soon still together today tomorrow tonight too usually very yes yesterday yet
zero two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million
second fourth fifth half quarter double times plus minus equal equals even odd sum answer answers count order alphabet
alphabetical word words letter letters sentence line lines list table column row unit units describe compare explain
image images video videos photo background foreground corner middle center edge top bottom front user assistant system
model token tokens train training sample samples shard shards pack packs packed length position label labels mask batch
value values index key file files folder path width height size pixel pixels patch frame frames string integer float
function class import return print while else true none null error warning message content role text type default
monday tuesday wednesday thursday friday saturday sunday january february march april may june july august september
october november december spring autumn winter animal bird cat cow dog fish horse mouse sheep apple bread butter cheese
coffee egg flour fruit meat milk rice salt soup sugar tea bottle box chair clock cup glass knife lamp plate spoon towel
"""


def training_text() -> Iterator[str]:
    """The demo conversations, the prose, and the common words as they start and continue a sentence."""
    rows, _ = good_rows()
    for name, config in META.items():
        for row in rows[name]:
            for message in row[config["columns"]["messages"]]:
                yield message[config["tags"]["content_tag"]]
    yield PROSE
    for word in COMMON.split():
        yield f"{word.capitalize()} {word} {word}"


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # all 256 bytes: any text can be written
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, f"too little text: only {tokenizer.get_vocab_size()} entries"
    return tokenizer


def tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(ids[token]): {"content": token, **flags} for token in SPECIAL_TOKENS},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "extra_special_tokens": {},
        "model_max_length": MODEL_MAX_LENGTH,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def preprocessor_config() -> dict[str, Any]:
    return {
        "min_pixels": 56 * 56,  # 4 visual tokens
        "max_pixels": 224 * 224,  # 64 visual tokens: the demo packs in seconds
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }


def model_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": MODEL_MAX_LENGTH,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},  # sums to half a head: 64 / 4 / 2
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "use_cache": True,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "hidden_act": "silu",
            "in_chans": 3,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
        },
    }


def build() -> dict[str, str]:
    """File name -> content of the whole processor folder."""
    tokenizer = train()
    ids = tokenizer.get_vocab()
    configs = {
        "tokenizer_config.json": tokenizer_config(ids),
        "preprocessor_config.json": preprocessor_config(),
        "config.json": model_config(ids),
    }
    files = {name: json.dumps(config, indent=2) + "\n" for name, config in configs.items()}
    return files | {"tokenizer.json": tokenizer.to_str(pretty=True) + "\n", "chat_template.jinja": CHAT_TEMPLATE}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the demo tokenizer and write the demo processor.")
    parser.add_argument("out", type=Path, nargs="?", default=PROCESSOR)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, content in build().items():
        (out / name).write_bytes(content.encode())
        print(f"{out / name}: {len(content.encode())} bytes")
