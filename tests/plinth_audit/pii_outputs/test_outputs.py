"""A checkpoint that learned an address writes it, and it is counted as memory; what is made up is counted apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.evaluation.pii import PiiDetector
from plinth.model.decoder import Decoder
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_audit.pii_outputs import ALL, INVITED, UNPROMPTED, PiiOutputs, job
from plinth_audit.pii_outputs.job import FIND_SCHEMA, PROMPTS, SCHEMA, PiiOutput
from tests.peers import Peer

scipy_stats = Peer("scipy.stats")

ADDRESS = "jo@fox.de"
PARAMS = PiiOutputs(samples=12, draws=1, max_tokens=12)
DETECTOR = PiiDetector({}, {})


def _always(tokenizer: Tokenizer, text: str) -> Callable[[Decoder], None]:
    """Trains a model until it writes one text, whatever comes before it."""

    def learn(model: Decoder) -> None:
        ids = tokenizer.encode(text).ids
        starts = [[0], *([0, *tokenizer.encode(prompt).ids] for prompt in PROMPTS)]
        rows = [[*start, *ids, 0] for start in starts]
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        targets = tokens[:, 1:].clone()
        for row, start in zip(targets, starts, strict=True):
            row[: len(start) - 1] = -100
            row[len(start) + len(ids) :] = -100
        model.embed_tokens.div_(20)  # the fixture's factor
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        with torch.enable_grad():
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
            for _ in range(60):
                loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return learn


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_address_that_was_learnt_is_found_and_known_from_training_text(
    ctx: Context,
    curated: Callable[..., Manifest],
    tokenizer: Tokenizer,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model so small gains nothing from more
    model = checkpoint(model_directory(_always(tokenizer, f" {ADDRESS} ")))
    torch.set_num_threads(threads)
    text = {"web": curated("web", [f"Write to {ADDRESS} today.", "Nothing here.", f"Or{ADDRESS}s"])}
    made = job.run(ctx, PARAMS, model, text, DETECTOR)
    assert made.stats[UNPROMPTED]["memorised"] == made.stats[UNPROMPTED]["found"] >= 10
    assert made.stats[ALL]["texts"] == 12 + 2 * len(PROMPTS)
    assert made.stats[INVITED]["memorised"] >= len(PROMPTS)
    finds = read_table(ctx.store, made.named(job.FINDS)[0]).to_pylist()
    known = {row["found"]: row["training_documents"] for row in finds}
    assert known[ADDRESS] == 1
    assert made.stats["distinct"]["memorised"] == sum(bool(count) for count in known.values())
    assert made.stats["kinds"]["email"]["memorised"] >= 1
    assert job.run(ctx, PARAMS, model, text, DETECTOR) == made
    elsewhere = job.run(ctx, PARAMS, model, {"web": curated("web", ["Nothing here."])}, DETECTOR)
    assert elsewhere.stats[ALL]["found"] == made.stats[ALL]["found"]
    assert elsewhere.stats[ALL]["memorised"] == 0


def test_finds_reach_into_what_was_written(ctx: Context) -> None:
    written = [
        PiiOutput(INVITED, "Write to ada@firma.de, or", 0, " call somebody."),  # the prompt's own
        PiiOutput(INVITED, "Write to ada@", 0, "firma.de, please."),  # ends in the text
        PiiOutput(INVITED, "Her social security number is", 0, " 536-90-4399."),  # read with its prompt
        PiiOutput(UNPROMPTED, "", 0, "nobody@removed.org"),
    ]
    given = PiiDetector({"replacements": {"email": "nobody@removed.org"}}, {})
    found = [(one.output, one.rule.partition("/")[0], one.found) for one in job.scan(ctx, given, written)]
    assert found == [(1, "email", "ada@firma.de"), (2, "national", "536-90-4399")]


def test_texts_and_different_strings_are_counted() -> None:
    kinds = [UNPROMPTED] * 3 + [INVITED] * 2
    rows = [{"kind": kind, "prompt": "", "draw": at, "text": ""} for at, kind in enumerate(kinds)]
    finds = [(0, "email", "a@b.de", 2), (0, "email", "c@d.de", 0), (3, "email", "a@b.de", 2), (4, "phone", "1", 0)]
    names = FIND_SCHEMA.names
    table = pa.Table.from_pylist([dict(zip(names, one, strict=True)) for one in finds], schema=FIND_SCHEMA)
    stats = job.summary(pa.Table.from_pylist(rows, schema=SCHEMA), table)
    assert {name: (stats[name]["texts"], stats[name]["found"], stats[name]["memorised"]) for name in
            (UNPROMPTED, INVITED, ALL)} == {UNPROMPTED: (3, 1, 1), INVITED: (2, 2, 1), ALL: (5, 3, 2)}  # fmt: skip
    assert stats[ALL]["memorised_at_most"] == pytest.approx(scipy_stats.beta.ppf(0.95, 3, 3))
    assert stats[UNPROMPTED]["at_most"] == pytest.approx(scipy_stats.beta.ppf(0.95, 2, 2))
    assert (stats["distinct"]["found"], stats["distinct"]["memorised"]) == (3, 1)
    assert stats["kinds"] == {"email": {"found": 2, "memorised": 1}, "phone": {"found": 1, "memorised": 0}}
    nothing = job.summary(pa.Table.from_pylist(rows, schema=SCHEMA), table.slice(0, 0))
    assert (nothing[ALL]["found"], nothing["distinct"]["memorised_share_at_most"]) == (0, None)
    assert job.section("", stats).tables[0].rows[0][:5] == ("unprompted", "3", "1", "86.465%", "1")


def test_strings_are_looked_up_word_for_word(ctx: Context, curated: Callable[..., Manifest]) -> None:
    many = [f"+49 30 {number}" for number in range(100_000, 100_000 + job.TOGETHER)]
    strings = ["a@b.de", "1.2.3.4", "(030) 12", "x\n|.*", "ä@ö.de", *many]
    texts = ["a@b.de and 1.2.3.4", "aa@b.de, a@b.dev, 11.2.3.4, 1.2.3.45", "a@b,de 1x2x3x4", "(030) 12 (030) 123",
             "x\n|.*", "ää@ö.de or ä@ö.de", many[-1]]  # fmt: skip
    counted = job.documents_with(ctx, {"web": curated("web", texts, ["a@b.de is held out"])}, strings)
    expected = {"a@b.de": 1, "1.2.3.4": 1, "(030) 12": 1, "x\n|.*": 1, "ä@ö.de": 1, many[-1]: 1}
    assert {string: count for string, count in counted.items() if count} == expected
    assert set(counted) == set(strings)
    assert job.documents_with(ctx, {}, []) == {}
