"""Figures in words: counts with their nouns, shares, sizes."""


def counted(number: int, noun: str) -> str:
    """1 -> "1 shard", 1200 -> "1,200 shards"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(part: float, whole: float) -> str:
    """1 of 3 -> "33.3%". What is not nothing does not read 0.0%, and what is not all does not read 100.0%."""
    share = part / whole if whole else 0.0
    if part and share < 0.001:
        return "<0.1%"
    if part < whole and share > 0.999:
        return ">99.9%"
    return f"{share:.1%}"


def times_taken(ratio: float) -> str:
    """Rows in an epoch: 0.25 -> "25.0% of its rows", 1 -> "each row once", 2.5 -> "each row 2.5 times"."""
    if ratio < 1:
        return f"{ratio:.1%} of its rows"
    return "each row once" if ratio < 1.005 else f"each row {ratio:.3g} times"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
