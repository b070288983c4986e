"""Settings of a workspace's budget: who pays, at which price, and where the ledger is."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from plinth.launch import devices
from plinth.operation.devices import CorpusPrices
from plinth.operation.workspace_files import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace

#: Folder of a workspace that holds settings and ledger.
FOLDER = "budget"
#: Names the ledger of every workspace whose settings name none.
LEDGER_VARIABLE = "PLINTH_LEDGER"


class Spending(Frozen):
    """Without the file: no team, the recipe's own price of a rank, a ledger in the workspace."""

    ledger: str = Field(
        "", description="`postgresql://…` or a file; empty: PLINTH_LEDGER, or `budget/ledger.sqlite` of the workspace."
    )
    team: str = Field("", description="Who pays for what is trained here.")
    device: str = Field("", description="What a rank runs on, by its name in the table of devices: price and power.")
    device_table: Path | None = Field(None, description="Devices of your own, as for `plinth run plan --device-table`.")
    spot: bool = Field(False, description="At the price of devices that may be taken away.")
    price_per_rank_hour: float | None = Field(None, ge=0, description="In place of the device's.")
    margin: float = Field(
        0.25, ge=0, description="Share added to a predicted time, for saves, evaluation and restarts."
    )
    start_s: float = Field(300.0, ge=0, description="Added to it for the start-up of a job, however little is left.")
    prices: CorpusPrices = CorpusPrices()
    grams_co2_per_kwh: float | None = Field(None, ge=0, description="Of your grid; left out: no carbon is stated.")
    power_usage_effectiveness: float = Field(1.0, ge=1, description="Energy of the site, a joule of its devices.")

    @property
    def rated(self) -> devices.Device | None:
        """The device that a rank runs on.

        Raises:
            RequestError: the table has no such device.
        """
        return devices.find(self.device, devices.read(self.device_table))[1] if self.device else None

    def price(self, recipe_price: float) -> float:
        """Of a rank for an hour: what is stated here, the device's, else the recipe's."""
        device = self.rated
        if self.price_per_rank_hour is not None:
            return self.price_per_rank_hour
        if device is not None:
            return device.spot_hour if self.spot else device.on_demand_hour
        return recipe_price


def settings_file(workspace: Workspace) -> Path:
    """Where the settings of a workspace lie."""
    return workspace.root / FOLDER / "settings.yaml"


def load(workspace: Workspace) -> Spending:
    """The settings of a workspace.

    Raises:
        RequestError: the file is no such settings.
    """
    return read_settings(settings_file(workspace), Spending, "is not the settings of a budget", "docs/costs.md")


def workspace_name(workspace: Workspace) -> str:
    """The name of a workspace in the ledger: where it lies, with links resolved."""
    return workspace.places[0]


def ledger_place(workspace: Workspace, settings: Spending) -> str:
    """The ledger that the settings name, or the environment, or the workspace's own."""
    return settings.ledger or os.environ.get(LEDGER_VARIABLE) or str(workspace.root / FOLDER / "ledger.sqlite")
