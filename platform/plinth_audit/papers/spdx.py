"""Bill of materials for AI in SPDX 3.0.1, as JSON-LD: profiles Core, Software, AI and Dataset.

The minimum elements (`elements`) are annotations of the model. Their statement is JSON: the element, its value, and the
SHA-256 of its evidence. `profileConformance` names a profile only if all its mandatory properties have evidence.
https://spdx.github.io/spdx-spec/v3.0.1/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from plinth_audit.papers.elements import Described, elements, proof, provider
from plinth_audit.papers.facts import NOT_STATED, BucketText, PaperFacts, ReplayedBucket

SPDX: Final = "sbom.spdx.json"
FORMAT, SPEC = "SPDX", "3.0.1"
CONTEXT: Final = f"https://spdx.org/rdf/{SPEC}/spdx-context.jsonld"
_CREATION, _TOOL, _PRODUCER = "_:creation", "tool", "producer"

Node = dict[str, Any]


def spdx(facts: PaperFacts, documents: Mapping[str, str]) -> str:
    """Return the bill of materials as canonical JSON. The facts must have a time (`dated`).

    Args:
        documents: SHA-256 of the documents next to it, by file name.
    """
    graph = _Graph(facts)
    nodes = [*graph.agents(), graph.model(), *graph.files(), *graph.texts(), graph.code()]
    nodes += [*graph.relationships(), *graph.annotations(Described(facts, FORMAT, SPEC, documents))]
    content = {"@context": CONTEXT, "@graph": [graph.creation(), *graph.document(nodes), *nodes]}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


class _Graph:
    """Nodes of the document. Their IDs are derived from the model's digest, so the same evidence gives the same IDs."""

    def __init__(self, facts: PaperFacts) -> None:
        self._facts, self._base = facts, f"urn:sha256:{proof(facts)}#"
        self._texts: tuple[BucketText | ReplayedBucket, ...] = (*facts.buckets, *facts.replayed)

    def _node(self, kind: str, own: str, /, **more: Any) -> Node:
        return {"type": kind, "spdxId": self._base + own, "creationInfo": _CREATION, **more}

    def creation(self) -> Node:
        """Return the creation information: the time of the newest signed evidence, the provider, and the tool."""
        return {
            "type": "CreationInfo",
            "@id": _CREATION,
            "specVersion": SPEC,
            "created": self._facts.dated.value if self._facts.dated else None,
            "createdBy": [self._base + _PRODUCER],
            "createdUsing": [self._base + _TOOL],
        }

    def document(self, nodes: list[Node]) -> Iterator[Node]:
        """Yield the document and its bill of materials."""
        ids = [one["spdxId"] for one in nodes]
        bill = self._node("software_Sbom", "sbom", rootElement=[self._base + "model"], element=ids)
        yield self._node(
            "SpdxDocument",
            "document",
            name=f"bill of materials of {self._facts.name}",
            profileConformance=list(self._profiles()),
            rootElement=[bill["spdxId"]],
            element=[bill["spdxId"], *ids],
        )
        yield bill | {"software_sbomType": ["build"]}

    def _profiles(self) -> Iterator[str]:
        """Yield the profiles whose mandatory properties have evidence.

        The AI profile needs supplier, version and release time; a download location is not known to Plinth and is
        stated as `NOASSERTION`. The Dataset profile needs times of building and release, of which there is no evidence.
        """
        yield from ("core", "software")
        if self._facts.released_at and provider(self._facts):
            yield "ai"

    def agents(self) -> Iterator[Node]:
        """Yield the provider and the tool. Without a signed declaration, the provider is not stated."""
        producer = provider(self._facts)
        yield self._node("Organization", _PRODUCER, name=str(producer.value) if producer else NOT_STATED)
        yield self._node("Tool", _TOOL, name="plinth")

    def model(self) -> Node:
        """Return the model with its training and scores."""
        facts = self._facts
        released = {"releaseTime": facts.released_at.value} if facts.released_at else {}
        kinds = [str(one.value) for one in facts.model if one.name == "model_type"]
        return self._node(
            "ai_AIPackage",
            "model",
            name=facts.name.rpartition("/")[0] or facts.name,
            software_packageVersion=facts.name.rpartition("/")[2],
            software_primaryPurpose="model",
            software_downloadLocation="NOASSERTION",
            suppliedBy=self._base + _PRODUCER,
            **released,
            **({"ai_typeOfModel": kinds} if kinds else {}),
            ai_hyperparameter=[_entry(one.name, one.value) for one in facts.model],
            ai_informationAboutTraining="; ".join(f"{one.name}: {one.value}" for one in facts.run),
            ai_metric=[_entry(f"{one.metric}, {one.slice}", f"{one.value:.6g}") for one in facts.scores],
            ai_modelDataPreprocessing=[f"{one.bucket}: {one.reason}: {one.rule}" for one in facts.rules],
            verifiedUsing=[_hash(facts.checkpoint)],
        )

    def files(self) -> Iterator[Node]:
        """Yield the model's files."""
        for name, digest in sorted(self._facts.files.items()):
            yield self._node("software_File", f"file/{name}", name=name, verifiedUsing=[_hash(digest)])

    def texts(self) -> Iterator[Node]:
        """Yield the datasets, with sources and counts."""
        for one in self._texts:
            sources = [s for s in self._facts.sources if s.bucket == one.name]
            process = "; ".join(f"{s.domain}, snapshot {s.snapshot}, kind {s.kind}" for s in sources)
            size = {"dataset_datasetSize": one.curated} if isinstance(one, BucketText) else {}
            yield self._node(
                "dataset_DatasetPackage",
                f"text/{one.name}",
                name=one.name,
                dataset_datasetType=["text"],
                software_primaryPurpose="data",
                software_downloadLocation="NOASSERTION",
                **({"dataset_dataCollectionProcess": process} if process else {}),
                **size,
                verifiedUsing=[_hash(one.evidence)],
            )

    def code(self) -> Node:
        """Return the code that trained the model."""
        own = self._facts.code
        version, digest = own.get("version", ""), own["sha256"]
        return self._node(
            "software_Package",
            "code",
            name="plinth",
            software_packageVersion=version,
            software_primaryPurpose="application",
            verifiedUsing=[_hash(digest)],
        )

    def relationships(self) -> Iterator[Node]:
        """Yield the relations of the model to its files, its datasets and the code."""
        ends = {
            "contains": [f"file/{name}" for name in sorted(self._facts.files)],
            "trainedOn": [f"text/{one.name}" for one in self._texts],
            "usesTool": ["code"],
        }
        for kind, names in ends.items():
            if names:
                related = {"from": self._base + "model", "to": [self._base + name for name in names]}
                yield self._node("Relationship", f"relationship/{kind}", relationshipType=kind, **related)

    def annotations(self, about: Described) -> Iterator[Node]:
        """Yield the minimum elements."""
        for one in elements(about):
            stated = [{"value": fact.value, "evidence": fact.evidence} for fact in one.stated]
            content = {"element": one.title, "stated": stated or NOT_STATED}
            yield self._node(
                "Annotation",
                f"element/{one.id}",
                annotationType="other",
                subject=self._base + "model",
                contentType="application/json",
                statement=json.dumps(content, sort_keys=True, ensure_ascii=False),
            )


def _hash(digest: str) -> Node:
    return {"type": "Hash", "algorithm": "sha256", "hashValue": digest}


def _entry(key: str, value: object) -> Node:
    return {"type": "DictionaryEntry", "key": key, "value": str(value)}
