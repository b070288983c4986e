"""`plinth experiment scaling`: a synthetic table is fitted, predicted and compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_from_a_table_to_a_comparison(plinth: Callable[..., Any]) -> None:
    Path("runs.csv").write_text(plinth("experiment", "scaling", "example").out)
    shown = plinth("experiment", "scaling", "fit", "runs.csv", "--budget", "1e23", "--draws", "200")
    assert shown.code == 0, shown.err
    assert "20 runs of" in shown.out
    assert "far outside" in shown.out
    made = json.loads(
        plinth("experiment", "scaling", "fit", "runs.csv", "--budget", "1e21", "--draws", "200", "--json").out
    )
    assert made["fit"]["statuses"] == ["converged"]
    assert made["optimum"]["epochs"] is None
    asked = ("--params", "5e9", "--tokens", "1e11", "--draws", "200", "--out", "foretold.json")
    foretold = plinth("experiment", "scaling", "predict", "runs.csv", *asked)
    assert foretold.code == 0, foretold.err
    compared = plinth(
        "experiment", "scaling", "compare", "foretold.json", "--loss", "2.4", "--probe", "probe=0.8", "--json"
    )
    assert [one["measure"] for one in json.loads(compared.out)["outcomes"]] == ["loss", "probe probe"]
    assert json.loads(compared.out)["digest"] in foretold.out
    Path("foretold.json").write_text("{}")
    assert plinth("experiment", "scaling", "compare", "foretold.json", "--loss", "2").code == 2


def test_runs_that_determine_no_law_print_no_exponent(plinth: Callable[..., Any]) -> None:
    rows = [f"{n},{20 * n},{1.8 + 400 * n**-0.34 + 900 * (20 * n) ** -0.34}" for n in (1e7, 2e7, 4e7, 8e7, 2e8, 4e8)]
    Path("line.csv").write_text("params,tokens,loss\n" + "\n".join(rows) + "\n1e9,2e10,nan\n")
    found = plinth("experiment", "scaling", "fit", "line.csv", "--draws", "100")
    assert found.code == 2
    assert "ill-conditioned" in found.err
    assert "line.csv:8: skipped" in found.err
    assert "alpha" not in found.out
