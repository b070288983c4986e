"""Upper bounds of shares, for gates of what was counted in samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from plinth_registry.gates.margins import WHOLE
from plinth_registry.gates.result import GateResult, decided, number, percent, skipped


class UpperBound(NamedTuple):
    """Upper bound of a share of n items, with the number found if it is known."""

    n: int
    at_most: float
    found: int | None = None

    def text(self, limit: float) -> str:
        """`≤ 1.89% (95% upper bound), limit 5.0%, n 60`."""
        size = f"n {self.n:,}" if self.found is None else f"n {self.n:,}, {self.found:,} found"
        return f"≤ {percent(self.at_most, limit)} (95% upper bound), limit {percent(limit, self.at_most)}, {size}"


def worst_share(
    name: str, what: str, rates: Mapping[str, UpperBound], least: int, limit: float, **evidence: Any
) -> GateResult:
    """Return the result of upper bounds of a share: the whole, and every slice of at least `least` items."""
    judged = {key: one for key, one in rates.items() if key == WHOLE or one.n >= least}
    small = [(f"{key}, ≤ {percent(one.at_most)}", one.n) for key, one in rates.items() if key not in judged]
    above = [key for key, one in judged.items() if not one.at_most <= limit]
    worst = max(judged, key=lambda key: (key in above, judged[key].at_most))
    more = f", worst of {len(judged)}" if len(judged) > 1 and not above else ""
    text = "; ".join(
        f"{judged[key].text(limit)} ({'overall' if key == WHOLE else key}{more})" for key in above or [worst]
    )
    return decided(
        name,
        not above,
        f"{what} {text}{skipped('slice', least, small)}",
        at_most=number(judged[worst].at_most),
        bound=limit,
        **evidence,
    )
