"""`plinth run federated` makes the rounds of a recipe's sites, and shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from plinth.storage.workspace import Workspace
from plinth.trust.root import Trust
from plinth_extras.federated.exchange import Exchange
from plinth_jobs.recipes import find
from tests.plinth.training.federated_sites import contribution


def test_rounds_are_made_until_all_have_ended_and_listed(plinth: Callable[..., Any], tmp_path: Path) -> None:
    recipe = yaml.safe_load(Path(find("tiny")).read_text())
    place = str(tmp_path / "exchange")
    recipe["training"]["federated"] = {"site": "oslo", "sites": ["lima", "oslo"], "exchange": place}
    (tmp_path / "oslo.yaml").write_text(yaml.safe_dump(recipe))
    exchange = Exchange(place, Trust.of(Workspace(tmp_path / "workspace")))
    exchange.send(contribution(exchange, "oslo", {"a": torch.ones(4)}, ends=True))
    made = plinth("run", "federated", "coordinate", "-r", "oslo.yaml", "--wait", "0")
    assert made.code == 0, made.err
    assert made.out.startswith("round 0: oslo; missing lima; common weights ")
    assert plinth("run", "federated", "rounds", "-r", "oslo.yaml").out == made.out
    (found,) = json.loads(plinth("run", "federated", "rounds", "-r", "oslo.yaml", "--json").out)
    assert (found["round"], found["missing"], list(found["taken"])) == (0, ["lima"], ["oslo"])
    outcome = plinth("run", "federated", "rounds", "-r", find("tiny"))
    assert outcome.code == 2
    assert "training.federated" in outcome.err
