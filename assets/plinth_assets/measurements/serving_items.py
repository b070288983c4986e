"""The cost of serving: numbers in MLflow, section of the page."""

from __future__ import annotations

from plinth import fingerprint
from plinth.evaluation import serving
from plinth.evaluation.measurement import ModelScores, Stats
from plinth.records import Manifest
from plinth.report.evaluation import Section, TextTable
from plinth.report.style import count


def scores(made: Manifest) -> ModelScores:
    """Bytes of the model, and the bounds of every device that it fits on."""
    groups = {serving.ASSET: {name: made.stats[name] for name in ("kv_bytes_per_token", "weights_bytes")}}
    groups |= {f"{serving.ASSET}/{device}": found for device, found in made.stats["devices"].items()}
    estimates = {prefix: {name: {"value": one} for name, one in found.items()} for prefix, found in groups.items()}
    return ModelScores(serving.ASSET, fingerprint.digest(made.params), estimates)


def section(_: str, stats: Stats) -> Section:
    """What it costs to serve the checkpoint, at best, on devices that people rent."""
    fields = {"first_token_s": _milliseconds, "tokens_per_s": count, "sequences": count, "tokens_per_s_full": count}
    rows = [
        (name, *("does not fit" if own[field] is None else form(own[field]) for field, form in fields.items()))
        for name, own in stats["devices"].items()
    ]
    header = ("device", "first token", "tokens/s, one sequence", "sequences that fit", "tokens/s, all of them")
    return Section(
        key="serving",
        title="Serving",
        lead=f"{stats['kv_bytes_per_token']:,} bytes of keys and values for each token. Bounds by bandwidth and "
        "FLOP/s: no implementation is quicker.",
        tables=(TextTable(title="Bounds by device", header=header, rows=tuple(rows)),),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
