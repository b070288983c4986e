"""Compare scores of whole documents with fastText's own bindings: every loss, dense and quantized, with word
n-grams."""

import random
import struct
from pathlib import Path
from typing import Any

import fasttext as peer_library
import numpy as np
import pyarrow as pa
import pytest

from plinth_text.errors import ModelFileError
from plinth_text.fasttext import model_file
from plinth_text.fasttext.predict import NOTED, DocumentScorer, Predictor
from tests.plinth_text.fasttext.model_writer import LABELS, WORDS, Quantised, write

HS, NS, SOFTMAX, OVA = 1, 2, 3, 4


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def texts() -> list[str]:
    rng = random.Random(3)
    made = ["", " \n\t", "the", "über 的", "ab ab the", "__label__en the", "unknown", "x" * 3000, "the\nab\n\nüber"]
    made += ["".join(rng.choices("abcdüж", k=size)) for size in (62, 63, 64, 130, 700)]
    return (
        made
        + [" ".join(rng.choices([*WORDS[1:], "new", "ÿ", "b"], k=rng.randint(1, 40))) for _ in range(150)]
        + [" ".join(rng.choices(WORDS[1:], k=1000))]
    )


def require_equal(path: Path, sharp: bool = True) -> None:
    """Likeliest label, its probability, and the probability of every label are the bindings'."""
    peer, model = peer_library.load_model(str(path)), model_file.read(path)
    given = texts()
    expected = [peer.predict(text.replace("\n", " "), k=-1) for text in given]
    for target in model.labels:
        found = DocumentScorer(model, target).score(column(given))
        for row, (labels, scores) in enumerate(expected):
            if not len(labels):
                assert found.labels[row] == -1, given[row]
                continue
            share = dict(zip((label.removeprefix("__label__") for label in labels), scores, strict=True))
            tie = sorted(scores)[-2:] if len(scores) > 1 else [0, 1]
            first = peer.predict(given[row].replace("\n", " "), k=1)[0][0].removeprefix("__label__")
            if sharp or tie[1] - tie[0] > 0.01:
                assert model.labels[found.labels[row]] == first, given[row]
            # the logistic function of binary losses has steps of 0.008
            within = 1e-5 if sharp else 0.009
            assert found.scores[row] == pytest.approx(min(1.0, max(scores)), abs=within), given[row]
            assert found.targets[row] == pytest.approx(min(1.0, share.get(target, 0.0)), abs=within), given[row]


@pytest.mark.parametrize("loss", [HS, NS, SOFTMAX, OVA])
@pytest.mark.parametrize(
    ("dim", "minn", "maxn", "word_ngrams"), [(16, 2, 4, 1), (10, 0, 0, 2), (33, 1, 3, 3), (5, 0, 0, 1)]
)
def test_dense_models(tmp_path: Path, loss: int, dim: int, minn: int, maxn: int, word_ngrams: int) -> None:
    path = write(tmp_path / "model.bin", loss=loss, dim=dim, minn=minn, maxn=maxn, word_ngrams=word_ngrams, seed=dim)
    require_equal(path, sharp=loss in (HS, SOFTMAX))


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize(
    "how", [Quantised(), Quantised(norms=True), Quantised(norms=True, output=True, pruned=100), Quantised(pruned=0)]
)
@pytest.mark.parametrize(("loss", "dim"), [(HS, 16), (SOFTMAX, 11)])
def test_quantised_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Quantised, loss: int, dim: int, written_out: bool
) -> None:
    if not written_out:
        monkeypatch.setattr(model_file, "WRITTEN_OUT", 5 * 20)  # the five output rows, and no input
    path = write(tmp_path / "model.ftz", loss=loss, dim=dim, minn=2, maxn=3, word_ngrams=2, quantised=how)
    assert (model_file.read(path).coded is None) == (written_out or how.pruned == 0)
    require_equal(path)


