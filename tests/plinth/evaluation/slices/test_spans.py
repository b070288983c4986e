"""Two tokenizers on one text: spans of whole tokens of both, whose bits add up, and the place where models differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError
from plinth.evaluation.engine.records import TokenBits
from plinth.evaluation.slices import tables
from plinth.evaluation.slices.choice import Document, choose_documents
from plinth.records import Manifest
from plinth.storage.parts import write_table

TEXT = "the quick brown fox jumps over the lazy dog; größte Ärger 日本語のテキスト der Welt, while 12345.678 counts. "


def tokenizer(vocab_size: int, text: str, digits: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]) if digits else level
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    return made


CUTTERS = (tokenizer(300, TEXT), tokenizer(420, TEXT[::-1], digits=True))


def cut(cutter: Tokenizer, text: str, seed: int) -> TokenBits:
    """The tokens of a text with bits drawn at random: the tokenizer is real, the model is not."""
    sizes = [len(token) for token in cutter.encode(text).tokens]  # of a byte-level tokenizer, a character is a byte
    bits = tables.on_grid(np.random.default_rng(seed).exponential(4.0, len(sizes)))
    return TokenBits(np.cumsum(sizes, dtype=np.int64), bits)


@pytest.mark.parametrize("span_bytes", [1, 16, 64, 10_000])
def test_spans_end_where_both_cut_and_add_up_to_the_document(span_bytes: int) -> None:
    text = TEXT * 5
    a, b = (cut(cutter, text, seed) for seed, cutter in enumerate(CUTTERS))
    assert len(a.ends) != len(b.ends)
    found = tables.spans(a, b, span_bytes)
    assert found.ends[-1] == len(text.encode())
    assert set(found.ends.tolist()) <= set(a.ends.tolist()) & set(b.ends.tolist())
    assert found.a.sum() == a.bits.sum()
    assert found.b.sum() == b.bits.sum()
    widths = np.diff(found.ends, prepend=0)
    assert (widths >= min(span_bytes, len(text.encode()))).all()
    assert len(found.ends) == 1 if span_bytes > len(text.encode()) else len(found.ends) > 5
    again = tables.spans(b, a, span_bytes)
    assert (again.ends.tolist(), again.a.tolist()) == (found.ends.tolist(), found.b.tolist())


def test_one_tokenizer_and_short_spans_give_every_token() -> None:
    a = cut(CUTTERS[0], TEXT, 1)
    found = tables.spans(a, a, 1)
    assert found.ends.tolist() == a.ends.tolist()
    assert found.a.tolist() == a.bits.tolist()


def test_tokens_of_other_texts_are_refused() -> None:
    nothing = TokenBits(np.array([], np.int64), np.array([]))
    assert len(tables.spans(nothing, nothing).ends) == 0
    for a, b in ((cut(CUTTERS[0], TEXT, 1), cut(CUTTERS[1], TEXT + "x", 1)), (nothing, cut(CUTTERS[0], "x", 1))):
        with pytest.raises(ValueError, match="different texts"):
            tables.spans(a, b)


def evaluated(ctx: Context, chosen: list[Document], tokens: list[TokenBits], curated: Manifest) -> Manifest:
    """Publish the fields of an evaluation's manifest that spans read."""
    rows = {"id": [one.id for one in chosen], "text": [tables.text_digest(one.data) for one in chosen]}
    rows |= {name: [one.bucket for one in chosen] for name in ("uri", "bucket", "language", "domain", "length")}
    rows |= {"bytes": [len(one.data) for one in chosen], "tokens": [len(one.bits) for one in tokens]}
    rows |= {f"{name}_bits": [float(one.bits.sum()) for one in tokens] for name in ("model", "gzip", "trigram")}
    table = pa.Table.from_pydict(rows, tables.DOCUMENT_COLUMNS)
    parts = (write_table(ctx.store, tables.DOCUMENTS, table), tables.write_tokens(ctx.store, tokens))
    params = {"max_bytes_per_slice": 10**6}
    ctx.refs.save(curated)
    inputs = {"web/curated": curated.digest}
    return Manifest(asset="evaluation", step="s", version="1", params=params, inputs=inputs, parts=parts)


def test_the_span_that_a_model_does_not_know_comes_first_with_its_text(
    ctx: Context, curated: Callable[..., Manifest]
) -> None:
    made = curated("web", [], [f"{number} {TEXT * 3}" for number in range(6)])
    chosen = choose_documents(ctx.store, {"web": made}, 10**6)
    scores = [[cut(cutter, one.text, 1) for one in chosen] for cutter in CUTTERS]
    victim, at = 4, chosen[4].data.index("größte".encode(), 150)
    hurt = scores[0][victim]
    struck = hurt.bits + 400.0 * ((hurt.ends > at) & (hurt.ends <= at + 8))
    scores[0][victim] = TokenBits(hurt.ends, struck)
    a, b = (evaluated(ctx, chosen, one, made) for one in scores)
    found = tables.largest(ctx.store, ctx.refs, a, b, most=3)
    assert (found[0].id, found[0].uri) == (chosen[victim].id.hex(), "web")
    assert "größte" in found[0].text
    assert found[0].start <= at < found[0].end
    assert found[0].difference > 400 > abs(found[1].difference)
    assert chosen[victim].data[found[0].start : found[0].end].decode(errors="replace") == found[0].text
    only = [scores[1][:3], chosen[:3]]  # B scored the first documents alone
    fewer = tables.largest(ctx.store, ctx.refs, a, evaluated(ctx, only[1], only[0], made), most=3)
    assert {one.id for one in fewer} <= {one.id.hex() for one in chosen[:3]}
    backwards = evaluated(ctx, chosen[::-1], scores[1][::-1], made)
    with pytest.raises(IntegrityError, match="out of order"):
        tables.largest(ctx.store, ctx.refs, a, backwards)
    other = evaluated(ctx, [Document(hashlib.sha256(b"x").digest()[:16], "web", "x")], [cut(CUTTERS[0], "x", 1)], made)
    with pytest.raises(MissingError, match="no documents in common"):
        tables.largest(ctx.store, ctx.refs, a, other)
