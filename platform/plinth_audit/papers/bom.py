"""Bill of materials for AI in CycloneDX 1.7: the model, its files, the text that trained it, and the code.

Every component has the SHA-256 of its object. The minimum elements (`elements`) are properties of the document, named
`plinth:g7:ID NAME@EVIDENCE`, with `not stated` as the value of an element without evidence. The only time is that of
the newest signed evidence, and the serial number is derived from the content, so the same evidence gives the same
bytes. https://cyclonedx.org/docs/1.7/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from plinth import fingerprint
from plinth_audit.papers.elements import Described, elements, provider
from plinth_audit.papers.facts import NOT_STATED, BucketText, PaperFacts, ReplayedBucket, SliceResult, StatedFact
from plinth_registry.exports.models import UNRELEASED

BOM: Final = "bom.cdx.json"
FORMAT, SPEC = "CycloneDX", "1.7"
#: Namespace of serial numbers, derived from a URN (RFC 9562, version 5).
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:plinth:bom")


def bom(facts: PaperFacts, documents: Mapping[str, str]) -> str:
    """Return the bill of materials as canonical JSON.

    Args:
        documents: SHA-256 of the documents next to it, by file name.
    """
    content: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": FORMAT,
        "specVersion": SPEC,
        "version": 1,
        "metadata": _metadata(facts, documents),
        "components": [*_files(facts), *_texts(facts), *_code(facts)],
        "dependencies": _dependencies(facts),
        "properties": list(_elements(Described(facts, FORMAT, SPEC, documents))),
    }
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(_SPACE, fingerprint.digest(content))}"
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _metadata(facts: PaperFacts, documents: Mapping[str, str]) -> dict[str, Any]:
    producer = provider(facts)
    return {
        **({"timestamp": facts.dated.value} if facts.dated else {}),
        "lifecycles": [{"phase": "post-build"}],
        "tools": {"components": [{"type": "application", "name": "plinth"}]},
        **({"authors": [{"name": producer.value}], "manufacturer": {"name": producer.value}} if producer else {}),
        "component": _model(facts) | {"externalReferences": [_reference(*one) for one in sorted(documents.items())]},
    }


def _reference(name: str, digest: str) -> dict[str, Any]:
    kind = "model-card" if name == "README.md" else "documentation"
    return {"type": kind, "url": name, "hashes": [_sha256(digest)]}


def _elements(about: Described) -> Iterator[dict[str, str]]:
    for one in elements(about):
        yield from (_property(f"g7:{one.title}@{fact.evidence}", fact.value) for fact in one.stated)
        if not one.stated:
            yield _property(f"g7:{one.title}", NOT_STATED)


def _model(facts: PaperFacts) -> dict[str, Any]:
    name, _, version = facts.name.rpartition("/")
    return {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": name or facts.name,
        **({"version": version} if name else {}),
        "properties": [
            _property("checkpoint", facts.checkpoint),
            _property("recipe", facts.recipe),
            _property("release", facts.released or UNRELEASED),
            _property("release.state", facts.state),
            *_stated((*facts.run, *facts.attested)),
        ],
        "modelCard": {
            "bom-ref": "model-card",
            "modelParameters": {
                "task": "text-generation",
                **_architecture(facts.model),
                "datasets": [{"ref": one["bom-ref"]} for one in _texts(facts)],
                "inputs": [{"format": "text"}],
                "outputs": [{"format": "text"}],
            },
            "quantitativeAnalysis": {"performanceMetrics": [_metric(one) for one in facts.scores]},
            "properties": _stated(facts.model),
        },
    }


def _architecture(model: Iterable[StatedFact]) -> dict[str, str]:
    kinds = [str(one.value) for one in model if one.name == "model_type"]
    return {"architectureFamily": "transformer", "modelArchitecture": kinds[0]} if kinds else {}


def _metric(one: SliceResult) -> dict[str, Any]:
    known = one.low is not None and one.high is not None
    bounds = {"confidenceInterval": {"lowerBound": f"{one.low:.6g}", "upperBound": f"{one.high:.6g}"}} if known else {}
    return {"type": one.metric, "value": f"{one.value:.6g}", "slice": one.slice, **bounds}


def _files(facts: PaperFacts) -> list[dict[str, Any]]:
    return [
        {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": [_sha256(digest)]}
        for name, digest in sorted(facts.files.items())
    ]


def _texts(facts: PaperFacts) -> list[dict[str, Any]]:
    texts: tuple[BucketText | ReplayedBucket, ...] = (*facts.buckets, *facts.replayed)
    return [_text(facts, one) for one in texts]


def _text(facts: PaperFacts, bucket: BucketText | ReplayedBucket) -> dict[str, Any]:
    """Return a bucket as a CycloneDX data component, with counts and the declared licenses and terms of its sources."""
    sources = [one for one in facts.sources if one.bucket == bucket.name]
    told = [
        {"name": f"plinth:source:{number}", "value": json.dumps(one.model_dump(mode="json"), sort_keys=True)}
        for number, one in enumerate(sources)
    ]
    return {
        "type": "data",
        "bom-ref": _text_ref(bucket.name),
        "name": bucket.name,
        "hashes": [_sha256(bucket.evidence)],
        "data": [
            {
                "type": "dataset",
                "name": bucket.name,
                "contents": {"properties": [_property(name, n) for name, n in _counts(bucket) if n is not None]},
            }
        ],
        "properties": told,
    }


def _counts(bucket: BucketText | ReplayedBucket) -> tuple[tuple[str, object], ...]:
    if isinstance(bucket, BucketText):
        return ("documents", bucket.curated), ("bytes", bucket.text_bytes), ("tokens", bucket.tokens)
    names = ("tokens", "seen_tokens", "share", "epochs")
    return ("replayed of checkpoint", bucket.parent), *((name, getattr(bucket, name)) for name in names)


def _code(facts: PaperFacts) -> list[dict[str, Any]]:
    own = facts.code
    return [
        {
            "type": "application",
            "bom-ref": "code",
            "name": "plinth",
            "version": own.get("version", ""),
            "hashes": [_sha256(own["sha256"])],
        }
    ]


def _dependencies(facts: PaperFacts) -> list[dict[str, Any]]:
    files, texts = (f"file:{name}" for name in sorted(facts.files)), (one["bom-ref"] for one in _texts(facts))
    return [{"ref": "model", "dependsOn": [*files, *texts, "code"]}]


def _text_ref(bucket: str) -> str:
    return f"text:{bucket}"


def _stated(facts: Iterable[StatedFact]) -> list[dict[str, str]]:
    """Return facts as CycloneDX properties, each named with the digest of its evidence."""
    return [_property(f"{one.name}@{one.evidence}", one.value) for one in facts]


def _property(name: str, value: object) -> dict[str, str]:
    return {"name": f"plinth:{name}", "value": f"{value:.6g}" if isinstance(value, float) else str(value)}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}
