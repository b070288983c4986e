"""The asset: numbers of the child and the baselines in one manifest; failures by name, never a score."""

import gzip
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.corpus.protected import comparison, protected
from plinth.errors import CheckpointError, IntegrityError
from plinth.evaluation.engine.client import SPARE
from plinth.evaluation.parameters import Evaluation
from plinth.evaluation.slices import job, tables
from plinth.evaluation.slices.tables import Trigram
from plinth.model.decoder import Decoder
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table

Curated = Callable[..., Manifest]
PARAMS = Evaluation(max_bytes_per_slice=2000)
S = 32  # tokens of the model's context


def zero(model: Decoder) -> None:
    model.embed_tokens.zero_()


@pytest.fixture
def buckets(curated: Curated) -> dict[str, Manifest]:
    return {
        "code": curated("code", ["def f(x): return x"] * 3, ["def g(y): return y"]),
        "web": curated("web", ["the quick brown fox"], ["the lazy dog", "größter Ärger " * 20], ["jumps"]),
    }


@pytest.fixture
def led(buckets: dict[str, Manifest], ledger_of: Callable[..., Manifest]) -> Manifest:
    return ledger_of(buckets)


@pytest.mark.slow
def test_a_uniform_model_scores_log2_v_tokens_over_bytes(
    ctx: Context,
    buckets: dict[str, Manifest],
    led: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every number can be worked out; neither a rerun nor other slices ask the model again."""
    model = checkpoint(model_directory(zero))
    made = job.run(ctx, PARAMS, model, buckets, led)
    rows = read_table(ctx.store, made.parts[0]).to_pylist()
    assert made.parts[0].rows == len(rows) == 4
    web = [row for row in rows if row["bucket"] == "web"]
    facts = made.stats["slices"]["web"]
    assert sorted(made.stats["slices"]) == ["code", "web"]
    assert facts["bytes"] == sum(row["bytes"] for row in web) == 12 + 20 * 17 + 5
    assert facts["documents"] == 3
    assert facts["model"] == pytest.approx(
        facts["tokens"] * math.log2(tokenizer.get_vocab_size()) / facts["bytes"], abs=2e-6
    )
    code = made.stats["slices"]["code"]
    assert code["gzip"] == round(8 * len(gzip.compress(b"def g(y): return y", 9, mtime=0)) / 18, 6)
    trigram = Trigram().train([b"def f(x): return x"] * 3 + [b"the quick brown fox"])
    assert code["trigram"] == round(trigram.bits(b"def g(y): return y") / 18, 6)
    assert made.stats["trigram_bytes"] == trigram.trained_bytes
    assert set(made.stats["axes"]) == {"language", "domain", "length"}
    assert set(made.inputs) == {"checkpoint", "code/curated", "web/curated", "ledger"}
    SPARE.end()
    assert list(ctx.workspace.tmp.iterdir()) == []
    (long,) = (row for row in rows if row["bytes"] == 340)
    tokens = tables.read_tokens(ctx.store, made.parts[1])[rows.index(long)]
    assert (len(tokens.bits), tokens.ends[-1]) == (long["tokens"], 340)
    assert tokens.bits.sum() == long["model_bits"]
    assert made.stats["positions"]["context_tokens"] == S
    assert sum(row["bits"] for row in made.stats["positions"]["all"]) == made.stats["overall"]["bits"]

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("evaluated twice")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert job.run(ctx, PARAMS, model, buckets, led) == made
    others = PARAMS.model_copy(update={"slices": {"foreign": "language.label != 'en'"}})
    again = job.run(ctx, others, model, buckets, led)
    assert again.stats["axes"]["foreign"]["yes"]["documents"] == 2
    assert {name: again.stats[name] for name in ("overall", "slices", "worst")} == {
        name: made.stats[name] for name in ("overall", "slices", "worst")
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_that_does_not_load_fails_by_name(
    ctx: Context,
    buckets: dict[str, Manifest],
    led: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
) -> None:
    folder = model_directory()
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=r"could not be evaluated[\s\S]*is not a loadable model folder"):
        job.run(ctx, PARAMS, checkpoint(folder), buckets, led)
    assert list(ctx.workspace.tmp.iterdir()) == []


def test_a_checkpoint_without_weights_is_named(
    ctx: Context,
    buckets: dict[str, Manifest],
    led: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
) -> None:
    folder = model_directory()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        job.run(ctx, PARAMS, checkpoint(folder), buckets, led)


def compared(ctx: Context, rows: list[tuple[str, str, str]]) -> tuple[Manifest, dict[str, Manifest]]:
    """A comparison with one protected set, of rows (item, status, text)."""
    table = pa.table([[row[0] for row in rows], [row[2] for row in rows]], schema=protected.ITEMS)
    part = write_table(ctx.store, "items.parquet", table)
    quiz = Manifest(asset="protected/quiz", step="s", version="1", params={}, inputs={}, parts=(part,))
    found = [
        {"set": "quiz", "item": item, "status": status, **dict.fromkeys(comparison.ITEM_TABLE_SCHEMA.names[4:], 0)}
        for item, status, _ in rows
    ]
    judged = write_table(ctx.store, comparison.FILE, pa.Table.from_pylist(found, schema=comparison.ITEM_TABLE_SCHEMA))
    whole = Manifest(asset="protected", step="s", version="1", params={}, inputs={}, parts=(judged,))
    return whole, {"quiz": quiz}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_items_of_protected_sets_are_scored_apart_by_what_is_known_of_them(
    ctx: Context,
    buckets: dict[str, Manifest],
    led: Manifest,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
    tokenizer: Tokenizer,
) -> None:
    """All numbers of a uniform model can be computed by hand."""
    rows = [("q0", "clean", "the lazy dog"), ("q1", "contaminated", "jumps over"), ("q2", "undecided", "yes"),
            ("q3", "clean", "the quick brown fox " * 200), ("q4", "undecided", "größter")]  # fmt: skip
    protected, given = compared(ctx, rows)
    model = checkpoint(model_directory(zero))
    made = job.run(ctx, PARAMS, model, buckets, led, protected=protected, sets=given)
    alone = job.run(ctx, PARAMS, model, buckets, led)
    assert {"protected", "protected/quiz"} == set(made.inputs) - set(alone.inputs)
    assert {name: made.stats[name] for name in alone.stats} == alone.stats
    found = made.stats["protected"]["quiz"]
    sizes = {status: (row["items"], row["bytes"]) for status, row in found.items()}
    assert (sizes["contaminated"], sizes["undecided"]) == ((1, 10), (2, 3 + len("größter".encode())))
    assert sizes["clean"] in ((2, 2000), (1, 2000))  # up to max_bytes_per_slice, in the order of hashes
    for row in found.values():
        bits = row["tokens"] * math.log2(tokenizer.get_vocab_size())
        assert row["model"] == pytest.approx(bits / row["bytes"], abs=2e-6)
    with pytest.raises(IntegrityError, match="has different items"):
        job.run(ctx, PARAMS, model, buckets, led, protected=compared(ctx, rows[:1])[0], sets=given)
