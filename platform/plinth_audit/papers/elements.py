"""Minimum elements of a bill of materials for AI, in seven clusters, each with its evidence.

Elements and clusters are those of "Software Bill of Materials for AI - Minimum Elements" (G7 Cybersecurity Working
Group, published by the BSI on 2026-05-12). An element has one or more values, each with the SHA-256 of its evidence;
`DOCUMENT` marks a property of the bill of materials itself. An element without values is not stated.

Does not belong here: formats of the bill of materials (`bom`, `spdx`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from plinth.text import counted
from plinth_audit.papers.facts import BucketText, PaperFacts, StatedFact
from plinth_audit.papers.gather import HARDWARE, ILLEGAL, KEPT, SOFTWARE

DOCUMENT: Final = "this document"
_WEIGHTS = (".safetensors", ".bin", ".gguf")
#: Beginnings of the names of attested facts: personal data in the text, and attacks on the model.
_PERSONAL, _ATTACKS = "pii/data", ("memorisation/", "pii/outputs")

Values = Iterator[tuple[object, str]]


class Described(NamedTuple):
    """Facts of a model, the format of its bill of materials, and the SHA-256 of the documents next to it."""

    facts: PaperFacts
    format: str
    version: str
    documents: Mapping[str, str]


class Element(NamedTuple):
    """Minimum element with its values. An element without values is not stated."""

    id: str
    name: str
    stated: tuple[StatedFact, ...]

    @property
    def title(self) -> str:
        """Identifier and name, such as `MD-01 SBOM author`."""
        return f"{self.id} {self.name}"


def elements(about: Described) -> tuple[Element, ...]:
    """Return all minimum elements of a bill of materials, in the order of the clusters."""
    found = []
    for cluster, rows in _ELEMENTS.items():
        for number, (name, values) in enumerate(rows.items(), 1):
            stated = (StatedFact(name=name, value=str(value), evidence=proof) for value, proof in values(about))
            found.append(Element(f"{cluster}-{number:02d}", name, tuple(stated)))
    return tuple(found)


def provider(facts: PaperFacts) -> StatedFact | None:
    """Return the provider that compliance signed, or None."""
    found = (StatedFact(name=one.subject, value=one.text, evidence=one.evidence) for one in facts.said)
    return next((one for one in found if one.name == "provider"), None)


def proof(facts: PaperFacts) -> str:
    """Return the digest that names the model: its release record, or its checkpoint."""
    return facts.released or facts.checkpoint


def _nothing(_: Described) -> Values:
    """Yield no value: Plinth has no evidence of this element."""
    yield from ()


def _provider(about: Described) -> Values:
    if found := provider(about.facts):
        yield found.value, found.evidence


def _document(value: Callable[[Described], object]) -> Callable[[Described], Values]:
    return lambda about: iter([(value(about), DOCUMENT)])


def _facts(found: Iterable[StatedFact]) -> Values:
    yield from ((f"{one.name}: {one.value}", one.evidence) for one in found)


def _name(about: Described) -> Values:
    yield about.facts.name.rpartition("/")[0] or about.facts.name, proof(about.facts)


def _version(about: Described) -> Values:
    yield about.facts.name.rpartition("/")[2], proof(about.facts)


def _released_at(about: Described) -> Values:
    if found := about.facts.released_at:
        yield found.value, found.evidence


def _dated(about: Described) -> Values:
    if found := about.facts.dated:
        yield found.value, found.evidence


def _components(about: Described) -> Values:
    facts = about.facts
    texts = counted(len(facts.buckets) + len(facts.replayed), "dataset")
    yield f"1 model, {counted(len(facts.files), 'file')}, {texts}, 1 application", DOCUMENT


def _data_flow(about: Described) -> Values:
    for one in about.facts.evidence:
        if one.name == "provenance.json":
            yield f"{counted(len(about.facts.chain), 'manifest')} from the sources to the checkpoint", one.sha256


def _data_usage(about: Described) -> Values:
    for one in about.facts.buckets:
        if one.seen_tokens is not None:
            yield f"training on {one.name}: {one.seen_tokens:,} tokens, {one.epochs} epochs", one.evidence
    for replayed in about.facts.replayed:
        yield f"training on {replayed.name}: {replayed.seen_tokens:,} tokens replayed", replayed.evidence


def _input_output(about: Described) -> Values:
    for one in about.facts.model:
        if one.name == "vocab_size":
            yield f"text in, text out; vocabulary of {one.value:,} tokens", one.evidence


def _weights(about: Described) -> Values:
    yield from ((f"{name}: {own}", own) for name, own in sorted(about.facts.files.items()) if name.endswith(_WEIGHTS))


def _documents(about: Described) -> Values:
    yield from sorted(about.documents.items())


def _each_text(value: Callable[[BucketText], object]) -> Callable[[Described], Values]:
    return lambda about: ((value(one), one.evidence) for one in about.facts.buckets)


def _sources(about: Described) -> Values:
    for one in about.facts.sources:
        yield f"{one.bucket}: {one.domain}, snapshot {one.snapshot}, kind {one.kind}", one.evidence


def _statistics(about: Described) -> Values:
    for one in about.facts.buckets:
        yield f"{one.name}: {one.documents:,} documents read, {one.curated:,} kept", one.evidence
    if found := about.facts.trained:
        yield from ((f"language {name}: {n:,} documents", found.evidence) for name, n in found.languages.items())


def _processing(*beginnings: str) -> Callable[[Described], Values]:
    return lambda about: _facts(one for one in about.facts.processing if one.name.startswith(beginnings))


def _attested(*beginnings: str) -> Callable[[Described], Values]:
    return lambda about: _facts(one for one in about.facts.attested if one.name.startswith(beginnings))


def _sensitivity(about: Described) -> Values:
    yield from _processing(ILLEGAL)(about)
    yield from _attested(_PERSONAL)(about)


def _environment(kind: str) -> Callable[[Described], Values]:
    return lambda about: _facts(one for one in about.facts.environment if one.name.startswith(kind))


def _software(about: Described) -> Values:
    code = about.facts.code
    yield f"plinth {code.get('version', '')}", code["sha256"]
    yield from _environment(SOFTWARE)(about)


def _scores(about: Described) -> Values:
    yield from ((f"{one.metric} on {one.slice}: {one.value:.6g}", one.evidence) for one in about.facts.scores)


_ELEMENTS: Final[Mapping[str, Mapping[str, Callable[[Described], Values]]]] = {
    "MD": {
        "SBOM author": _provider,
        "SBOM version": _document(lambda about: 1),
        "SBOM data format name": _document(lambda about: about.format),
        "SBOM data format version": _document(lambda about: about.version),
        "SBOM author signature": _nothing,  # a file cannot name a signature over itself: it is next to the file
        "SBOM tool name": _document(lambda about: "plinth"),
        "SBOM tool version": _nothing,  # the same evidence gives the same bytes in later versions too
        "SBOM generation context": _document(lambda about: "after the build, from signed evidence"),
        "SBOM timestamp": _dated,
        "SBOM dependency relationship": _document(lambda about: "the model depends on files, datasets and code"),
    },
    "SLP": {
        "System name": _name,
        "System components": _components,
        "System producer": _provider,
        "System version": _version,
        "System timestamp": _released_at,
        "System data flow": _data_flow,
        "System data usage": _data_usage,
        "System input/output properties": _input_output,
        "Intended application area": _nothing,
    },
    "MDL": {
        "Model name": _name,
        "Model identifier": lambda about: iter([(f"urn:sha256:{about.facts.checkpoint}", about.facts.checkpoint)]),
        "Model version": _version,
        "Model timestamp": _released_at,
        "Model producer": _provider,
        "Model description": _nothing,
        "Model hash value": _weights,
        "Model hash algorithm": _document(lambda about: "SHA-256"),
        "Model properties": lambda about: _facts(about.facts.model),
        "Model input/output properties": _input_output,
        "Model training properties": lambda about: _facts(about.facts.run),
        "Model license": _nothing,
        "Model external references": _documents,
    },
    "DP": {
        "Dataset name": _each_text(lambda one: one.name),
        "Dataset description": _nothing,
        "Dataset content": _each_text(lambda one: f"{one.name}: text, {one.text_bytes:,} bytes"),
        "Dataset identifier": _each_text(lambda one: f"urn:sha256:{one.evidence}"),
        "Dataset hash": _each_text(lambda one: f"{one.name}: SHA-256 {one.evidence}"),
        "Dataset provenance": _sources,
        "Dataset statistical properties": _statistics,
        "Dataset sensitivity": _sensitivity,
        "Dataset dependency relationship": _each_text(lambda one: f"the model was trained with {one.name}"),
        "Dataset license": _processing(KEPT),
    },
    "INF": {"Infrastructure software": _software, "Infrastructure hardware": _environment(HARDWARE)},
    "SP": dict.fromkeys(
        (
            "Security controls",
            "Security compliance",
            "Cybersecurity policy information",
            "Vulnerability referencing",
        ),
        _nothing,
    ),
    "KPI": {"Security metrics": _attested(*_ATTACKS), "Operational performance KPIs": _scores},
}
