"""Prices of what is not a device: cores, storage, requests. Devices have theirs in `plinth.launch.devices`."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class CorpusPrices(Frozen):
    """In dollars, as published by the large clouds for general machines and objects of the standard class."""

    core_hour: float = Field(0.04, ge=0, description="Price of a core for an hour.")
    gigabyte_month: float = Field(0.023, ge=0, description="Price of storage.")
    million_requests: float = Field(5.0, ge=0, description="Price of a million writes; reads are a twelfth of it.")

    def requests(self, reads: float, writes: float) -> float:
        """Price of so many requests."""
        return (writes + reads / 12) / 1e6 * self.million_requests
