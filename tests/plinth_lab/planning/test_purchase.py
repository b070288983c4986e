"""Models that a budget can buy."""

import pytest

from plinth.errors import RequestError
from plinth.launch.devices import DEVICES, Device
from plinth_lab.scaling.fit import ScalingRun, fit
from plinth_lab.scaling.law import CORRECTED, DataReuse
from plinth_lab.scaling.predict import UTILISATION, purchase

#: A petaFLOP a second for a dollar an hour.
ROUND = Device(
    memory_bytes=10**11, bf16_flops=1e15, memory_bytes_per_s=1e12, within_bytes_per_s=1e11, between_bytes_per_s=1e10,
    watts=700, on_demand_hour=1.0, spot_hour=0.5,
)  # fmt: skip


def test_dollars_become_hours_and_flops() -> None:
    found = purchase(1000, 10, ROUND)
    assert (found.device_hours, found.seconds) == (1000, 360_000)
    assert [one.flops for one in found.models] == [share * 3.6e21 for share in UTILISATION]
    assert purchase(1000, 10, ROUND, spot=True).device_hours == 2000
    assert [one.best for one in found.models] == [CORRECTED.optimum(share * 3.6e21) for share in UTILISATION]


def test_tokens_that_are_given_leave_the_rest_to_parameters() -> None:
    least, most = purchase(1000, 10, ROUND, tokens=1e11).models
    assert least.best.params == 0.38 * 3.6e21 / 6e11
    assert least.best.loss == CORRECTED.loss(least.best.params, 1e11) > most.best.loss
    assert (least.preset, most.preset) == ("3b", "3b")


def test_repeated_text_is_worth_less() -> None:
    (plenty, _), (scarce, _) = (
        purchase(1000, 10, ROUND, tokens=1e11, reuse=reuse).models for reuse in (None, DataReuse(unique_tokens=1e10))
    )
    assert scarce.best.epochs == 10
    assert scarce.best.loss > plenty.best.loss


def test_a_law_of_ones_own_has_an_interval() -> None:
    runs = [
        ScalingRun(params=n, tokens=d, loss=CORRECTED.loss(n, d) * (1.002 if (i + j) % 2 else 0.998))
        for i, n in enumerate((1e7, 3e7, 1e8, 3e8))
        for j, d in enumerate((2e8, 1e9, 6e9))
    ]
    one = purchase(1, 1, ROUND, tokens=1e10, fitted=fit(runs, draws=200)).models[0]
    assert one.loss is not None
    assert one.loss.low < CORRECTED.loss(one.best.params, 1e10) < one.loss.high
    assert one.extrapolation == pytest.approx(0.38 * 3.6e18 / (6 * 3e8 * 6e9))


def test_a_device_without_a_price_buys_nothing() -> None:
    with pytest.raises(RequestError, match="no price"):
        purchase(1000, 10, DEVICES["h100"].model_copy(update={"on_demand_hour": 0.0}))
