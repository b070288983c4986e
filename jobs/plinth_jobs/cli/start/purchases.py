"""The part of `plinth run plan` that says what a sum of money buys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from plinth.experiment.scaling.purchase import Purchase
    from plinth_jobs.cli.start.divisions import Fleet

_TIMES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class LargeNumber(click.ParamType[float]):
    """A number above 0, as `2M`, `1.5T` or `3e9`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([KMBT]?)", str(value).upper().replace("E", "e"))
        amount = float(found[1]) * _TIMES[found[2]] if found else 0.0
        if not 0 < amount < float("inf"):
            self.fail(f"{value!r} is no number above 0; write 2M, 1.5T or 3e9", param, ctx)
        return amount


def made(
    dollars: float,
    fleet: Fleet,
    *,
    spot: bool,
    tokens: float | None,
    inference_tokens: float,
    unique_tokens: float | None,
    runs: Path | None,
) -> Purchase:
    """What the money buys.

    Raises:
        RequestError: as `purchase`; the table of runs is wrong.
    """
    from plinth.experiment.scaling.fit import DRAWS
    from plinth.experiment.scaling.law import DataReuse
    from plinth.experiment.scaling.purchase import purchase
    from plinth_jobs.cli.experiment.scaling import fitted_to

    fitted = fitted_to(runs, DRAWS) if runs else None
    reuse = DataReuse(unique_tokens=unique_tokens) if unique_tokens else None
    return purchase(
        dollars, fleet.size, fleet.device.device, spot=spot, tokens=tokens, inference_tokens=inference_tokens,
        reuse=reuse, fitted=fitted,
    )  # fmt: skip


def show(found: Purchase, name: str, runs: Path | None) -> None:
    """The purchase as facts and a table."""
    from plinth.experiment.scaling.fit import FAR
    from plinth.launch.devices import PRICES
    from plinth_jobs.cli import output

    output.heading(f"{found.dollars:,.0f} dollars on {found.devices} {name}")
    output.facts(
        {
            "device hours": f"{found.device_hours:,.0f} at {found.price_hour:.2f}",
            "wall clock": output.duration(found.seconds),
        }
    )
    rows = []
    for one in found.models:
        loss = f"{one.best.loss:.3f}"
        if one.loss is not None:
            loss = f"{one.loss.value:.4f} ({one.loss.level:.0%}: {one.loss.low:.4f} to {one.loss.high:.4f})"
        per = f"{one.best.tokens:.3g} ({one.best.tokens_per_parameter:.3g} a parameter)"
        times = one.preset_parameters / one.best.params
        near = f"{one.preset} ({one.preset_parameters:.3g})" if 0.5 <= times <= 2 else "none within a factor of 2"
        rows.append((f"{one.utilisation:.0%}", f"{one.flops:.3g}", f"{one.best.params:.3g}", per, loss, near))
    output.table(("utilisation", "FLOPs", "parameters", "tokens", "loss", "nearest preset"), rows)
    output.heading("How sure")
    lines = ["utilisation: what published runs reach, with bubble and communication; the ends are the table's rows"]
    lines.append(PRICES)
    if runs is None:
        lines.append("law: published constants (Besiroglu et al. 2404.10102), of other text and another tokenizer: "
                     "they divide the money, the loss is not yours; --runs TABLE fits your own ladder")  # fmt: skip
    elif times := max(one.extrapolation or 0.0 for one in found.models):
        far = ": FAR outside of the runs, where no interval holds" if times > FAR else ""
        lines.append(f"law: of {runs}; {times:.3g} x its largest budget{far}")
    for line in lines:
        output.say(f"  - {line}")
