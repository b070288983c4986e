"""FineWeb-2's limits and stop words of the languages that lid.176 knows, read from a checkout of its repository.

git clone https://github.com/huggingface/fineweb-2
python -m tests.agreement.language_limits fineweb-2 > platform/plinth/corpus/annotate/rules/language_limits.jsonl
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import unicodedata
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

from plinth.corpus.annotate.language import LANGUAGES

#: Labels of lid.176 for more than one language, or under an older code.
_OTHERS = {"no": "nob_Latn", "tl": "fil_Latn", "sh": "srp_Latn", "bh": "bho_Deva", "ku": "kmr_Latn", "als": "gsw_Latn"}
#: Words are cut otherwise than in FineWeb-2, so its lengths of words do not hold: words between spaces for Kiwi's
#: morphemes and pyvi's compounds, syllables for khmer-nltk's, LaoNLP's, pyidaungsu's and botok's words.
_LENGTHS = {"ko": (1, 10), "vi": (2, 10), "km": (1, 10), "lo": (1, 10), "my": (1, 10), "bo": (1, 10)}
#: Languages that lid.176 labels alike in two scripts: stop words of the second.
_SECOND = {"sr": "srp_Latn", "uz": "uzn_Cyrl", "az": "azj_Cyrl"}
_TSHEG = "\u0f0b"


def main(checkout: Path) -> None:
    """Print a line for each language, in the order of labels."""
    for label, name in sorted(_names(checkout).items()):
        given = yaml.safe_load(_read(checkout, name))
        if label in _SECOND:
            given["stopwords"] += yaml.safe_load(_read(checkout, _SECOND[label]))["stopwords"]
        print(json.dumps(_row(label, name, given), ensure_ascii=False))


def _names(checkout: Path) -> dict[str, str]:
    """The configuration of each label: its language in its usual script, as datatrove names it."""
    have = {Path(line).stem for line in _git(checkout, "ls-tree", "--name-only", "HEAD", "configs/").split()}
    file = Path(str(distribution("datatrove").locate_file("datatrove/assets/tokenizer_assignment.csv")))
    rows = [row for row in csv.DictReader(file.read_text("utf-8").splitlines()) if row["default_script"] == "TRUE"]
    found = dict(_OTHERS)
    for code in ("code_1", "code_3"):
        for row in rows:
            name, usual = f"{row['code_3']}_{row['script']}", code == "code_3" or row["default_code_1"] == "TRUE"
            if row[code] in LANGUAGES and usual and name in have:
                found.setdefault(row[code], name)
    return found


def _row(label: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    lengths = _LENGTHS.get(label, (given["min_avg_word_length"], given["max_avg_word_length"]))
    words = [str(word).strip(_TSHEG) for word in given["stopwords"]]
    return {
        "label": label,
        "name": name,
        "duplicate_lines": given["dup_line_frac"],
        "top_n_grams": [share for _, share in given["top_n_grams"]],
        "duplicate_n_grams": [share for _, share in given["dup_n_grams"]],
        "ended_lines": given["line_punct_thr"],
        "newlines_per_word": given["new_line_ratio"],
        "letter_words": given["max_non_alpha_words_ratio"],
        "min_word_characters": lengths[0],
        "max_word_characters": lengths[1],
        "stop_words": list(dict.fromkeys(word for word in words if _spelt(word))),
    }


def _spelt(word: str) -> bool:
    return any(unicodedata.category(one)[0] == "L" for one in word)


def _read(checkout: Path, name: str) -> str:
    return _git(checkout, "show", f"HEAD:configs/{name}.yml")


def _git(checkout: Path, *command: str) -> str:
    return subprocess.run(["git", "-C", str(checkout), *command], capture_output=True, check=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
