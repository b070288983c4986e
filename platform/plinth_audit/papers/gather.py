"""Collection of facts for the release documents from signed sources: provenance, its manifests, and attestations.

Recipes, run folders and MLflow are not read. A manifest is located by a digest in the signed chain of the checkpoint,
or in the evaluation that an attestation names. The store verifies the bytes of each manifest.

Training text by domain, language and license is counted in one pass over columns of the ledger; memory grows with the
number of domains. The domain of a document is the host of its address, without `www.`. For a document without a web
address, the domain is the origin that the source declares. The following query gives the same counts in any engine that
reads Parquet (`tests/plinth_audit/papers/test_domains.py` compares the results):

    SELECT domain, count(*), sum(tokens) FROM ledger WHERE decision = 'train' GROUP BY 1 ORDER BY 3 DESC, 1

Documents from crawled sources (by bucket and declared origin) are also counted separately.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.compute.context import Context
from plinth.corpus import curate
from plinth.errors import IntegrityError, LineageError
from plinth.model.architectures import flops_exact, parameters
from plinth.model.hugging_face import model_of
from plinth.provenance.ledger import ASSET as LEDGER
from plinth.provenance.statements import INITIAL, TEACHER, Chain, attempts_of
from plinth.records import Frozen, Manifest, bucket_of
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth.text import host_name
from plinth.training.checkpoint import mean_record
from plinth.trust.dsse import time_of
from plinth_audit.papers.facts import (
    BucketRule,
    BucketText,
    DomainTable,
    DomainVolume,
    EvidenceItem,
    PaperFacts,
    ReplayedBucket,
    SignedText,
    SliceResult,
    SourceTerms,
    StatedFact,
    TrainedText,
)

METRIC = "bits_per_byte"
#: Prefixes of `processing` facts about a bucket.
ILLEGAL, PERMITTED = "gate against illegal content,", "permitted licences,"
KEPT = "licenses of the documents that the policy keeps,"
#: Prefixes of facts about the machines of a run.
SOFTWARE, HARDWARE = "software ", "hardware "
_CONFIG = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_RUN = ("steps", "tokens", "parameters_sha256")
#: Names of facts that are computed from `config.json`.
PARAMETERS, CONTEXT, FORWARD = "parameters", "context_tokens", "forward_flops_per_token"
#: Share of domains that the European Commission's template requires, by size of content (less for SMEs).
SHARE = 0.1
UNKNOWN = "(no domain)"
LANGUAGE = "language__label"
_SEPARATOR = "\0"
_HOST = r"^https?://(?:[^/?#]*@)?(?P<host>\[[^\]]*\]|[^:/?#@]+)"


class AttestedFacts(Frozen):
    """Facts from one attestation, with its kind, the SHA-256 of its signed bytes, the signing role, and its time."""

    kind: str
    sha256: str
    role: str
    facts: Mapping[str, Any]
    at: str = ""


class PaperSubject(Frozen):
    """Verified model that the release documents describe. The caller has verified the model.

    Args:
        name: `NAME/VERSION` of a release, or any name of an unreleased model.
        released: SHA-256 of the release record, or None if the model is not released.
        rolled_back: True if the release was rolled back in the signed history.
        provenance: provenance in the verified directory; `provenance_sha256` is the digest of its file.
        evaluation: digest of the evaluation manifest, taken from a verified attestation.
        said: texts that people signed.
        released_at: time of the release record.
    """

    name: str
    released: str | None
    provenance: Mapping[str, Any]
    provenance_sha256: str
    evaluation: str | None
    attested: tuple[AttestedFacts, ...] = ()
    said: tuple[SignedText, ...] = ()
    rolled_back: bool = False
    released_at: str | None = None


def gather(ctx: Context, subject: PaperSubject) -> PaperFacts:
    """Collect the facts for a model's release documents.

    Raises:
        LineageError: the evaluation belongs to another checkpoint.
        MissingError, IntegrityError: a manifest or part is missing or was changed.
    """
    provenance = subject.provenance
    links = Chain.model_validate({"links": provenance["chain"]})
    chain = {link.asset: link.digest for link in (*links.links, *links.own)}
    made = {asset: ctx.refs.load(digest) for asset, digest in chain.items()}
    checkpoint = provenance["checkpoint"]["digest"]
    evaluation = _evaluation(ctx, subject.evaluation, checkpoint)
    ledger = ctx.refs.load(evaluation.inputs[LEDGER]) if evaluation and LEDGER in evaluation.inputs else None
    rules = {key: ctx.refs.load(digest) for key, digest in _policies(ledger)}
    text = {link.asset: made[link.asset] for link in links.own}
    replayed = dict(_replayed_from(ctx, made))
    read = {**made, **rules, **replayed, LEDGER: ledger, "evaluation": evaluation}
    sources = tuple(_sources({**text, **replayed}))
    files = {name: str(file["sha256"]) for name, file in provenance["files"].items()}
    return PaperFacts(
        name=subject.name,
        released=subject.released,
        rolled_back=subject.rolled_back,
        checkpoint=checkpoint,
        recipe=provenance["recipe"]["fingerprint"],
        code={name: str(value) for name, value in provenance["code"].items()},
        files=files,
        chain=chain,
        model=tuple(_model(ctx, made["checkpoint"])),
        run=tuple(_run(made)),
        buckets=tuple(_buckets(text)),
        replayed=tuple(_replayed(made)),
        sources=sources,
        rules=tuple(_rules(rules)),
        processing=tuple(_processing(ctx, text, ledger)),
        scores=tuple(_scores(evaluation)),
        attested=tuple(fact for one in subject.attested for fact in _flat(one.sha256, one.kind, one.facts)),
        trained=trained_text(ctx.store, ledger, [one.origin for one in sources if one.crawled]) if ledger else None,
        size=tuple(_size(ctx, made["checkpoint"])),
        design=tuple(_design(made.get("run"))),
        environment=tuple(_environment(subject)),
        released_at=_released_at(subject),
        dated=max(_times(subject), key=lambda one: str(one.value), default=None),
        said=subject.said,
        evidence=tuple(_evidence(subject, files, {name: one for name, one in read.items() if one})),
    )


def _evidence(subject: PaperSubject, files: Mapping[str, str], read: Mapping[str, Manifest]) -> Iterator[EvidenceItem]:
    """Yield every evidence item that the release documents may reference."""
    yield EvidenceItem(name="provenance.json", kind="file", sha256=subject.provenance_sha256)
    for name, digest in sorted(files.items()):
        yield EvidenceItem(name=name, kind="file", sha256=digest)
    for name, made in sorted(read.items()):
        yield EvidenceItem(name=name, kind="manifest", sha256=made.digest)
    signed = [(f"{one.kind} ({one.role})", one.sha256) for one in subject.attested]
    said = {one.evidence: f"{one.subject} ({one.by})" for one in reversed(subject.said)}  # may have many texts
    signed += [(name, digest) for digest, name in reversed(said.items())]
    signed += [("release record", subject.released)] if subject.released else []
    for name, digest in signed:
        yield EvidenceItem(name=name, kind="attestation", sha256=digest)


def _environment(subject: PaperSubject) -> Iterator[StatedFact]:
    """Yield facts about the software and hardware of the machines that trained the model, without their names."""
    hosts = [host for one in attempts_of(subject.provenance.get("training", {})) for host in one.hosts]
    named = [(f"{SOFTWARE}python", host.python) for host in hosts]
    named += [(f"{SOFTWARE}{name}", version) for host in hosts for name, version in sorted(host.libraries.items())]
    named += [(f"{SOFTWARE}image", host.image_digest) for host in hosts]
    named += [(f"{SOFTWARE}distributions", host.distributions) for host in hosts]
    named += [(f"{HARDWARE}system", host.system) for host in hosts]
    named += [(f"{HARDWARE}cpu", f"{host.cpu}, {host.cpus} threads" if host.cpu else "") for host in hosts]
    named += [(f"{HARDWARE}gpu", gpu) for host in hosts for gpu in host.gpus]
    for name, value in dict.fromkeys(named):
        if value:
            yield StatedFact(name=name, value=value, evidence=subject.provenance_sha256)


def _released_at(subject: PaperSubject) -> StatedFact | None:
    if not (subject.released and subject.released_at):
        return None
    return StatedFact(name="released", value=_utc(subject.released_at), evidence=subject.released)


def _times(subject: PaperSubject) -> Iterator[StatedFact]:
    """Yield the times of signed evidence."""
    if released := _released_at(subject):
        yield released
    for one in subject.attested:
        if one.at:
            yield StatedFact(name=one.kind, value=_utc(one.at), evidence=one.sha256)
    for attempt in attempts_of(subject.provenance.get("training", {})):
        yield StatedFact(name="attempt", value=_utc(attempt.at), evidence=subject.provenance_sha256)


def _utc(at: str) -> str:
    """Return a time in the form that bills of materials require: UTC, to the second."""
    return time_of(at).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _evaluation(ctx: Context, digest: str | None, checkpoint: str) -> Manifest | None:
    if digest is None:
        return None
    found = ctx.refs.load(digest)
    if checkpoint not in found.inputs.values():
        raise LineageError(
            f"evaluation {digest} belongs to another checkpoint",
            found=found.inputs.get("checkpoint"),
            expected=checkpoint,
            remedy="evaluate this checkpoint",
        )
    return found


def _policies(ledger: Manifest | None) -> Iterator[tuple[str, str]]:
    """Yield the ledger's input key and digest for each policy that filtered the text."""
    for key, digest in sorted(ledger.inputs.items()) if ledger else ():
        if key.endswith("/policy"):
            yield key, digest


