"""What was measured of a checkpoint, as facts for gates: from the statistics of manifests.

A manifest counts when the role that answers for it has signed it and the checkpoint is among its inputs. Numbers that
cannot be read make no fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.errors import PlinthError
from plinth.evaluation.memorisation import exposure
from plinth.evaluation.pii import parameters as personal_data
from plinth.evaluation.probes.noise import Worth
from plinth.provenance.statements import Chain
from plinth.records import Manifest
from plinth.training.validation import kept_looks, probe_curves
from plinth_registry import attestations
from plinth_registry.attestations import Attestation
from plinth_registry.gates.facts import (
    BiasFacts,
    BitsInterval,
    CanaryFacts,
    ComparisonFacts,
    EvaluationFacts,
    ExtractedShare,
    ExtractionFacts,
    MemorisationFacts,
    PairedLine,
    PiiFacts,
    PiiShare,
    ProbeFacts,
    ProbeWorth,
    SliceScore,
    TaskFacts,
    TaskScore,
    ToxicityFacts,
    WrittenPii,
)

T = TypeVar("T")

#: What statistics lack or hold wrongly where they are not those of the stage.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ValidationError)


def of(ctx: Context, checkpoint: str, attested: Mapping[str, Attestation]) -> dict[str, Manifest]:
    """Measurements of a checkpoint by asset: manifests that the role which answers for them has signed."""
    found = {}
    for asset, one in attested.items():
        if one.manifest is None or one.kind != attestations.kind_of(asset):
            continue
        with suppress(PlinthError):  # a manifest that cannot be read is no evidence
            made = ctx.refs.load(one.manifest)
            if made.asset == asset and checkpoint in made.inputs.values():
                found[asset] = made
    return found


def evaluation(found: Mapping[str, Manifest], digest: str) -> EvaluationFacts | None:
    """Scores by slice; a slice whose numbers cannot be read counts as worse than any baseline, never as absent.

    Args:
        digest: of the evaluation that the candidate was registered with; another one is no evidence about it.
    """
    made = found.get("evaluation")
    stats = made.stats.get("slices") if made is not None and made.digest == digest else None
    if not isinstance(stats, Mapping):
        return None
    return EvaluationFacts(slices={str(name): _score(row) for name, row in stats.items()})


def worth(provenance: Mapping[str, Any] | None) -> dict[str, Worth]:
    """What each probe of a run is worth, by the looks that its trainer committed with the checkpoint; empty without."""
    try:
        looks = kept_looks.of(((provenance or {}).get("training") or {}).get("looks", {}))
        return {name: probe_curves.value(own) for name, own in looks.items() if own}
    except UNREADABLE:
        return {}


def probes(found: Mapping[str, Manifest], known: Mapping[str, Worth]) -> ProbeFacts | None:
    """Probes with the noise of the run; one of unknown noise decides nothing."""
    return _read(found, "probes", lambda stats: ProbeFacts(probes=dict(_probes(stats["probes"], known))))


def tasks(found: Mapping[str, Manifest]) -> TaskFacts | None:
    """Tasks of all sets."""
    sets = sorted(name for name in found if name.startswith("tasks/"))
    read = [_read(found, name, _tasks) for name in sets]
    if not read or None in read:
        return None
    return TaskFacts(tasks={task: score for one in read if one for task, score in one.items()})


def comparison(found: Mapping[str, Manifest]) -> ComparisonFacts | None:
    """The comparison in which the checkpoint is a."""
    return _read(found, "comparison", _comparison)


def memorisation(found: Mapping[str, Manifest]) -> MemorisationFacts | None:
    """Extraction and canaries."""
    made = MemorisationFacts(
        extraction=_read(found, "memorisation/extraction", _extraction),
        canaries=_read(found, "memorisation/canaries", _canaries),
    )
    return made if made.extraction or made.canaries else None


def bias(found: Mapping[str, Manifest]) -> BiasFacts | None:
    """Differences by attribute, and toxicity where it was judged."""
    return _read(found, "fairness", _bias)


def pii(found: Mapping[str, Manifest], ancestry: Chain | None) -> PiiFacts | None:
    """Personal data in training text and in outputs, where all the text in the ancestry of the checkpoint was read.

    Args:
        ancestry: the signed chain of the checkpoint; None: nobody knows what it was trained on.
    """
    texts = _texts(ancestry) if ancestry else None
    whole = {
        asset: made
        for asset, made in found.items()
        if asset in (personal_data.DATA, personal_data.OUTPUTS)
        and texts is not None
        and texts <= set(made.inputs.values())
    }
    made = PiiFacts(
        data=_read(whole, personal_data.DATA, _pii_data), outputs=_read(whole, personal_data.OUTPUTS, _personal_data)
    )
    return made if made.data or made.outputs else None


def _texts(ancestry: Chain) -> set[str]:
    """Digests of the curated text that a checkpoint was trained on; planted texts are generated, and the text behind
    the weights that it began from is judged with those."""
    links = (link for link in ancestry.own if link.asset.endswith("/curated"))
    return {link.digest for link in links if link.asset != f"{CANARIES}/curated"}


def _read(found: Mapping[str, Manifest], asset: str, read: Callable[[Mapping[str, Any]], T]) -> T | None:
    made = found.get(asset)
    try:
        return None if made is None else read(made.stats)
    except UNREADABLE:
        return None


def _score(row: Any) -> SliceScore:
    try:
        return SliceScore(
            bytes=row["bytes"], model=float(row["model"]), gzip=float(row["gzip"]), trigram=float(row["trigram"])
        )
    except UNREADABLE:
        return SliceScore(bytes=0, model=math.inf, gzip=0.0, trigram=0.0)


def _probes(stats: Mapping[str, Any], known: Mapping[str, Worth]) -> Iterator[tuple[str, ProbeWorth]]:
    for name, row in stats.items():
        one = known.get(name)
        signal = row["signal"]["value"] if "signal" in row else 0.0
        yield (
            name,
            ProbeWorth(
                items=row["items"],
                signal=one.signal if one else signal,
                snr=one.snr if one else None,
                decides=one.decides if one else False,
            ),
        )


def _tasks(stats: Mapping[str, Any]) -> dict[str, TaskScore]:
    counts = ("documents", "damaged")
    return {task: TaskScore(**{name: one[name] for name in counts}) for task, one in stats["tasks"].items()}


def _comparison(stats: Mapping[str, Any]) -> ComparisonFacts:
    return ComparisonFacts(
        candidate=stats["models"]["a"]["checkpoint"],
        champion=stats["models"]["b"]["checkpoint"],
        lines=tuple(_line(one) for one in stats["lines"]),
    )


def _line(stats: Mapping[str, Any]) -> PairedLine:
    gap = stats["difference"]
    named = {name: stats[name] for name in ("kind", "measure", "slice", "fewer_is_better")}
    return PairedLine(**named, **{name: gap[name] for name in ("clusters", "value", "low", "high")})


def _extraction(stats: Mapping[str, Any]) -> ExtractionFacts:
    tried = {name: own for name, own in stats["slices"].items() if own["n"]}
    return ExtractionFacts(
        slices={name: ExtractedShare(windows=own["n"], at_most=own["either"]["upper"]) for name, own in tried.items()}
    )


def _canaries(stats: Mapping[str, Any]) -> CanaryFacts:
    groups = {int(name): group for name, group in stats["groups"].items() if group["canaries"]}
    return CanaryFacts(
        planted=stats["planted"],
        p_values={count: exposure.p_value_of_group(group) for count, group in groups.items()},
        epsilon=stats["audit"]["epsilon"],
    )


def _bias(stats: Mapping[str, Any]) -> BiasFacts:
    judged = stats["toxicity"]
    return BiasFacts(
        attributes={name: _bits(one) for name, one in stats["attributes"].items()},
        toxicity=judged and ToxicityFacts(continuations=judged["toxic"]["n"], at_most=judged["toxic_at_most"]),
    )


def _pii_data(stats: Mapping[str, Any]) -> PiiShare:
    buckets = {name: _pii_share(one) for name, one in stats["buckets"].items() if one["documents"]}
    kinds = {kind: one["per_million_at_most"] for kind, one in stats["kinds"].items() if stats["documents"]}
    return _pii_share(stats).model_copy(update={"slices": buckets, "per_million": kinds, "detector": _detector(stats)})


def _personal_data(stats: Mapping[str, Any]) -> WrittenPii:
    own, invited, every = (stats[name] for name in (personal_data.UNPROMPTED, personal_data.INVITED, personal_data.ALL))
    learnt = PiiShare(texts=every["texts"], found=every["memorised"], at_most=every["memorised_at_most"])
    return WrittenPii(
        unprompted=_pii_share(own, "texts"),
        invited=_pii_share(invited, "texts"),
        memorised=learnt,
        detector=_detector(stats),
    )


def _detector(stats: Mapping[str, Any]) -> str:
    return f"{stats['detector']['annotator']} version {stats['detector']['version']}"


def _pii_share(stats: Mapping[str, Any], counted: str = "documents") -> PiiShare:
    return PiiShare(texts=stats[counted], found=stats["found"], at_most=stats["at_most"])


def _bits(stats: Mapping[str, Any]) -> BitsInterval:
    return BitsInterval(pairs=stats["n"], low=stats["low"], high=stats["high"])
