"""The verdict on a source in words; `plinth corpus source value` and `plinth experiment` show it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth_jobs.cli.options import Settings


def show_verdict(settings: Settings, file: Path, as_json: bool) -> None:
    """Show the verdict that an experiment about a source came to, and write its page again.

    Raises:
        MissingError: it was not run, or has changed since.
    """
    from plinth_assets import experiment as wiring
    from plinth_jobs import experiments
    from plinth_jobs.cli import output
    from plinth_jobs.experiment import answer_of

    ctx = settings.context()
    loaded, arms = experiments.load(file)
    made = answer_of(ctx, loaded, arms)
    page = wiring.show(ctx, loaded, arms, made)
    if as_json:
        output.emit_json({"digest": made.digest, "page": str(page), "file": str(file), **made.stats["value"]})
        return
    say_verdict(made.stats["value"])
    output.facts({"experiment": file, "page": page.absolute().as_uri()})


def say_verdict(found: Mapping[str, Any]) -> None:
    """The verdict with its reason, its gains, what got worse, and the prices."""
    from plinth.experiment.value.verdict import SourceVerdict, priced
    from plinth_jobs.cli import output

    verdict = SourceVerdict.model_validate(found)
    output.heading(verdict.verdict)
    output.say(verdict.reason)
    rows = [
        (
            one.use, f"{verdict.share[one.use]:.1%}",
            "–" if one.gain is None else f"{one.gain.value:+.4f} ({one.gain.low:+.4f} to {one.gain.high:+.4f})",
            "–" if one.smallest is None else f"{one.smallest:.2g}",
            priced(one.per_bit, verdict.currency, 0.001),
        )
        for one in verdict.gains
    ]  # fmt: skip
    output.table(("use", "share", "gain, bits per byte", "would be seen", "price of 0.001 of them"), rows)
    worse = [one for one in verdict.changes if one.worse]
    for one in worse:
        output.say(f"worse, {one.use}: {one.measure} {one.change.value:+.3g}")
    facts = {
        "price": f"{verdict.price:,.6g} {verdict.currency}",
        "a million effective tokens": priced(verdict.tokens.per_token, verdict.currency, 1e6),
        "got worse beside it": f"{len(worse)} of {len(verdict.changes)} measures",
    }
    if verdict.unmeasured:
        facts["not measured"] = "; ".join(verdict.unmeasured)
    output.facts(facts)
