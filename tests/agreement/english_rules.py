"""The rules of spaCy's blank English tokenizer as data, read from the installed spaCy.

python -m tests.agreement.english_rules > platform/plinth_text/english/rules.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any


def rules() -> dict[str, Any]:
    """Return the parts of spaCy that `plinth_text.english` contains."""
    import spacy
    from spacy.attrs import ORTH
    from spacy.lang import char_classes as classes
    from spacy.pipeline import Sentencizer

    words = spacy.blank("en").tokenizer
    period = rf"[0-9{classes.ALPHA_LOWER}%²\-\+{classes.PUNCT}(?:{classes.CONCAT_QUOTES})]"
    return {
        "source": f"spaCy {spacy.__version__}, spacy/lang/en, spacy/lang/punctuation.py and char_classes.py",
        "copyright": "2016-2024 ExplosionAI GmbH, 2016 spaCy GmbH, 2015 Matthew Honnibal; MIT licence",
        "prefix": _ranges(lambda one: one != "+" and words.prefix_search(one)),
        "suffix": _ranges(words.suffix_search),
        "infix": _ranges(lambda one: list(words.infix_finditer(one))),
        "letter": _ranges(re.compile(f"[{classes.ALPHA}]").match),
        "lower": _ranges(re.compile(f"[{classes.ALPHA_LOWER}]").match),
        "upper": _ranges(re.compile(f"[{classes.ALPHA_UPPER}]").match),
        "quote": _ranges(re.compile(f"[{classes.CONCAT_QUOTES}]").match),
        "before_period": _ranges(re.compile(period).match),
        "after_digit": sorted({*classes.UNITS.split("|"), *classes.CURRENCY.replace("\\", "").split("|")}),
        "sentence_ends": "".join(sorted(Sentencizer.default_punct_chars)),
        "exceptions": sorted(
            " ".join(one[ORTH] for one in pieces) for text, pieces in words.rules.items() if not text.isspace()
        ),
    }


def _ranges(test: Callable[[str], Any]) -> str:
    """Code points that pass a test, as hexadecimal ranges."""
    found: list[list[int]] = []
    for point in range(sys.maxunicode + 1):
        if not test(chr(point)):
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return " ".join(f"{low:X}-{high:X}" if low < high else f"{low:X}" for low, high in found)


if __name__ == "__main__":
    print(json.dumps(rules(), indent=1, ensure_ascii=False))
