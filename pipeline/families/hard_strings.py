"""Strings by which two tokenizers that differ anywhere in splitting, normalizing or special tokens are told apart.

Merges are proved equal elsewhere (tokens.py). What is left are regex engines and normalizers of other Unicode versions,
and the edges of special tokens.
"""

from collections.abc import Iterable, Iterator

# Each is next to what patterns treat apart: contractions, digits, line breaks, other scripts.
WORDS = (
    "",
    " ",
    "a",
    "\x00",
    "\ufeff",
    "Hello, world!",
    "don't DON'T we'll I'Ve it's 's 'S ſ's K's x'ſ x’s",
    "''s'''t'",
    "1 12 123 1234 12345678901 3.14 1e-9 ٣٤٥ ४५६ Ⅷ ½ ²³ ①②",
    "a1b2 3c4d x1 1x _1_",
    "CamelCase HTTPServer iPhone ǅabc ABCabcABC",
    "  two   three    four",
    "\ttab\t\tTab",
    "end \n",
    "\r\n \r\n\r\n  \n x",
    "a\n\n\nb\n \n c",
    " \n",
    "\n ",
    "   ",
    "\u00a0\u2003\u3000x",
    "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh",
    "!?!... --- === ((())) [[[]]] {{{}}} <<>> \\\\ // ~~",
    "...\n\n!!\n?!\r\n//\n",
    "中文字符，标点。漢字カタカナひらがな한국어",
    "中 文a中1文!中\n",
    "русский ქართული עברית العربية हिन्दी ไทย ខ្មែរ አማርኛ",
    "e\u0301 é \u212b \u2126 \u1112\u1161\u11ab 한 \u0344 \u0958 \ufb1d ﬁ",
    "q\u0307\u0323 q\u0323\u0307 a\u0328\u0301 \u0301x",
    "<\u0338 >\u0338 =\u0338",
    "👍🏽👩‍👩‍👧‍👦🇩🇪❤️ ☃︎",
    "x\u200by\u200dz\u2060w",
    "\ue000\uf8ff\U000f0000\ufdd0\uffff\U0010ffff",
    "ß ẞ İ ı ﬀ Ǆ",
    "def f(x):\n    return x[0]  # comment\n\n\nclass A:\n\tpass\n",
    '{"a": [1, 2.5, null], "b": "c\\n"}',
    "https://example.org/a_b?c=d&e=%20f#g",
    "$\\frac{a}{b}$ \\(x^2\\) α≤β∑",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20,
    "ab" * 300,
    " " * 300,
    "\n" * 300,
    "!" * 300,
    "中" * 200,
)
# Assigned by Unicode 15 to 17, and their neighbours that are not: what an older engine takes for something else.
YOUNG = (
    (0x0C5C, 0x0C5D),
    (0x1C89, 0x1C8B),
    (0x1AC1, 0x1AEB),
    (0xA7C0, 0xA7DD),
    (0xA7F1, 0xA7F3),
    (0x088F, 0x0898),
    (0x20C0, 0x20C2),
    (0x105C0, 0x105F5),
    (0x10940, 0x1095A),
    (0x10D40, 0x10D90),
    (0x10EC2, 0x10EC8),
    (0x10EFA, 0x10EFE),
    (0x11240, 0x11242),
    (0x11380, 0x113E3),
    (0x116D0, 0x116E4),
    (0x11B00, 0x11B0A),
    (0x11BC0, 0x11BFA),
    (0x11DB0, 0x11DEA),
    (0x11F00, 0x11F5B),
    (0x13430, 0x13461),
    (0x16100, 0x1613A),
    (0x16D40, 0x16D7A),
    (0x16EA0, 0x16ED4),
    (0x1CC00, 0x1CC10),
    (0x1CCF0, 0x1CCFA),
    (0x1DF25, 0x1DF2B),
    (0x1E030, 0x1E06E),
    (0x1E4D0, 0x1E4FA),
    (0x1E5D0, 0x1E5FB),
    (0x1E6C0, 0x1E6F6),
    (0x2A6DE, 0x2A6E0),
    (0x2B739, 0x2B73E),
    (0x2EBF0, 0x2EC00),
    (0x31350, 0x31360),
    (0x323B0, 0x323C0),
)
STEP = 23  # of the first two planes every 23rd code point is tried: 5,700 of them
SURROGATES = range(0xD800, 0xE000)
NUM_IN_ONE = 24  # code points in a string


def hard_strings(special_tokens: Iterable[str]) -> list[str]:
    return [*WORDS, *_by_code_point(), *_around(sorted(special_tokens))]


def _by_code_point() -> Iterator[str]:
    """Each between what shows its class: before 's (after a letter it is a contraction), after a space and a digit."""
    young = [point for start, stop in YOUNG for point in range(start, stop, 3)]
    points = [point for point in (*range(0, 0x20000, STEP), *young) if point not in SURROGATES]
    for start in range(0, len(points), NUM_IN_ONE):
        yield "".join(f"{chr(point)}'s {chr(point)}1" for point in points[start : start + NUM_IN_ONE])


def _around(special_tokens: list[str]) -> Iterator[str]:
    """Special tokens beside letters, spaces, marks and each other, and their halves."""
    for token in special_tokens:
        yield f"a{token}b {token} \n{token}\n\n{token}{token}\u0301{token[:-1]}"
        yield f"{token[1:]}\u0338 \u3000{token}\u2028x\x1c{token}\x1cy"
    yield "".join(special_tokens)
