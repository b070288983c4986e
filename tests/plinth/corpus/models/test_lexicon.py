"""A lexicon is read whole or refused by line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from plinth.corpus import lists
from plinth.errors import SourceError

GOOD = "# mine\ngrumbok\t0.9\tinsult\n\nBad  Egg\t0.4\tmild\r\ngrumbok\t0.9\tinsult\n"


def read(tmp_path: Path, *contents: bytes) -> lists.Lexicon:
    files = {}
    for at, content in enumerate(contents):
        files[f"{at}.tsv"] = tmp_path / f"{at}.tsv"
        files[f"{at}.tsv"].write_bytes(content)
    return lists.read(files, "lists/toxic")


def test_terms_weights_and_categories(tmp_path: Path) -> None:
    terms = read(tmp_path, b"\xef\xbb\xbf" + GOOD.encode(), b"zill\t1\tthreat\n")
    assert terms.terms.terms == ("grumbok", "bad egg", "zill")
    assert terms.weights.tolist() == [0.9, 0.4, 1.0]
    assert terms.categories == ("insult", "mild", "threat")


def test_what_the_second_stage_is_told(tmp_path: Path) -> None:
    terms = read(tmp_path, GOOD.encode())
    texts = pa.array(["one grumbok, one grumb0k and a bad egg", "none"], pa.large_string())
    made = terms.features(terms.find(texts), np.array([8, 1]))
    assert made[0] == pytest.approx([np.log(4), 100 * 2.2 / 8, 0.9, 1 / 3, np.log(3)], rel=1e-6)
    assert not made[1].any()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"grumbok\t0.5", "2 fields"),
        (b"grumbok\t0.5\tmild\textra", "4 fields"),
        (b"grumbok\t0\tmild", "weight '0'"),
        (b"grumbok\tnan\tmild", "weight 'nan'"),
        (b"grumbok\t1.5\tmild", "weight '1.5'"),
        (b"grumbok\tx\tmild", "weight 'x'"),
        (b"grumbok\t1\tVery bad", "category"),
        (b"the\t1\tmild", "a common word"),
        (b"a\t1\tmild", "a common word"),
        (b"42\t1\tmild", "a common word"),
        (b"gr\x00umbok\t1\tmild", "control or invisible"),
        ("gr\u200bumbok\t1\tmild".encode(), "control or invisible"),
        (b"gr\xffumbok\t1\tmild", "decode"),
        (b"a b c d e f g h i\t1\tmild", "9 words"),
        (b"x" * 121 + b"\t1\tmild", "121 characters"),
    ],
)
def test_a_poisoned_line_refuses_the_whole_list(tmp_path: Path, line: bytes, what: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(tmp_path, b"zill\t1\tthreat\n" + line + b"\n")
    assert "lists/toxic, 0.tsv line 2" in str(caught.value)
    assert what in str(caught.value)


def test_a_term_twice_with_other_values_and_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="line 1"):
        read(tmp_path, GOOD.encode(), b"grumbok\t0.1\tmild\n")
    with pytest.raises(SourceError, match="lists/toxic is invalid"):
        read(tmp_path, b"# nothing\n\n")
