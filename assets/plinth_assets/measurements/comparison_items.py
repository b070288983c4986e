"""Lines of a comparison, counted again from the items of both models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.comparison import job
from plinth.evaluation.measurement import Figures
from plinth.records import Manifest


def recount(ctx: Context, made: Manifest, found: Mapping[str, Manifest]) -> Figures:
    """Every line with its interval, from the items of both models, which must be those that are attested of ours."""
    models = {side: made.inputs.get(f"{side}/checkpoint", "none") for side in ("a", "b")}
    ours, theirs = (_measured(ctx, made, side) for side in ("a", "b"))
    lines = job.lines(ctx.store, ours, theirs)
    counted = _lines(line.model_dump(mode="json") for line in lines)
    named = dict.fromkeys(models, "none") | {side: one["checkpoint"] for side, one in made.stats["models"].items()}
    read = {name: one.digest for name, one in ours.items() if name in found}
    attested = {name: found[name].digest for name in read}
    stated = {"models": named, "lines": _lines(made.stats["lines"]), "attested": read}
    return stated, {"models": models, "lines": counted, "attested": attested}


def _measured(ctx: Context, made: Manifest, side: str) -> dict[str, Manifest]:
    names = (name for name in made.inputs if name.startswith(f"{side}/") and name != f"{side}/checkpoint")
    return {name.removeprefix(f"{side}/"): ctx.refs.load(made.inputs[name]) for name in names}


def _lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{one['kind']} {one['measure']} {one['slice']}": {
            key: one["difference"][key] for key in ("clusters", "value", "low", "high")
        }
        | {"fewer_is_better": one["fewer_is_better"]}
        for one in lines
    }
