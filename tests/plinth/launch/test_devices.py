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
    assert devices.counted("512xH100") == (512, "H100")
    assert devices.counted("8 x a100") == (8, "a100")
    assert devices.find("a100", devices.DEVICES) == ("a100-80", devices.DEVICES["a100-80"])
    for text in ("H100", "0xH100", "-1xH100", "xH100", ""):
        with pytest.raises(RequestError):
            devices.counted(text)
    with pytest.raises(RequestError, match="unknown device"):
        devices.find("H300", devices.DEVICES)


def test_devices_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(OWN, encoding="utf-8")
    table = devices.read(file)
    name, device = devices.find("Trainium2", table)
    assert (name, device.per_machine, device.bf16_flops) == ("trainium2", 16, 667e12)
    assert set(table) == {"trainium2", *devices.DEVICES}
    for damaged in (OWN.replace("watts: 500", "watts: -1"), OWN.replace("watts", "wats"), "- h100", "{", ""):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(RequestError, match="is not a table of devices"):
            devices.read(file)


def test_the_table_is_plausible() -> None:
    """Orders that a slip of a digit or a unit would break."""
    for name, one in devices.DEVICES.items():
        assert 50 <= one.bf16_flops / one.memory_bytes_per_s <= 450, name  # FLOPs per byte, the ridge point
        assert one.between_bytes_per_s < one.within_bytes_per_s < one.memory_bytes_per_s, name
        assert 0.5e12 <= one.bf16_flops / one.watts <= 3e12, name
        assert 0 < one.spot_hour < one.on_demand_hour < 10, name
