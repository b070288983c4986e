"""Responsible-AI fields of an export, in Croissant's vocabulary (https://docs.mlcommons.org/croissant/docs/croissant-rai-spec.html).

    rai:dataCollection*               sources, documents read, rejects, days of capture
    rai:dataPreprocessingProtocol     documents that each filter removed, with its rules
    rai:dataManipulationProtocol      edits to kept text
    rai:personalSensitiveInformation  screening for personal data, and its edits
    rai:machineAnnotationTools        annotators of the exported columns
    rai:dataBiases                    measured errors of learned filters, and languages
    rai:dataLimitations               subjects without screening, and text that is not in the export
    rai:dataUseCases                  uses that the terms of the sources allow

Every sentence ends with the digest of the manifest that it is read from. A field without evidence is left out.

Does not belong here: other fields of the metadata (croissant).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from plinth.compute.context import Context, sum_stats
from plinth.corpus import funnel
from plinth.corpus.slices import rates, removal_rates
from plinth.provenance.ledger_columns import JOIN
from plinth.records import Manifest
from plinth.text import counted
from plinth_assets.candidate import SUBJECTS
from plinth_audit.papers.facts import CRAWLED
from plinth_audit.text_export.manifest import DATA, ExportFile

PERSONAL: Final = "personal data"
#: Prefix of the assets with the measured error rates of learned filters.
_SLICES: Final = "slices/"


class BucketEvidence(NamedTuple):
    """Manifests of a bucket that its exported text is derived from."""

    documents: Manifest
    verdicts: Manifest
    curated: Manifest
    policy: Manifest | None


@dataclass(frozen=True)
class ExportedText:
    """Text of an export with its evidence.

    Args:
        name: name of the corpus.
        format: format of the text files.
        files: files of the export except the metadata itself, by name.
        schemas: columns of the exported rows by bucket. Buckets without text have none.
        curated: manifests of the exported text by bucket.
        card, ledger: data card, and ledger with the exported columns.
        inputs: digests of all manifests that the export is derived from, by asset.
    """

    name: str
    format: str
    files: Mapping[str, ExportFile]
    schemas: Mapping[str, pa.Schema]
    curated: Mapping[str, Manifest]
    card: Manifest
    ledger: Manifest
    inputs: Mapping[str, str]

    def counts(self, bucket: str) -> dict[str, Any]:
        """Return the summed counts of a bucket's files."""
        return sum_stats(file.model_dump() for name, file in self.files.items() if name.startswith(f"{DATA}{bucket}/"))


def responsible_ai(ctx: Context, text: ExportedText) -> dict[str, Any]:
    """Return the fields of the vocabulary that have evidence.

    Two keys of mlcroissant 1.1.1 differ from the vocabulary (`dataCollectionTimeFrame`,
    `dataDataManipulationProtocol`). The keys here are those of the vocabulary.

    Raises:
        MissingError, IntegrityError: a manifest cannot be read.
    """
    told = _Evidence(ctx, text)
    found: dict[str, Any] = {
        "dataCollection": " ".join(told.collection()),
        "dataCollectionType": told.collection_type(),
        "dataCollectionRawData": " ".join(told.sources()),
        "dataCollectionMissingData": " ".join(told.rejects()),
        "dataCollectionTimeframe": told.days(),
        "dataPreprocessingProtocol": [*told.filters(), *told.withheld()],
        "dataManipulationProtocol": " ".join(told.edits()),
        "personalSensitiveInformation": list(told.personal_data()),
        "machineAnnotationTools": list(told.annotators()),
        "dataBiases": [*told.learned_filters(), *told.languages()],
        "dataLimitations": list(told.limits()),
        "dataUseCases": list(told.uses()),
    }
    return {f"rai:{name}": value for name, value in found.items() if value}


def _said(sentence: str, evidence: Manifest) -> str:
    return f"{sentence} (evidence: {evidence.asset}, SHA-256 {evidence.digest})."


