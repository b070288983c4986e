"""The table of devices, and one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.errors import RequestError
from plinth.launch import devices

OWN = """
trainium2:
  memory_bytes: 96_000_000_000
  bf16_flops: 667.0e+12
  memory_bytes_per_s: 2.9e+12
  within_bytes_per_s: 640.0e+9
  between_bytes_per_s: 25.0e+9
  per_machine: 16
  watts: 500
  on_demand_hour: 1.6
  spot_hour: 0.9
"""


def test_fleets() -> None:
    assert devices.fleet("512xH100", devices.DEVICES) == (512, "h100", devices.DEVICES["h100"])
    assert devices.fleet("8 x a100", devices.DEVICES)[:2] == (8, "a100-80")
    assert devices.fleet("2xMI300X", devices.DEVICES)[:2] == (2, "mi300x")
    for text in ("H100", "0xH100", "-1xH100", "8xH300", "xH100", ""):
        with pytest.raises(RequestError):
            devices.fleet(text, devices.DEVICES)


def test_devices_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(OWN, encoding="utf-8")
    table = devices.read(file)
    count, name, device = devices.fleet("64xTrainium2", table)
    assert (count, name, device.per_machine, device.bf16_flops) == (64, "trainium2", 16, 667e12)
    assert set(table) == {"trainium2", *devices.DEVICES}
    for damaged in (OWN.replace("watts: 500", "watts: 0"), OWN.replace("watts", "wats"), "- h100", "{", ""):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(RequestError, match="is no table of devices"):
            devices.read(file)


def test_the_table_is_plausible() -> None:
    """Orders that a slip of a digit or a unit would break."""
    for name, one in devices.DEVICES.items():
        assert 50 <= one.bf16_flops / one.memory_bytes_per_s <= 450, name  # FLOPs per byte, the ridge point
        assert one.between_bytes_per_s < one.within_bytes_per_s < one.memory_bytes_per_s, name
        assert 0.5e12 <= one.bf16_flops / one.watts <= 3e12, name
        assert 0 < one.spot_hour < one.on_demand_hour < 10, name
