"""Rewritten documents: what passes from a document to the texts that are derived from it."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.documents import documents as documents_stage
from plinth.corpus.llm import rewriting
from plinth.corpus.llm.parameters import Endpoint, RewriteParams
from plinth.corpus.llm.rewriting import made_from_training, near_copies, read_trained
from plinth.corpus.sources.parameters import Bucket, Documents
from plinth.errors import RejectRateError
from plinth.records import Manifest
from plinth.storage.parts import read_table, write_table
from plinth.training import sampled_text
from tests.document_rows import document_part
from tests.llm_server import MODEL, Answer, Llm, llm_server
from tests.plinth.corpus.llm.prompts import prompt_list
from tests.tiny_corpus import NOUNS, VERBS

RAW = {"endpoint": "local", "model": MODEL, "prompt": "rate"}


def prose(seed: object, words: int = 60) -> str:
    rng = random.Random(str(seed))
    return " ".join(rng.choices(NOUNS + VERBS, k=words))


def rewritten(corpus: Any, llm: Llm, **given: Any) -> Manifest:
    ctx = Context(corpus.ctx.workspace)
    params, server = RewriteParams(**RAW | given), Endpoint(url=llm.url, backoff_s=0.0)
    prompt, own = prompt_list(ctx, b"Retell: {text}"), (corpus.documents["web"], corpus.policies["web"])
    return rewriting.run(ctx, "retold", "web", params, server, *own, prompt)


def lines(corpus: Any, made: Manifest) -> list[dict[str, Any]]:
    return [json.loads(line) for part in made.parts for line in corpus.ctx.store.read_bytes(part.blob).splitlines()]


def retell(prompt: str) -> str:
    return f"Retold. {prose(prompt)}"


BUCKET = Bucket.model_validate(
    {
        "description": "Retold pages.",
        "owner": "tests@example.org",
        "sources": [{"kind": "rewrite", "path": "web", "licence": "per-document", "domain": "retold.example",
                     "snapshot": "2026-46", "options": RAW,
                     "terms": {"train": True, "redistribute": True, "commercial": True}}],
    }
)  # fmt: skip


def test_a_text_bears_address_license_and_digest_of_its_source(tiny: Any) -> None:
    texts = [prose(n) for n in range(6)]
    docs = [tiny.Doc(one, name=f"page-{n}") for n, one in enumerate(texts)]
    corpus = tiny.corpus({"web": [docs[:4], docs[4:]]})
    with llm_server(retell) as llm:
        made = rewritten(corpus, llm)
        assert made == rewritten(corpus, llm)
        assert len(llm.prompts) == 6
    found = lines(corpus, made)
    assert [one["text"] for one in found] == [retell(f"Retell: {text}") for text in texts]
    assert [one["uri"] for one in found] == [f"test:page-{n}#rewrite-retold" for n in range(6)]
    assert {one["licence"] for one in found} == {"MIT"}
    assert found[3]["derived_from"] == [
        {"bucket": "web", "id": tiny.Doc(texts[3], name="page-3").id.hex(),
         "sha256": hashlib.sha256(texts[3].encode()).hexdigest()}
    ]  # fmt: skip
    assert made.stats["documents"] == 6
    assert {"web/documents", "web/policy", "lists/rate"} <= set(made.inputs)
    inventory = sampled_text.inventory(corpus.ctx.store, made)
    read = documents_stage.run(Context(corpus.ctx.workspace), "retold", BUCKET, Documents(), inventory,
                               read={"retold/sampled": made})  # fmt: skip
    (row, *_) = read_table(corpus.ctx.store, read.named("part-")[0]).to_pylist()
    assert (row["uri"], row["licence"]) == ("test:page-0#rewrite-retold", "MIT")
    assert json.loads(row["extra"])["derived_from"] == found[0]["derived_from"]
    assert json.loads(row["extra"])["model"] == MODEL


def test_a_sample_is_rewritten_and_only_its_text_is_copied(tiny: Any) -> None:
    texts = [prose(("sample", n), 12) for n in range(200)]
    corpus = tiny.corpus({"web": [[tiny.Doc(text) for text in texts]]})
    with llm_server(retell) as llm:
        made = rewritten(corpus, llm, sample=0.2)
    assert 20 < len(llm.prompts) == made.stats["questions"] == made.stats["documents"] < 70


def test_dropped_documents_and_cut_spans_never_reach_the_model(tiny: Any) -> None:
    text = f"call 555-0100 now. {prose(1)}"
    corpus = tiny.corpus({"web": [[tiny.Doc(text, edits=((5, 13, "PHONE"),)), tiny.Doc(prose(2), fired=("short",))]]})
    with llm_server(retell) as llm:
        made = rewritten(corpus, llm)
    assert llm.prompts == [f"Retell: {text.replace('555-0100', 'PHONE')}"]
    assert len(lines(corpus, made)) == 1


def test_near_copies_of_the_source_and_faults_are_counted(tiny: Any) -> None:
    texts = {name: prose(name) for name in ("new", "copy", "shorter", "cut", "bell", "capitals")}

    def answer(prompt: str) -> Answer:
        text = prompt.removeprefix("Retell: ")
        name = next((name for name, one in texts.items() if one == text), "")
        half = " ".join(text.split()[:40])
        given: dict[str, Answer] = {"copy": f"{text} Indeed.", "shorter": half, "bell": "a\x07"}
        given |= {"capitals": text.upper(), "cut": {"content": "half", "finish": "length"}}
        return given.get(name, f"Retold. {prose(prompt)}")

    corpus = tiny.corpus({"web": [[tiny.Doc(text) for text in texts.values()]]})
    with llm_server(answer) as llm:
        made = rewritten(corpus, llm, max_reject_rate=0.4)
        with pytest.raises(RejectRateError):
            rewritten(corpus, llm, max_reject_rate=0.3)
    assert made.stats["rejects"] == {"control_characters": 1, "near_copy": 3, "truncated": 1}
    assert [one["derived_from"][0]["id"] for one in lines(corpus, made)] == [tiny.Doc(texts["new"]).id.hex()]


def test_near_copies_by_their_shingles() -> None:
    words = prose(5).split()
    texts = [" ".join(words), " ".join(words[:30]), " ".join([*words[:20], *prose(6).split()]), "a b c", "Short text!"]
    sources = [" ".join(words)] * 3 + ["d e f", "short  text!"]
    found = near_copies(pa.array(sources, pa.large_string()), pa.array(texts, pa.large_string()), 0.6)
    assert found.tolist() == [True, True, False, False, True]


def test_only_what_is_derived_from_trained_documents_is_trained_on(tiny: Any) -> None:
    """A held-out source, a duplicate and a contaminated source keep what is derived from them out of training."""
    texts = [prose(("web", n)) for n in range(40)]
    docs = [tiny.Doc(text) for text in texts] + [tiny.Doc(texts[0], name="copy")]
    origin = tiny.corpus({"web": [docs]})
    origin.through_curated()
    rows = read_table(origin.ctx.store, origin.verdicts["web"].parts[0]).to_pylist()
    decided = {row["id"]: row["decision"] for row in rows}
    assert set(decided.values()) == {"train", "heldout", "drop"}

    retold = tiny.corpus({"retold": [[tiny.Doc(prose(("retold", n))) for n in range(41)]], "web": [docs]})
    table = read_table(retold.ctx.store, retold.documents["retold"].parts[0])
    extra = [json.dumps({"derived_from": [{"bucket": "web", "id": doc.id.hex()}]}) for doc in docs]
    rows = [row | {"extra": own} for row, own in zip(table.to_pylist(), extra, strict=True)]
    part = document_part(retold.ctx, rows)
    retold.documents["retold"] = retold.documents["retold"].model_copy(update={"parts": (part,)})
    retold.through_contamination()
    shared = (retold.exact, retold.near, retold.holdout, retold.contamination)
    made = verdicts.run(retold.ctx, "retold", retold.documents["retold"], retold.policies["retold"], *shared,
                        origin=origin.verdicts["web"])  # fmt: skip
    judged = read_table(retold.ctx.store, made.parts[0]).to_pylist()
    for row, doc in zip(judged, docs, strict=True):
        if row["decision"] == "train":
            assert decided[doc.id] == "train"
        elif row["reason"] == "source_not_trained":
            assert decided[doc.id] != "train"
    lost = made.stats["reasons"]["source_not_trained"]
    assert lost == made.stats["stages"]["source"] > 0
    assert sum(made.stats["decisions"].values()) == 41
    assert made.inputs["web/verdicts"] == origin.verdicts["web"].digest


def test_what_is_derived_from_a_benchmark_is_not_trained_on(tiny: Any) -> None:
    """A source from which a benchmark's text was cut is trained on, but not its rewrite: the model read the text."""
    store = tiny.corpus({"web": [[tiny.Doc("a")]]}).ctx.store
    cut = [{"start_cp": 2, "end_cp": 9, "replacement": "", "reason": reason} for reason in ("pii", "contaminated")]
    edits = [cut[:1], cut[1:], [], None, cut]
    decisions = ["train", "train", "train", "drop", "train"]
    rows = [
        {"id": bytes([n]) * 16, "decision": decision, "reason": None, "cluster": None, "cluster_size": 0, "edits": own}
        for n, (decision, own) in enumerate(zip(decisions, edits, strict=True))
    ]
    part = write_table(store, "part.parquet", pa.Table.from_pylist(rows, schema=verdicts.SCHEMA))
    (listed,) = rewriting._trained(store, part)
    assert read_trained(store, listed).tolist() == [0, 0x0202020202020202]


def test_documents_without_sources_are_not_trained_on() -> None:
    listed = np.array([7, 2**63 + 5], np.uint64)
    ids = [int(one).to_bytes(8, "little").hex() + "00" * 8 for one in (7, 2**63 + 5, 8)]
    extra = [{"derived_from": [{"id": ids[0]}]}, {"derived_from": [{"id": ids[0]}, {"id": ids[1]}]},
             {"derived_from": [{"id": ids[0]}, {"id": ids[2]}]}, {}, {"derived_from": []}]  # fmt: skip
    column = pa.array([json.dumps(one) for one in extra])
    assert made_from_training(column, listed).to_pylist() == [True, True, False, False, False]
    assert made_from_training(column, listed[:0]).to_pylist() == [False] * 5
    assert made_from_training(column.slice(0, 0), listed).to_pylist() == []


def test_a_rewrite_is_the_only_source_of_its_bucket() -> None:
    raw = BUCKET.model_dump(mode="json")
    with pytest.raises(ValidationError, match="only source"):
        Bucket.model_validate(raw | {"sources": raw["sources"] * 2})
    assert BUCKET.rewrites == "web"