def _model(ctx: Context, checkpoint: Manifest) -> Iterator[StatedFact]:
    """Yield facts about the model's architecture, read from `config.json`."""
    for part in checkpoint.named("config.json"):
        config = json.loads(ctx.store.read_bytes(part.blob))
        for name in _CONFIG:
            if name in config:
                yield StatedFact(name=name, value=config[name], evidence=part.blob.sha256)


def _size(ctx: Context, checkpoint: Manifest) -> Iterator[StatedFact]:
    """Yield the number of parameters, the context length, and the forward FLOPs per token at full context, all computed
    from `config.json`. Yield nothing for a configuration that Plinth's decoder does not have.
    """
    for part in checkpoint.named("config.json"):
        config = json.loads(ctx.store.read_bytes(part.blob))
        with suppress(ValueError, KeyError):
            model, vocabulary, context = model_of(config), config["vocab_size"], config["max_position_embeddings"]
            forward = flops_exact(model, vocabulary, context) // 3  # training also has a backward pass, which is two
            named = {PARAMETERS: parameters(model, vocabulary).total, CONTEXT: context, FORWARD: forward}
            yield from (StatedFact(name=name, value=n, evidence=part.blob.sha256) for name, n in named.items())


def _design(run: Manifest | None) -> Iterator[StatedFact]:
    """Yield the parameters of a run, with dotted names."""
    if run:
        yield from _flat(run.digest, "training", {name: own for name, own in run.params.items() if name != "key"})


