"""Word and character counts as the projects define them, in slow and obvious Python.

Written from the published definitions, for comparison with the kernels on random text and against the projects
themselves on real text. Nothing here is fast, and nothing is shared with the kernels.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from statistics import median
from typing import Any

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = "•‣▶◀◦■□▪▫–"


def grams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def size(words: Any) -> int:
    return sum(map(len, words))


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def most_common(counts: Counter[Any]) -> tuple[Any, int]:
    """The most frequent, of several the one seen first."""
    most = max(counts.values())
    return next(one for one in counts if counts[one] == most), most


def gopher_dolma(text: str, join_blank_lines: bool = False) -> dict[str, float]:
    """Dolma: every copy of what repeats counts, n-grams overlap, characters are those of words."""
    words = text.split()
    lines = re.split("\n+" if join_blank_lines else "\n", text) if text else []
    repeated = [line for line in lines if lines.count(line) > 1]
    found = {
        "word_count": len(words),
        "median_word_characters": median(map(len, words)) if words else 0.0,
        "symbol_words": share(sum("#" in word or "…" in word for word in words), len(words)),
        "letter_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "stop_words": sum(word in STOP_WORDS for word in words),
        "bullet_lines": share(sum(line[:1] in ("*", "-") for line in lines if line), len(lines)),
        "ellipsis_lines": share(sum(line[-1:] == "…" for line in lines), len(lines)),
        "duplicate_lines": share(len(repeated), len(lines)),
        "duplicate_line_characters": size(repeated) / max(size(words), 1),
    }
    for n in range(2, 11):
        counts = Counter(grams(words, n))
        if n < 5:
            top, most = most_common(counts) if counts else ((), 0)
            found[f"top_{n}_gram"] = share(most * size(top), size(words))
        else:
            copies = sum(count * size(gram) for gram, count in counts.items() if count > 1)
            every = sum(count * size(gram) for gram, count in counts.items())
            found[f"duplicate_{n}_grams"] = share(copies, every)
    return found


def normalised(text: str) -> str:
    kept = "".join(character for character in text if character not in string.punctuation)
    return unicodedata.normalize("NFD", " ".join(kept.lower().split()))


def redpajama(text: str, stop_words: Any = STOP_WORDS) -> dict[str, float]:
    """RedPajama-v2: normalized words for repetition, words and signs apart for the rest."""
    words, raw = normalised(text).split(), re.findall(r"\w+|[^\w\s]+", text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    plain = [normalised(line) for line in lines]
    counts = Counter(words)
    symbols = text.count("#") + text.count("...") + text.count("…")
    found = {
        "word_count": len(words),
        "mean_word_characters": share(size(words), len(words)),
        "unique_words": share(len(counts), len(words)),
        "unigram_entropy": -sum(n / len(words) * math.log(n / len(words)) for n in counts.values()),
        "lorem_ipsum": share(" ".join(words).count("lorem ipsum"), len(" ".join(words))),
        "javascript_words": counts["javascript"],
        "line_words": share(len(words), len(lines)),
        "line_numerical_characters": share(
            sum(share(sum(map(str.isnumeric, line)), len(line)) for line in plain), len(lines)
        ),
        "raw_words": len(raw),
        "symbol_ratio": share(symbols, len(raw)),
        "no_letter_words": share(sum(not re.search("[a-zA-Z]", word) for word in raw), len(raw)),
        "upper_case_words": share(sum(map(str.isupper, raw)), len(raw)),
        "stop_words": share(sum(word in stop_words for word in raw), len(raw)),
        "curly_brackets": share(text.count("{") + text.count("}"), len(text)),
        "sentences": len(re.findall(r"\b[^.!?]+[.!?]*", text)),
        "lines": len(lines),
        "ellipsis_lines": share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "bullet_lines": share(sum(line.lstrip().startswith(tuple(BULLETS)) for line in lines), len(lines)),
        "terminal_lines": share(sum(line.rstrip().endswith((".", "!", "?", "”")) for line in lines), len(lines)),
        "line_upper_case_characters": share(sum(sum(map(str.isupper, line)) / len(line) for line in lines), len(lines)),
    }
    for n in range(2, 11):
        all_grams = grams(words, n)
        seen = Counter(all_grams)
        if n < 5:
            top, most = most_common(seen) if seen else ((), 0)
            found[f"top_{n}_gram"] = share(most * size(top), size(words)) if most > 1 else 0.0
        else:
            inside = {at + k for at, gram in enumerate(all_grams) if seen[gram] > 1 for k in range(n)}
            found[f"duplicate_{n}_grams"] = share(size(words[at] for at in inside), size(words))
    return found


def repeated_tokens(text: str) -> dict[str, float]:
    """The most repeats in a row of any sequence of 1 to 13 tokens, at least three, by trying every place."""
    tokens = re.findall(r"\w+|[^\w\s]+", text)
    times = longest = 0
    for period in range(1, min(13, len(tokens) // 3) + 1):
        for start in range(len(tokens) - period):
            end = start + period
            while end < len(tokens) and tokens[end] == tokens[end - period]:
                end += 1
            if (end - start) // period >= 3:
                times, longest = max(times, (end - start) // period), max(longest, end - start)
    return {"tokens": len(tokens), "times": times, "longest": longest}


def characters(text: str) -> dict[str, float]:
    """Shares of characters by Python's own answers."""
    kinds = [unicodedata.category(character)[0] for character in text]
    lines, n, letters = text.splitlines(), len(text), sum(map(str.isalpha, text))
    return {
        "characters": n,
        "letters": share(letters, n),
        "upper_case": share(sum(map(str.isupper, text)), letters),
        "digits": share(sum(map(str.isdigit, text)), n),
        "alphanumeric": share(sum(map(str.isalnum, text)), n),
        "white_space": share(sum(map(str.isspace, text)), n),
        "punctuation": share(kinds.count("P"), n),
        "symbols": share(kinds.count("S"), n),
        "control": share(sum(kind == "C" and not one.isspace() for kind, one in zip(kinds, text, strict=True)), n),
        "non_ascii": share(sum(character > "\x7f" for character in text), n),
        "lines": len(lines),
        "mean_line": share(size(lines), len(lines)),
        "longest_line": max(map(len, lines), default=0),
    }
