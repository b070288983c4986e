from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, RecipeError
from plinth.provenance.ledger_columns import TokenPlaces, tokens_of
from plinth.records import Manifest, bucket_of
from plinth.storage.parts import DOCUMENT_SCHEMA, read_table, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.shards import parameters, shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.tokens.shards.staged_tokens import length_class, sidecars_of
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters

LANGUAGES = ("en", "de", "fr", "x/y,z=1")
WORDS = st.text(min_size=1, max_size=12)


def _manifest(asset: str, parts: list[Any], **params: Any) -> Manifest:
    return Manifest(asset=asset, step="made", version="1", params=params, inputs={}, parts=tuple(parts))


class Corpus:
    """Documents, verdicts and sidecars of a bucket whose curated text is what the verdicts keep."""

    def __init__(self, ctx: Context, made: SimpleNamespace, parts: int = 3, documents: int = 40) -> None:
        self.rows: list[dict[str, Any]] = []
        whole, kept, verdicts, language, quality = [], [], [], [], []
        for number in range(parts):
            texts = made.texts(number, documents)
            rows = [self._row(made, number, at, text) for at, text in enumerate(texts)]
            train = [row for row in rows if row["decision"] == "train"]
            for at, row in enumerate(train):
                self.rows.append({**row, "part": number, "row": at})
            whole.append(self._documents(ctx, number, rows))
            kept.append(self._documents(ctx, number, train))
            verdicts.append(self._side(ctx, number, rows, "decision", "cluster_size"))
            language.append(self._side(ctx, number, rows, "label"))
            quality.append(self._side(ctx, number, rows, "permitted"))
        sources = [{"domain": "a.example", "snapshot": "s0"}, {"domain": "b.example", "snapshot": "s1"}]
        self.curated = _manifest("web/curated", kept)
        self.sides = {
            "documents": _manifest("web/documents", whole, sources=sources),
            "verdicts": _manifest("web/verdicts", verdicts),
            "language": _manifest("web/language", language),
            "licence": _manifest("web/licence", quality),
        }
        self.trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320), {"web": self.curated})
        self.encoder = tokenizer.load(ctx.store, self.trained)

    def _row(self, made: SimpleNamespace, part: int, at: int, text: str) -> dict[str, Any]:
        number = 7 * part + at
        return {
            "id": made.document_id("web", text, 1000 * part + at),
            "text": text,
            "uri": f"{part}/{at}",
            "captured_at": None,
            "snapshot": f"s{number % 2}",
            "licence": ("MIT", "CC0-1.0")[number % 5 == 0],
            "mime": "text/plain",
            "source_bytes": len(text),
            "extra": f'{{"domain": "{"ab"[number % 2]}.example"}}' if number % 3 else "{}",
            "decision": ("train", "drop", "heldout", "train", "train")[number % 5],
            "label": LANGUAGES[number // 3 % 4] if at != 9 else None,
            "permitted": number % 2 == 0,
            "cluster_size": (0, 1, 2, 3, 4, 7, 8, 1000)[number // 2 % 8],
        }

    def _documents(self, ctx: Context, number: int, rows: list[dict[str, Any]]) -> Any:
        rows = [{name: row[name] for name in DOCUMENT_SCHEMA.names} for row in rows]
        table = pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)
        return write_table(ctx.store, f"part-{number:05d}.parquet", table)

    def _side(self, ctx: Context, number: int, rows: list[dict[str, Any]], *names: str) -> Any:
        table = pa.table({name: [row[name] for row in rows] for name in names})
        return write_table(ctx.store, f"part-{number:05d}.parquet", table)

    def run(self, ctx: Context, *axes: str, **params: Any) -> Manifest:
        wanted = sidecars_of(axes)
        given = Shards(**{"axes": axes, "tokens_per_shard": 400, **params})
        sides = {name: self.sides[name] for name in wanted}
        return shards.run(ctx, "web", given, self.trained, self.curated, sides)

    def tokens(self, row: dict[str, Any]) -> list[int]:
        return [*self.encoder.encode(row["text"]).ids, 0]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(Workspace(tmp_path_factory.mktemp("streams")).ensure())


@pytest.fixture(scope="module")
def corpus(workspace: Context, made: SimpleNamespace) -> Corpus:
    return Corpus(workspace, made)


def _expected(corpus: Corpus, value: Any) -> dict[str, list[dict[str, Any]]]:
    """Rows of every stream, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in corpus.rows:
        found.setdefault(value(row), []).append(row)
    return found


VALUES = {
    "language": lambda corpus, row: row["label"] or "unknown",
    "licence": lambda corpus, row: row["licence"],
    "snapshot": lambda corpus, row: row["snapshot"],
    "mime": lambda corpus, row: row["mime"],
    "domain": lambda corpus, row: "ab"[int(row["snapshot"][1])] + ".example" if "domain" in row["extra"] else "unknown",
    "source": lambda corpus, row: row["snapshot"][1] if "domain" in row["extra"] else "unknown",
    "licence.permitted": lambda corpus, row: str(row["permitted"]).lower(),
    "copies": lambda corpus, row: str(1 << max(0, row["cluster_size"].bit_length() - 1)),
    "length": lambda corpus, row: str(1 << (len(corpus.tokens(row)) - 1).bit_length()),
}


@pytest.mark.parametrize("axes", [*((axis,) for axis in VALUES), ("language", "length", "licence.permitted")])
def test_every_document_is_in_the_stream_of_its_values(
    workspace: Context, corpus: Corpus, axes: tuple[str, ...]
) -> None:
    made = corpus.run(workspace, *axes)
    expected = _expected(corpus, lambda row: tuple(VALUES[axis](corpus, row) for axis in axes))
    listed = parameters.streams_of(made)
    assert {tuple(one.values[axis] for axis in axes) for one in listed} == set(expected)
    assert tuple(made.stats.get("axes", ())) == axes
    for one in listed:
        rows = expected[tuple(one.values[axis] for axis in axes)]
        reader = ShardReader(workspace.store, made, one.name)
        tokens = [token for row in rows for token in corpus.tokens(row)]
        assert reader.read(0, reader.tokens).tolist() == tokens
        assert (one.tokens, one.documents) == (len(tokens), len(rows))
        spans = [span for batch in reader.index.batches() for span in batch.records()]
        assert [(span.id, span.part, span.row) for span in spans] == [
            (row["id"].hex(), row["part"], row["row"]) for row in rows
        ]
        assert [span.tokens for span in spans] == [len(corpus.tokens(row)) for row in rows]
        sizes = [part.stats["tokens"] for part in reader.shards]
        assert max(sizes) - min(sizes) <= 1
        assert all(part.name.startswith(f"{one.label}/shard-") for part in reader.shards)
    assert (made.stats["tokens"], made.stats["documents"]) == (
        sum(one.tokens for one in listed),
        len(corpus.rows),
    )


def test_rare_values_go_together_and_nothing_is_lost(workspace: Context, corpus: Corpus) -> None:
    apart = {one.label: one.tokens for one in parameters.streams_of(corpus.run(workspace, "language"))}
    least = sorted(apart.values())[2]
    made = corpus.run(workspace, "language", min_stream_tokens=least)
    kept = {one.label: one.tokens for one in parameters.streams_of(made)}
    assert kept["other"] == sum(sorted(apart.values())[:2])
    assert {name: tokens for name, tokens in kept.items() if name != "other"} == {
        name: tokens for name, tokens in apart.items() if tokens >= least
    }
    reader = ShardReader(workspace.store, made, "web/other")
    parts = [part for batch in reader.index.batches() for part in batch.parts.tolist()]
    assert parts == sorted(parts)
    assert parameters.stream_of(made, "web/other").values == {}


def test_without_axes_nothing_is_otherwise(workspace: Context, corpus: Corpus) -> None:
    plain = corpus.run(workspace)
    assert plain.params == {"tokens_per_shard": 400}
    assert {part.name.split("-")[0] for part in plain.parts} == {"shard", "index"}
    assert not {"axes", "streams"} & set(plain.stats)
    (only,) = parameters.streams_of(plain)
    assert (only.name, only.label, only.values) == ("web", "", {})
    assert sidecars_of(()) == sidecars_of(("length", "licence")) == ()
    assert list(open_streams(workspace.store, [plain])) == ["web"]


def test_what_was_published_does_not_show(workspace: Context, corpus: Corpus, made: SimpleNamespace) -> None:
    here = corpus.run(workspace, "language", "length")
    for manifest in (corpus.curated, here):
        workspace.refs.publish(manifest, "key")
    recut = corpus.run(workspace, "language", "length", tokens_per_shard=150)  # gathered from the published streams
    other = Context(Workspace(workspace.workspace.root.parent / "two").ensure())
    again = Corpus(other, made)
    assert again.run(other, "language", "length", tokens_per_shard=150) == recut  # from the text
    assert again.run(other, "language", "length") == here


def test_the_ledger_finds_documents_in_streams(workspace: Context, corpus: Corpus) -> None:
    made = corpus.run(workspace, "language").model_copy(update={"inputs": {"web/curated": corpus.curated.digest}})
    for number, part in enumerate(corpus.sides["documents"].parts):
        tokens = tokens_of("web", part, corpus.curated, made)
        rows = [row for row in corpus.rows if row["part"] == number]
        places = TokenPlaces(workspace.store, "web", part.name, tokens)
        found = places.of(pa.array([row["id"] for row in rows], pa.binary(16)), pa.array([True] * len(rows)))
        starts = {one.name: one.stats["start"] for one in made.parts}
        for at, row in enumerate(rows):
            label = parameters.label_of({"language": row["label"]})
            name, position = found["shard"][at].as_py(), found["position"][at].as_py()
            assert name.startswith(f"{label}/shard-")
            reader = ShardReader(workspace.store, made, f"web/{label}")
            (span,) = reader.index.find(row["id"], number)
            assert (starts[name] + position, found["tokens"][at].as_py()) == (span.start, span.tokens)
            assert reader.index.find(row["id"], number + 1) == []


def test_what_cannot_name_streams_is_refused(workspace: Context, corpus: Corpus) -> None:
    made = corpus.run(workspace, "language")
    with pytest.raises(MissingError, match="has no stream web/language=xx"):
        ShardReader(workspace.store, made, "web/language=xx")
    with pytest.raises(MissingError, match="has 5 streams, but no stream is named"):
        ShardReader(workspace.store, made)
    scores = pa.table({"label": [0.5] * corpus.sides["documents"].parts[0].rows})
    parts = [write_table(workspace.store, part.name, scores) for part in corpus.sides["language"].parts]
    sides = {**corpus.sides, "language": _manifest("web/language", parts)}
    params = Shards(axes=("language",))
    with pytest.raises(RecipeError, match="cannot be used in names of streams"):
        shards.run(workspace, "web", params, corpus.trained, corpus.curated, sides)
    short = {**corpus.sides, "verdicts": _manifest("web/verdicts", list(corpus.sides["verdicts"].parts[:2]))}
    with pytest.raises(IntegrityError, match="does not belong to its documents"):
        shards.run(workspace, "web", params, corpus.trained, corpus.curated, short)
    every = [read_table(workspace.store, part).num_rows * ["train"] for part in corpus.sides["verdicts"].parts]
    kept = [
        write_table(workspace.store, part.name, pa.table({"decision": rows}))
        for part, rows in zip(corpus.sides["verdicts"].parts, every, strict=True)
    ]
    with pytest.raises(IntegrityError, match="do not match the documents of"):
        shards.run(
            workspace,
            "web",
            params,
            corpus.trained,
            corpus.curated,
            {**corpus.sides, "verdicts": _manifest("web/verdicts", kept)},
        )


def test_too_many_streams_are_refused(workspace: Context, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_STREAMS", 4)
    with pytest.raises(RecipeError, match="too many streams"):
        corpus.run(workspace, "language")
    assert len(parameters.streams_of(corpus.run(workspace, "language", min_stream_tokens=10**6))) == 1


@pytest.mark.parametrize("axes", [("colour",), ("language", "language"), ("a.b.c",)])
def test_axes_are_checked_in_the_recipe(axes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="axis"):
        Shards(axes=axes)


@given(st.dictionaries(st.sampled_from(["language", "tier", "perplexity.band"]), WORDS, min_size=1))
def test_names_say_their_values(values: dict[str, str]) -> None:
    name = parameters.name_of("web", parameters.label_of(values))
    parsed = parameters.parse(name)
    assert (parsed.bucket, dict(parsed.values), parsed.name) == ("web", values, name)
    assert name.count("/") == 1
    assert bucket_of(name) == "web"


@pytest.mark.parametrize("name", ["", "web/", "/language=en", "web/language", "web/language=", "web/a=b,c"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name of a stream"):
        parameters.parse(name)


def test_lengths_by_hand() -> None:
    assert length_class(np.array([1, 2, 3, 4, 5, 512, 513])).tolist() == [1, 2, 4, 4, 8, 512, 1024]