def _run(made: Mapping[str, Manifest]) -> Iterator[StatedFact]:
    run, checkpoint = made.get("run"), made["checkpoint"]
    if mean_record.is_mean(checkpoint):
        yield StatedFact(name="weights", value=mean_record.in_words(checkpoint), evidence=checkpoint.digest)
    for name in (INITIAL, TEACHER):
        for kind, digest in made[name].inputs.items() if run and name in run.inputs else ():
            yield StatedFact(name=name, value=f"{kind} {digest}", evidence=made[name].digest)
    for name in _RUN if run else ():
        if run and name in run.stats:
            yield StatedFact(name=name, value=run.stats[name], evidence=run.digest)
    if run:
        yield from _flat(run.digest, "privacy", run.stats.get("privacy", {}))


def _buckets(made: Mapping[str, Manifest]) -> Iterator[BucketText]:
    plan = made["mixture"].stats if "mixture" in made else {}
    for asset, curated in sorted(made.items()):
        name = bucket_of(asset)
        if asset != f"{name}/curated":
            continue
        documents = made.get(f"{name}/documents", curated)  # canaries are generated, not read
        streams = [own for stream, own in plan.get("buckets", {}).items() if bucket_of(stream) == name]
        needed, text = (sum(own[key] for own in streams) for key in ("needed", "sequences"))
        shards = made.get(f"{name}/shards")
        yield BucketText(
            name=name,
            documents=documents.stats.get("documents", documents.rows),
            curated=curated.stats.get("documents", sum(part.rows for part in curated.named("part-"))),
            text_bytes=curated.stats.get("text_bytes", 0),
            tokens=shards.stats.get("tokens") if shards else None,
            seen_tokens=needed * plan["sequence_tokens"] if streams else None,
            epochs=round(needed / text, 4) if text else None,
            evidence=curated.digest,
        )


