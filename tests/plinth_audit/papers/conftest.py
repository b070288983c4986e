"""A model whose whole chain is real up to the mixture: text of many hosts, judged, cut into tokens, in a ledger."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model
from plinth.provenance import ledger, statements
from plinth.records import Manifest, Part
from plinth.tokens import packing as index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.training import initial
from plinth.training.attempts import PREDICATE, AttemptRecord, HostFacts
from plinth.trust import dsse
from plinth_audit.papers.facts import PaperFacts, SignedText
from plinth_audit.papers.gather import AttestedFacts, PaperSubject, gather
from tests import judged_corpus
from tests.judged_corpus import PLANTED, ledger_of

HOSTS = 23
MODEL = Model(layers=2, dim=64, heads=4, kv_heads=2, ffn_dim=176)
PARAMS = {"key": "k" * 64, "model": MODEL.model_dump(mode="json"), "precision": "bf16", "optimizer": {"lr": 0.25}}
ROW = {"bytes": 1000, "model": 2.125, "low": 2.0, "high": 2.25, "n": 12, "method": "bootstrap", "gzip": 3.5}
APPROVED = "a" * 64
SAID = SignedText(subject="approval", text="Good | enough\x1b[31m <b>now</b>", by="anna@example.org", role="approver",
                  evidence=APPROVED)  # fmt: skip


def address(bucket: str, row: int) -> str:
    """Addresses as crawls have them: with port, user, `www.`, in capitals, none."""
    if row % HOSTS == 5:
        return f"note:{row}"
    forms = ("https://h{0}.example/{1}", "HTTP://WWW.H{0}.example:8080?{1}", "http://me@h{0}.example./#{1}")
    return forms[row % 3].format(row % HOSTS, f"{bucket}-{row}")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Context:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged_corpus, "uri", address)
        ctx = judged_corpus.build(tmp_path_factory.mktemp("papers"))
    ctx.refs.publish(ledger.run(ctx, ledger_of(ctx)), "key")
    return ctx


@pytest.fixture(scope="session")
def subject(corpus: Context) -> PaperSubject:
    """A release with an evaluation, attested facts and a sentence of its approver."""
    return subject_of(corpus)


def child_of(ctx: Context, packing: str) -> PaperSubject:
    """A model on web alone that began from one which read books too, and replays a quarter of that one's mixture."""
    read = _saved(ctx, "books/documents", (), {}, {"books/sources": "e" * 64})
    books = _saved(ctx, "books/curated", (), {}, {"books/documents": read.digest})
    run = _saved(ctx, "run", ("mixture", "tokenizer"), {}, {"books/curated": books.digest})
    parent = _saved(ctx, "checkpoint", ("tokenizer",), {}, {"run": run.digest})
    begun = _saved(ctx, "initial", (), {}, {"checkpoint": parent.digest})
    found = initial.of_parent(ctx, begun, ctx.refs.load(ctx.refs.current("tokenizer").digest))
    shards = {"web": ctx.refs.load(ctx.refs.current("web/shards").digest), **found.shards}
    phases = (Phase(name="main", fraction=1.0, weights={"web": 1}),)
    wanted = Mixture(sequence_tokens=16, total_tokens=640, phases=phases, block_sequences=4, packing=packing)
    packed = {name: index.run(ctx, name, 16, one) for name, one in shards.items()} if packing == "best-fit" else None
    mixed = mixture.run(ctx, wanted, shards, packed, (), found.sequences(0.25, 40))
    for one in (*shards.values(), *(packed or {}).values(), mixed):
        ctx.refs.save(one)
    return subject_of(ctx, {"mixture": mixed.digest, "initial": begun.digest})


def subject_of(ctx: Context, read: Mapping[str, str] | None = None, **stats: Any) -> PaperSubject:
    run = _saved(ctx, "run", ("mixture", "tokenizer"), {"steps": 40, "tokens": 640}, read, params=PARAMS)
    config = json.dumps(hf_config(MODEL, 300, 16, "float32", 0)).encode()
    files = {"config.json": config, "model.safetensors": b"w"}
    parts = [Part(name=name, blob=ctx.store.put_bytes(data)) for name, data in files.items()]
    made = _saved(ctx, "checkpoint", ("tokenizer",), {}, {"run": run.digest}, parts)
    rows = {"overall": ROW, "slices": {bucket: {**ROW, **stats} for bucket in PLANTED}}
    measured = _saved(ctx, "evaluation", ("ledger",), rows, {"checkpoint": made.digest})
    chain = statements.chain(ctx.refs, made)
    provenance = {
        "recipe": {"name": "judged", "fingerprint": "f" * 64},
        "checkpoint": {"asset": "checkpoint", "digest": made.digest},
        "files": {part.name: {"sha256": part.blob.sha256, "bytes": part.blob.bytes} for part in made.parts},
        "chain": [link.model_dump(mode="json") for link in chain.links],
        "code": {"version": "0.4", "sha256": "c" * 64},
        "training": {"attempts": [attempt()]},
    }
    facts = {"stability": {"restarts": 1}, "resume": {"bit_exact": True}, "worst": [1, 2]}
    attested = AttestedFacts(
        kind="stability", sha256="b" * 64, role="trainer", facts=facts, at="2026-11-20T12:00:00+02:00"
    )
    return PaperSubject(
        name="judged/3",
        released="d" * 64,
        provenance=provenance,
        provenance_sha256=fingerprint.digest(provenance),
        evaluation=measured.digest,
        attested=(attested,),
        said=(SAID,),
        released_at="2026-11-21T09:30:00+00:00",
    )


def attempt() -> dict[str, Any]:
    """The envelope of a start of a run on one machine."""
    host = HostFacts(
        host="secret-host-name", code={}, libraries={"torch": "2.13.0"}, python="3.11.7", system="Linux", cpu="Zen 5",
        cpus=8, gpus=("NVIDIA H200",),
    )  # fmt: skip
    made = AttemptRecord(
        run="judged", key="k", number=1, config_sha256="0" * 64, from_step=0, ranks=1, nodes=1, hosts=(host,),
        at="2026-11-19T08:00:00+00:00",
    )  # fmt: skip
    content = dsse.statement(PREDICATE, {"config.json": "0" * 64}, made.model_dump(mode="json"))
    payload = base64.b64encode(fingerprint.canonical(content)).decode()
    return {"payloadType": dsse.PAYLOAD_TYPE, "payload": payload, "signatures": []}


@pytest.fixture(scope="session")
def facts(corpus: Context, subject: PaperSubject) -> PaperFacts:
    return gather(corpus, subject)


def _saved(
    ctx: Context,
    asset: str,
    published: tuple[str, ...],
    stats: Mapping[str, Any],
    more: Mapping[str, str] | None = None,
    parts: list[Part] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Manifest:
    inputs = {name: ctx.refs.current(name).digest for name in published} | dict(more or {})
    made = Manifest(
        asset=asset, step=asset, version="1", params=dict(params or {}), inputs=inputs, parts=tuple(parts or ()),
        stats=dict(stats),
    )  # fmt: skip
    ctx.refs.save(made)
    return made
