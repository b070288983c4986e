"""The best model that money buys on a fleet, between the least and the most that the fleet may reach.

    dollars -> device hours (price) -> FLOPs (peak x utilisation) -> parameters and tokens (law) -> loss

A law of one's own runs foretells the loss with an interval. Published constants are of other text and another
tokenizer: they divide the money between parameters and tokens, and say little about the loss.
"""

from __future__ import annotations

import math

from pydantic import Field

from plinth.errors import RequestError
from plinth.evaluation.statistics import Estimate
from plinth.launch.devices import Device
from plinth.model import flops
from plinth.model.parameters import PRESETS, Model
from plinth.records import Frozen
from plinth_lab.scaling.fit import Fitted
from plinth_lab.scaling.law import CORRECTED, Allocation, DataReuse
from plinth_lab.scaling.predict import predict

#: Share of the devices' peak that published runs, most of 1B to 8B parameters, reach with bubble and communication.
UTILISATION = (0.38, 0.48)


class BoughtModel(Frozen):
    """What a utilisation makes of the money; `loss` and `extrapolation` where the law is of one's own runs."""

    utilisation: float
    flops: float
    best: Allocation
    preset: str = Field(description="The preset nearest in parameters.")
    preset_parameters: int
    loss: Estimate | None = None
    extrapolation: float | None = None


class Purchase(Frozen):
    """Device hours for the money, wall clock of all devices at once, and the model at the least and the most."""

    devices: int
    dollars: float
    price_hour: float
    device_hours: float
    seconds: float
    models: tuple[BoughtModel, ...]


def purchase(
    dollars: float,
    count: int,
    device: Device,
    *,
    spot: bool = False,
    tokens: float | None = None,
    inference_tokens: float = 0.0,
    reuse: DataReuse | None = None,
    fitted: Fitted | None = None,
) -> Purchase:
    """Spend dollars on so many devices.

    Args:
        spot: at the price of devices that may be taken away.
        tokens: train on exactly so many; None: as many as the law divides the money into.
        inference_tokens: that the model will read and write later; their FLOPs count, their money does not come from
            these dollars.
        reuse: how much text there is; None: enough.
        fitted: the law of one's own runs; None: `CORRECTED`.

    Raises:
        RequestError: the device has no price, the runs determine no law, or the law has no optimum.
    """
    price = device.spot_hour if spot else device.on_demand_hour
    if price <= 0:
        raise RequestError("the device has no price", found=f"{price:g} an hour", remedy="state one: --device-table")
    hours = dollars / price
    peak = hours * 3600 * device.bf16_flops
    found = (_bought(share, share * peak, tokens, inference_tokens, reuse, fitted) for share in UTILISATION)
    return Purchase(
        devices=count, dollars=dollars, price_hour=price, device_hours=hours,
        seconds=hours * 3600 / count, models=tuple(found),
    )  # fmt: skip


def _bought(
    share: float,
    budget: float,
    tokens: float | None,
    inference_tokens: float,
    reuse: DataReuse | None,
    fitted: Fitted | None,
) -> BoughtModel:
    law = fitted.law if fitted else CORRECTED
    if tokens is None:
        best = law.optimum(budget, inference_tokens=inference_tokens, reuse=reuse)
    else:
        params, effective = budget / (6 * tokens), reuse.effective(tokens) if reuse else tokens
        best = Allocation(
            params=params, tokens=tokens, effective_tokens=effective,
            epochs=max(1.0, tokens / reuse.unique_tokens) if reuse else None,
            loss=law.loss(params, effective), training_flops=budget,
            inference_flops=2 * params * inference_tokens,
        )  # fmt: skip
    name, parameters = min(_presets().items(), key=lambda item: abs(math.log(item[1] / best.params)))
    foretold = predict(fitted, best.params, best.effective_tokens) if fitted else None
    return BoughtModel(
        utilisation=share, flops=budget, best=best, preset=name, preset_parameters=parameters,
        loss=foretold.loss if foretold else None, extrapolation=foretold.extrapolation if foretold else None,
    )  # fmt: skip


def _presets() -> dict[str, int]:
    """Parameters of every preset with its own vocabulary."""
    return {
        name: flops.parameters(Model.model_validate(shape.fields()), shape.vocab_size).total
        for name, shape in PRESETS.items()
    }
