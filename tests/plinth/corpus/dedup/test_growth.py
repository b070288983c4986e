"""A snapshot costs its own text: a trace of the parts whose text is opened when one is added to what is there."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from plinth.compute.context import Context
from plinth.corpus.dedup import lines, semantic, substring
from plinth.corpus.dedup.near import components, minhash
from plinth.corpus.dedup.parameters import LineParameters, Semantic, Substring
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

LOOSE = {"min_words": 0, "min_share": 0.0}


@contextmanager
def text_opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """SHA-256 of the blobs whose column `text` is read from now on."""
    found: set[str] = set()
    opened: list[str] = []
    original_path, original_init = Store.open_path, pq.ParquetFile.__init__

    def open_path(store: Store, blob: Any) -> Path:
        opened[:] = [blob.sha256]
        return original_path(store, blob)

    def init(file: Any, *given: Any, **named: Any) -> None:
        original_init(file, *given, **named)
        file.blob = opened[0] if opened else ""

    def reading(name: str) -> Any:
        original = getattr(pq.ParquetFile, name)

        def read(file: Any, *given: Any, columns: Any = None, **named: Any) -> Any:
            if "text" in (columns or file.schema_arrow.names):
                found.add(file.blob)
            return original(file, *given, columns=columns, **named)

        return read

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open_path", open_path)
        patch.setattr(pq.ParquetFile, "__init__", init)
        for name in ("iter_batches", "read_row_group", "read_row_groups", "read"):
            patch.setattr(pq.ParquetFile, name, reading(name))
        yield found


def prose(rng: random.Random, words: int) -> str:
    return " ".join(f"w{rng.randrange(10**7)}" for _ in range(words))


def snapshot(tiny: Any, seed: int, count: int) -> list[Any]:
    """Documents with a twin, a look-alike and a quotation among each four."""
    rng, docs = random.Random(seed), []
    for i in range(count // 4):
        words = prose(rng, 60).split()
        like = rng.sample(words, 60)
        quoting = prose(rng, 30).split() + words[10:40] + prose(rng, 30).split()
        texts = [words, [*words[:58], "changed", "words"], like, quoting]
        docs += [tiny.Doc(" ".join(text), f"{seed}-{i}-{j}") for j, text in enumerate(texts)]
    return docs


def stages(tiny: Any, buckets: dict[str, list[list[Any]]], after_lines: bool = False) -> dict[str, Any]:
    """Each stage as a function of the corpus, run in order."""
    corpus = tiny.corpus(buckets)
    found: dict[str, Manifest] = {}

    def before() -> Manifest:
        return found["lines"] if after_lines else found["near"]

    runs = {
        "near": corpus.through_near,
        "lines": lambda: lines.run(corpus.ctx, LineParameters(**LOOSE), corpus.documents, found["near"]),
        "substring": lambda: substring.run(corpus.ctx, Substring(min_tokens=20, **LOOSE), corpus.documents, before()),
        "semantic": lambda: semantic.run(
            corpus.ctx, Semantic(buckets=tuple(buckets), threshold=0.9), corpus.documents, corpus.exact
        ),
    }
    return {"corpus": corpus, "found": found, "runs": runs}


def traced(monkeypatch: pytest.MonkeyPatch, made: dict[str, Any]) -> dict[str, set[str]]:
    """By stage, the parts whose text it opened, as `bucket/number`."""
    names = {
        part.blob.sha256: f"{bucket}/{i}"
        for bucket, manifest in made["corpus"].documents.items()
        for i, part in enumerate(manifest.parts)
    }
    opened = {}
    for name, run in made["runs"].items():
        with text_opened(monkeypatch) as found:
            made["found"][name] = run()
        opened[name] = {names[blob] for blob in found if blob in names}
    return opened


def test_a_snapshot_opens_the_text_of_its_own_parts(tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = {"a": [snapshot(tiny, 1, 40), snapshot(tiny, 2, 40)], "b": [snapshot(tiny, 3, 40)]}
    everything = {"a/0", "a/1", "b/0"}
    first = stages(tiny, old)
    assert traced(monkeypatch, first) == {
        "near": everything,
        "lines": everything,
        "substring": everything,
        "semantic": everything,
    }
    assert first["found"]["semantic"].stats["removed"] >= 20
    assert first["found"]["substring"].stats["edits"] >= 20
    grown = {"a": [*old["a"], snapshot(tiny, 4, 24)], "b": old["b"]}  # the numbers of what is in b move
    opened = traced(monkeypatch, second := stages(tiny, grown))
    assert opened == {name: {"a/2"} for name in first["runs"]}
    scratch = type(tiny)(Context(Workspace(tmp_path / "scratch").ensure()))
    traced(monkeypatch, third := stages(scratch, grown))
    assert {name: one.digest for name, one in third["found"].items()} == {
        name: one.digest for name, one in second["found"].items()
    }


@pytest.mark.parametrize("after_lines", [False, True])
def test_a_snapshot_opens_old_text_where_it_quotes_or_repeats_it(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, after_lines: bool
) -> None:
    old = {"a": [snapshot(tiny, 1, 40), snapshot(tiny, 2, 40)], "b": [snapshot(tiny, 3, 40)]}
    traced(monkeypatch, stages(tiny, old, after_lines))
    rng, quoted = random.Random(9), old["a"][1][0].text.split()
    new = [
        tiny.Doc(f"{prose(rng, 60)} {' '.join(quoted[5:50])}", "quotes"),
        tiny.Doc(f"{old['b'][0][0].text} and more", "twin"),  # longer: it takes the place of the old one
        *snapshot(tiny, 4, 16),
    ]
    opened = traced(monkeypatch, made := stages(tiny, {**old, "a": [*old["a"], new]}, after_lines))
    assert opened["near"] == {"a/2", "b/0"}
    assert opened["substring"] - {"b/0"} == {"a/1", "a/2"}
    assert opened["semantic"] == {"a/2"}
    rows = made["corpus"].rows(made["found"]["near"])
    assert rows[new[1].id]["survivor"]
    assert not rows[old["b"][0][0].id]["survivor"]


def test_words_are_weighed_again_where_a_bucket_has_doubled(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"a": [snapshot(tiny, 1, 40)], "b": [snapshot(tiny, 3, 40)]}
    traced(monkeypatch, stages(tiny, old))
    opened = traced(monkeypatch, stages(tiny, {**old, "a": [*old["a"], snapshot(tiny, 2, 40)]}))
    assert opened["near"] == {"a/1"}
    assert opened["semantic"] == {"a/0", "a/1", "b/0"}


def test_a_snapshot_that_joins_old_components_in_rounds_gives_what_one_run_gives(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounds, connect, words = [], components.connect, prose(random.Random(5), 400).split()

    def counting(*given: Any) -> Any:
        rounds.append((made := connect(*given)).rounds)
        return made

    monkeypatch.setattr(components, "connect", counting)
    monkeypatch.setitem(minhash.run.__kwdefaults__, "span", 5)
    monkeypatch.setitem(minhash.run.__kwdefaults__, "partition_rows", 4)
    docs = [tiny.Doc(" ".join(words[at : at + 60]), str(at)) for at in range(0, 240, 4)]  # each resembles the next
    random.Random(6).shuffle(docs)
    old = {"a": [docs[:20]], "b": [docs[20:35]]}
    grown = {"a": [*old["a"], docs[35:]], "b": old["b"]}
    before = tiny.corpus(old).through_near().stats["clusters"]
    after = tiny.corpus(grown).through_near()
    assert after.stats["clusters"] < before
    assert rounds[-1] > 2
    monkeypatch.undo()
    scratch = type(tiny)(Context(Workspace(tmp_path / "scratch").ensure()))
    assert scratch.corpus(grown).through_near().digest == after.digest
