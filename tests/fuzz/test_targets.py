"""The fuzz targets hold on their seeds and on what hypothesis makes of them; atheris has the nights."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import SEEDS, TARGETS


def test_every_target_has_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", list(TARGETS))
def test_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", list(TARGETS))
@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changed_seeds(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS[name]))
    at = data.draw(st.integers(0, len(seed)))
    cut = data.draw(st.integers(0, len(seed)))
    TARGETS[name](seed[:at] + data.draw(st.binary(max_size=60)) + seed[cut:])
