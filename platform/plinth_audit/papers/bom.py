"""The bill of materials: CycloneDX 1.6 as JSON, with the model, its files, the text that trained it, and the code.

Every component has the SHA-256 of what it stands for. There is no time stamp, and the serial number follows from the
content, so the same evidence gives the same bytes. https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from plinth import fingerprint
from plinth_audit.papers.facts import BucketText, PaperFacts, ReplayedBucket, SliceResult, StatedFact
from plinth_registry.exports.models import UNRELEASED

FILE = "bom.cdx.json"
SPEC = "1.6"
#: Of serial numbers: a name space of our own, made from a URN as RFC 9562 says (version 5).
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:plinth:bom")


def bom(facts: PaperFacts) -> str:
    """The document, in one canonical form."""
    content: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": _model(facts)},
        "components": [*_files(facts), *_texts(facts), *_code(facts)],
        "dependencies": _dependencies(facts),
    }
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(_SPACE, fingerprint.digest(content))}"
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


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
    """A bucket as data: counts, and the declared licences and terms of its sources."""
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
    """Facts as properties, and of each the digest of its evidence."""
    return [_property(f"{one.name}@{one.evidence}", one.value) for one in facts]


def _property(name: str, value: object) -> dict[str, str]:
    return {"name": f"plinth:{name}", "value": f"{value:.6g}" if isinstance(value, float) else str(value)}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}