def _replayed(made: Mapping[str, Manifest]) -> Iterator[ReplayedBucket]:
    """Yield one record for each bucket that the run replays from the parent model's mixture."""
    plan = made["mixture"].stats if "mixture" in made else {}
    streams = plan.get("replayed", {})
    for bucket in sorted({bucket_of(stream) for stream in streams}):
        own = [plan["buckets"][stream] for stream in streams if bucket_of(stream) == bucket]
        needed, text = (sum(one[key] for one in own) for key in ("needed", "sequences"))
        shards = made[f"{bucket}/shards"]
        yield ReplayedBucket(
            name=bucket,
            parent=made[INITIAL].inputs["checkpoint"],
            tokens=shards.stats["tokens"],
            seen_tokens=needed * plan["sequence_tokens"],
            share=round(needed / plan["sequences"], 6),
            epochs=round(needed / text, 4) if text else 0.0,
            evidence=shards.digest,
        )


def _replayed_from(ctx: Context, made: Mapping[str, Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield the documents manifests of the replayed text, each with the bucket's name in this run."""
    plan = made["mixture"].stats if "mixture" in made else {}
    for bucket in sorted({bucket_of(stream) for stream in plan.get("replayed", {})}):
        for key, curated in made[f"{bucket}/shards"].inputs.items():
            for asset, digest in ctx.refs.load(curated).inputs.items() if key == f"{bucket}/curated" else ():
                if asset.endswith("/documents"):
                    yield f"{bucket}/documents", ctx.refs.load(digest)


def _sources(made: Mapping[str, Manifest]) -> Iterator[SourceTerms]:
    for asset, documents in sorted(made.items()):
        name = bucket_of(asset)
        for source in documents.params.get("sources", ()) if asset == f"{name}/documents" else ():
            own = {key: str(source.get(key, "")) for key in ("kind", "domain", "snapshot", "licence")}
            terms = {use: allowed for use, allowed in source.get("terms", {}).items() if isinstance(allowed, bool)}
            yield SourceTerms(bucket=name, **own, terms=terms, evidence=documents.digest)


def _processing(ctx: Context, made: Mapping[str, Manifest], ledger: Manifest | None) -> Iterator[StatedFact]:
    """Yield facts about data processing: first bucket by bucket, then for the stages that cover all buckets.

    Facts about a bucket are its gate against illegal content, the permitted licenses, and the licenses of kept
    documents.
    """
    for asset, one in sorted(made.items()):
        if asset == f"{bucket_of(asset)}/documents" and "illegal" in one.params:
            gate = str(one.params["illegal"])
            yield StatedFact(name=f"{ILLEGAL} {bucket_of(asset)}", value=gate, evidence=one.digest)
        if asset == f"{bucket_of(asset)}/curated" and (licences := one.params.get("licences")):
            listed = ", ".join(sorted(licences["permitted"])) or "none"
            yield StatedFact(name=f"{PERMITTED} {bucket_of(asset)}", value=listed, evidence=one.digest)
        if asset == f"{bucket_of(asset)}/curated":
            counts = curate.licences(ctx.store, {bucket_of(asset): one})
            kept = ", ".join(f"{licence}: {count:,}" for licence, count in counts.items()) or "no documents"
            yield StatedFact(name=f"{KEPT} {bucket_of(asset)}", value=kept, evidence=one.digest)
    buckets = {bucket_of(asset) for asset in made if asset.endswith("/documents")}
    for key, digest in sorted(ledger.inputs.items()) if ledger else ():
        if bucket_of(key) not in buckets:
            yield StatedFact(name=key, value=digest, evidence=ledger.digest if ledger else "")


def _rules(policies: Mapping[str, Manifest]) -> Iterator[BucketRule]:
    for key, policy in policies.items():
        for rule in policy.params.get("rules", ()):
            yield BucketRule(bucket=bucket_of(key), reason=rule["reason"], rule=rule["drop"], evidence=policy.digest)
        for edit in policy.params.get("edits", ()):
            text = f"{edit['spans']} replaced"
            yield BucketRule(bucket=bucket_of(key), reason=edit["reason"], rule=text, evidence=policy.digest)


def _scores(evaluation: Manifest | None) -> Iterator[SliceResult]:
    stats = evaluation.stats if evaluation else {}
    rows = {"overall": stats["overall"]} if stats.get("overall") else {}
    for name, row in {**rows, **dict(sorted((stats.get("slices") or {}).items()))}.items():
        interval = {key: row[key] for key in ("low", "high", "n", "method") if row.get(key) is not None}
        digest = evaluation.digest if evaluation else ""
        yield SliceResult(slice=name, metric=METRIC, value=float(row["model"]), **interval, evidence=digest)


def _flat(sha256: str, prefix: str, facts: Mapping[str, Any]) -> Iterator[StatedFact]:
    """Yield one fact for each value in a nested record, with a dotted name. Lists and empty values are skipped."""
    for key, value in sorted(facts.items()):
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _flat(sha256, name, value)
        elif isinstance(value, str | int | float | bool):
            yield StatedFact(name=name, value=value, evidence=sha256)


def trained_text(store: Store, ledger: Manifest, crawled: Collection[tuple[str, str]] = ()) -> TrainedText:
    """Count documents and tokens that trained a model, by domain, language and license.

    Args:
        crawled: bucket and declared origin of crawled sources.

    Raises:
        IntegrityError: a training document has no token count, because the ledger is older than the shards.
    """
    whole, fetched = _DomainCounts(), _DomainCounts()
    languages, licences = Counter[str](), Counter[str]()
    origins = pa.array([_SEPARATOR.join(one) for one in crawled], pa.string())
    for batch in _rows(store, ledger):
        if batch.column("tokens").null_count:
            raise IntegrityError(
                f"the ledger {ledger.digest[:16]} lacks token counts of {batch.column('tokens').null_count} documents",
                expected="token counts of all training documents",
                remedy="run `plinth run --select ledger`",
            )
        whole.add(batch)
        origin = pc.binary_join_element_wise(batch.column("bucket"), batch.column("domain"), _SEPARATOR)
        fetched.add(batch.filter(pc.is_in(origin, value_set=origins)))
        licences.update(_counts(batch, "licence"))
        languages.update(_counts(batch, LANGUAGE))
    return TrainedText(
        all=whole.table(),
        crawled=fetched.table(),
        languages=dict(sorted(languages.items(), key=lambda pair: (-pair[1], pair[0]))),
        licences=dict(sorted(licences.items())),
        evidence=ledger.digest,
    )


class _DomainCounts:
    """Number of documents and tokens and the days of capture by domain, summed over ledger batches."""

    def __init__(self) -> None:
        self._documents, self._tokens, self._days = Counter[str](), Counter[str](), list[str]()

    def add(self, batch: pa.RecordBatch) -> None:
        for row in _sums(batch):
            self._documents[row["domain"]] += row["domain_count"]
            self._tokens[row["domain"]] += row["tokens_sum"]
        days = pc.min_max(batch.column("captured_at")).as_py().values()
        self._days += [day.date().isoformat() for day in days if day]

    def table(self) -> DomainTable:
        tokens = self._tokens
        found = [DomainVolume(domain=name, documents=n, tokens=tokens[name]) for name, n in self._documents.items()]
        found.sort(key=lambda one: (-one.tokens, one.domain))
        return DomainTable(
            documents=self._documents.total(),
            tokens=tokens.total(),
            count=len(found),
            domains=tuple(found[: math.ceil(len(found) * SHARE)]),
            first=min(self._days, default=None),
            latest=max(self._days, default=None),
        )


def _rows(store: Store, ledger: Manifest) -> Iterator[pa.RecordBatch]:
    """Yield the needed ledger columns of training documents, batch by batch."""
    wanted = ["bucket", "uri", "domain", "licence", "captured_at", "tokens", "decision"]
    for part in ledger.parts:
        if "/part-" not in part.name or not part.rows:
            continue
        known = pq.read_schema(store.open_path(part.blob)).names
        for batch in iter_batches(store, part, [*wanted, *([LANGUAGE] if LANGUAGE in known else [])]):
            yield batch.filter(pc.equal(batch.column("decision"), "train"))


def _sums(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the number of documents and tokens of each domain in a ledger batch."""
    hosts = pc.struct_field(pc.extract_regex(pc.utf8_lower(batch.column("uri")), _HOST), "host")
    coded = hosts.dictionary_encode()  # parses each host once
    dictionary = coded.dictionary.to_pylist()
    names = pa.array([host_name(name).removeprefix("www.") or None for name in dictionary], pa.string())
    domains = pc.coalesce(names.take(coded.indices), batch.column("domain"), pa.scalar(UNKNOWN))
    table = pa.table({"domain": domains, "tokens": batch.column("tokens")})
    return list(table.group_by("domain").aggregate([("domain", "count"), ("tokens", "sum")]).to_pylist())


def _counts(batch: pa.RecordBatch, name: str) -> dict[str, int]:
    found = pc.value_counts(batch.column(name)).to_pylist() if name in batch.schema.names else []
    return {row["values"]: row["counts"] for row in found if row["values"]}
