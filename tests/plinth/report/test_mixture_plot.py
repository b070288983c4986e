from __future__ import annotations

import pytest

from plinth.report.figures import REST, gathered


def test_the_largest_keep_their_names_and_shares_add_up() -> None:
    rows = [
        {"stop": 8, "realised": {"a": 0.5, "b": 0.1, "c": 0.3, "d": 0.1}},
        {"stop": 16, "realised": {"a": 0.0, "b": 0.1, "c": 0.6, "d": 0.3}},
    ]
    first, second = gathered(rows, most=3)
    assert first["realised"] == {"c": 0.3, "a": 0.5, REST: pytest.approx(0.2)}
    assert second["realised"] == {"c": 0.6, "a": 0.0, REST: pytest.approx(0.4)}
    assert (first["stop"], second["stop"]) == (8, 16)
    assert gathered(rows, most=4) == rows