class _Evidence:
    """Sentences about an export, each from a manifest that its text is derived from."""

    def __init__(self, ctx: Context, text: ExportedText) -> None:
        self._ctx, self._text = ctx, text
        self._buckets = {bucket: self._bucket(bucket, curated) for bucket, curated in text.curated.items()}

    def _bucket(self, bucket: str, curated: Manifest) -> BucketEvidence:
        documents, verdicts = (self._ctx.refs.load(curated.inputs[f"{bucket}/{one}"]) for one in _BEHIND)
        policy = verdicts.inputs.get(f"{bucket}/policy")
        return BucketEvidence(documents, verdicts, curated, self._ctx.refs.load(policy) if policy else None)

    @cached_property
    def _stages(self) -> Mapping[str, list[dict[str, Any]]]:
        """Rows of the funnel by bucket: documents in and out of every stage, with reasons."""
        documents = {bucket: one.documents for bucket, one in self._buckets.items()}
        verdicts = {bucket: one.verdicts for bucket, one in self._buckets.items()}
        made = funnel.run(self._ctx, documents, verdicts, self._text.curated)
        return {bucket: own["stages"] for bucket, own in made.stats["buckets"].items()}

    def _listed(self) -> Iterator[tuple[str, Manifest, Mapping[str, Any]]]:
        """Yield each declared source with its bucket and its evidence."""
        for bucket, one in self._buckets.items():
            yield from ((bucket, one.documents, source) for source in one.documents.params.get("sources", ()))

    def collection(self) -> Iterator[str]:
        for bucket, one in self._buckets.items():
            read = counted(one.documents.stats["documents"], "document")
            yield _said(f"{bucket}: {read} read from {counted(len(_sources(one)), 'source')}", one.documents)

    def collection_type(self) -> list[str]:
        return ["Web Scraping"] if any(source["kind"] in CRAWLED for _, _, source in self._listed()) else []

    def sources(self) -> Iterator[str]:
        for bucket, evidence, source in self._listed():
            named = f"{bucket}: {source.get('domain')}, snapshot {source.get('snapshot')}, kind {source.get('kind')}"
            yield _said(f"{named}, declared license {source.get('licence')}", evidence)

    def rejects(self) -> Iterator[str]:
        for bucket, one in self._buckets.items():
            found = one.documents.stats.get("rejects", {})
            if found:
                yield _said(f"{bucket}: records that gave no document: {_reasons(found)}", one.documents)

    def days(self) -> list[str]:
        found = sorted(sum_stats(file.model_dump() for file in self._text.files.values()).get("captured", {}))
        return [found[0], found[-1]] if found else []

    def filters(self) -> Iterator[str]:
        for bucket, one in self._buckets.items():
            rules = {rule["reason"]: rule["drop"] for rule in one.policy.params.get("rules", ())} if one.policy else {}
            for row in self._stages[bucket][1:-1]:  # the first reads documents, the last edits them
                found = (f"{n['documents']:,} {reason}" for reason, n in row["reasons"].items())
                why = ", ".join(_with_rule(told, rules) for told in found)
                removed = f"{row['removed']:,} of {counted(row['documents_in'], 'document')} removed"
                yield _said(f"{bucket}, {row['stage']}: {removed}{f': {why}' if why else ''}", one.verdicts)

    def withheld(self) -> Iterator[str]:
        for bucket, one in self._buckets.items():
            if n := self._text.counts(bucket).get("withheld"):
                left = f"{counted(n, 'document')} excluded from the export, since their license forbids redistribution"
                yield _said(f"{bucket}: {left}", one.curated)

    def edits(self) -> Iterator[str]:
        for bucket, one in self._buckets.items():
            found = {reason: n for reason, n in one.curated.stats.get("edit_counts", {}).items() if n}
            if found:
                size = f"{one.curated.stats['edited_away_bytes']:,} bytes removed"
                told = f"spans replaced by reason: {_reasons(found)}; {size}"
                yield _said(f"{bucket}: {told}", one.curated)

    def personal_data(self) -> Iterator[str]:
        yield from (self._screening(subject, state) for subject, state in self._screenings() if subject == PERSONAL)
        columns = tuple(f"{annotator}." for annotator in SUBJECTS[PERSONAL])
        for bucket, one in self._buckets.items():
            for edit in one.policy.params.get("edits", ()) if one.policy else ():
                if edit["spans"].startswith(columns):
                    n = one.curated.stats.get("edit_counts", {}).get(edit["reason"], 0)
                    yield _said(f"{bucket}: {counted(n, 'span')} of {edit['spans']} replaced", one.curated)

    def annotators(self) -> Iterator[str]:
        names = {field.name.partition(JOIN)[0] for schema in self._text.schemas.values() for field in schema
                 if JOIN in field.name}  # fmt: skip
        for bucket in self._buckets:
            for name in sorted(names):
                if digest := self._text.inputs.get(f"{bucket}/{name}"):
                    made = self._ctx.refs.load(digest)
                    yield _said(f"{bucket}: {name}, step {made.step}, version {made.version}", made)

    def learned_filters(self) -> Iterator[str]:
        for asset, digest in sorted(self._text.card.inputs.items()):
            if asset.startswith(_SLICES):
                yield from _errors(self._ctx.refs.load(digest))
            elif asset == removal_rates.ASSET:
                yield from self._removals(self._ctx.refs.load(digest))

    def _removals(self, measured: Manifest) -> Iterator[str]:
        for row in measured.stats["rules"]:
            for bucket in self._buckets:
                if counts := row["buckets"].get(bucket):
                    yield _said(f"{bucket}: `{row['rule']}` removes {removal_rates.in_words(counts)}", measured)

    def languages(self) -> Iterator[str]:
        for bucket in self._buckets:
            if found := self._text.counts(bucket).get("languages"):
                yield _said(f"{bucket}: exported documents by detected language: {_reasons(found)}", self._text.ledger)

    def limits(self) -> Iterator[str]:
        yield from (self._screening(*one) for one in self._screenings() if one[1] != "screened")
        for bucket, one in self._buckets.items():
            if n := one.curated.stats.get("heldout_documents"):
                yield _said(f"{bucket}: {counted(n, 'held-out document')} not in the export", one.curated)

    def _screenings(self) -> Iterable[tuple[str, str]]:
        return sorted(self._text.card.stats.get("screening", {}).items())

    def _screening(self, subject: str, state: str) -> str:
        return _said(f"{subject}: {state}", self._text.card)

    def uses(self) -> Iterator[str]:
        for bucket, evidence, source in self._listed():
            allowed = sorted(use for use, permitted in source.get("terms", {}).items() if permitted is True)
            if allowed:
                yield _said(f"{bucket}: the terms of {source.get('domain')} allow {', '.join(allowed)}", evidence)


#: Manifests that curated text is derived from.
_BEHIND: Final = ("documents", "verdicts")


def _sources(one: BucketEvidence) -> list[Any]:
    return list(one.documents.params.get("sources", ()))


def _reasons(counts: Mapping[str, int]) -> str:
    """Return counts by reason, the largest first."""
    return ", ".join(f"{n:,} {reason}" for reason, n in sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _with_rule(told: str, rules: Mapping[str, str]) -> str:
    rule = rules.get(told.partition(" ")[2])
    return f"{told} (rule `{rule}`)" if rule else told


def _errors(measured: Manifest) -> Iterator[str]:
    """Yield the error rates of a learned filter by slice of labeled text. Generated labels are not evidence."""
    if not sum(measured.stats.get("real", {}).values()):
        return
    for row in rates.table(measured.stats):
        cells = ", ".join(f"{name} {value}" for name, value in zip(rates.HEADER[1:], row[1:], strict=True))
        yield _said(f"{measured.asset.removeprefix(_SLICES)} on slice {row[0]}: {cells}", measured)