def test_labels_without_the_usual_prefix_stay_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", prefix="lang:")
    assert model_file.read(path).labels == tuple(f"lang:{label}" for label in LABELS)
    require_equal(path)


def test_a_model_without_a_row_for_the_end_knows_nothing_of_strange_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", words=["the", "ab"], bucket=0)
    found = DocumentScorer(model_file.read(path)).score(column(["unknown", "the", ""]))
    assert (found.labels == -1).tolist() == [True, False, True]
    require_equal(path)


def test_a_text_is_scored_alike_beside_any_others(tmp_path: Path) -> None:
    scorer = DocumentScorer(model_file.read(write(tmp_path / "m.bin", minn=2, maxn=3, word_ngrams=3)), "de")
    given = column([*texts(), " ".join(["the ab"] * 3 * NOTED)])
    whole = scorer.score(given)
    for row in range(len(given)):
        alone = scorer.score(given.slice(row, 1))
        assert (alone.labels[0], alone.scores[0], alone.targets[0]) == (
            whole.labels[row], whole.scores[row], whole.targets[row],
        )  # fmt: skip


def test_dense_rows_stay_in_the_file(tmp_path: Path) -> None:
    model = model_file.read(write(tmp_path / "model.bin", dim=16, word_ngrams=2, bucket=1000))
    base: Any = model.rows
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) or type(base).__name__ == "mmap"
    assert not model.rows.flags.owndata


def test_blocks_are_not_labelled_by_word_ngrams(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot label blocks"):
        Predictor(model_file.read(write(tmp_path / "model.bin", word_ngrams=2)))


def test_numbers_that_are_none_are_an_error(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "model.bin", dim=4).read_bytes())
    data[-4 * 4 * 5 :] = struct.pack("<f", float("nan")) * 20
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(ModelFileError, match="a score is NaN"):
        DocumentScorer(model_file.read(tmp_path / "model.bin")).score(column(["the"]))


#: Offsets of fields in the head of a file: `FastText::saveModel`, `Args::save`, `Dictionary::save`.
HEAD = {"magic": 0, "version": 4, "dim": 8, "word_ngrams": 28, "loss": 32, "kind": 36, "bucket": 40, "maxn": 48}
SIZES = {"size": 64, "nwords": 68, "nlabels": 72}


@pytest.mark.parametrize("name", [*HEAD, *SIZES])
@pytest.mark.parametrize("value", [-1, 0, 7, 2**31 - 1])
def test_files_that_lie_about_their_sizes_are_refused_or_read(tmp_path: Path, name: str, value: int) -> None:
    """A named error, or a model that scores: never an allocation of what the file does not have."""
    path = write(tmp_path / "model.bin", minn=2, maxn=3, word_ngrams=2)
    data = bytearray(path.read_bytes())
    struct.pack_into("<i", data, (HEAD | SIZES)[name], value)
    path.write_bytes(data)
    if (name, value) in {("maxn", 0), ("maxn", 7), ("word_ngrams", 0), ("word_ngrams", 7), ("bucket", 7)}:
        DocumentScorer(model_file.read(path)).score(column(["the über 的", "abc"]))
    else:
        with pytest.raises(ModelFileError, match="not a readable fastText model"):
            model_file.read(path)


@pytest.mark.parametrize("quantised", [None, Quantised(norms=True, output=True, pruned=50)])
def test_files_cut_or_changed_anywhere_are_refused_or_read(tmp_path: Path, quantised: Quantised | None) -> None:
    path = write(tmp_path / "model", minn=2, maxn=3, bucket=60, loss=HS, quantised=quantised)
    whole, rng = path.read_bytes(), random.Random(4)
    for size in [*range(0, 200, 7), *(rng.randrange(len(whole)) for _ in range(30))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match="not a readable fastText model"):
            model_file.read(path)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(3):
            data[rng.randrange(400)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            DocumentScorer(model_file.read(path)).score(column(["the über 的", "abc"]))
        except ModelFileError:
            continue
