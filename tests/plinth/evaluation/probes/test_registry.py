"""Probes defined by code: invalid items are named, and an unknown name is refused with the closest known one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import ExtensionError, RecipeError
from plinth.evaluation.parameters import FAMILIES, Probes
from plinth.evaluation.probes import base, probe_sets
from plinth.evaluation.probes.base import Probe, ProbeItem, items_of
from plinth.recipe.load import check
from plinth_jobs.recipes import find
from tests.catalogues import Including

GOOD = ProbeItem("1", "elsewhere", "code", "t", "The capital of Wales is", " Cardiff", (" Swansea",), "The town of is")


def probe(build: Callable[[], Sequence[Any]], family: str = "knowledge") -> Probe:
    return Probe("own", "Mine.", family, build, "3 (own 1.0)")


def test_items_stand_under_the_name_and_family_of_their_probe() -> None:
    assert items_of(probe(lambda: [GOOD])) == [GOOD._replace(probe="own", family="knowledge")]


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ([], "no item"),
        ([GOOD, GOOD], "item 1 .'1'.: duplicate name"),
        ([GOOD, {"prompt": "x"}], "item 1 is a dict"),
        ([GOOD._replace(wrong=[" a"])], "`wrong` a tuple"),
        ([GOOD._replace(gold=3)], "must be strings"),
        ([GOOD._replace(gold="\ud800")], "surrogate"),
        ([GOOD._replace(gold=" ")], "an answer is empty"),
        ([GOOD._replace(prompt="x ")], "ends with white space"),
        ([GOOD._replace(wrong=(GOOD.gold,))], "duplicate"),
        ([GOOD._replace(control=GOOD.prompt)], "control"),
    ],
)
def test_what_cannot_be_scored_is_named(made: list[Any], fault: str) -> None:
    with pytest.raises(ExtensionError, match=fault):
        items_of(probe(lambda: made))


def test_code_that_fails_and_families_that_there_are_not() -> None:
    with pytest.raises(ExtensionError, match="ZeroDivisionError"):
        items_of(probe(lambda: [1 / 0]))
    with pytest.raises(ExtensionError, match="the family 'wit'"):
        items_of(probe(lambda: [GOOD], "wit"))


def test_a_package_stands_beside_the_built_in_ones(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    before = probe_sets.run(ctx, Probes(families=("safety",)))
    monkeypatch.setattr(base, "PROBES", Including(base.PROBES, probe(lambda: [GOOD])))
    params = Probes(families=("own", "safety"))
    assert params.names == ("safety", "own")
    made = probe_sets.run(ctx, params)
    assert made.stats["sets"]["own"]["items"] == 1
    assert made.stats["sets"]["safety"] == before.stats["sets"]["safety"]
    assert made.params["packages"] == {"own": "3 (own 1.0)"}
    assert "packages" not in before.params
    identity = probe_sets.outside(ctx, params)
    newer = replace(probe(lambda: [GOOD]), version="4")
    monkeypatch.setattr(base, "PROBES", Including(base.PROBES, newer))
    assert probe_sets.outside(ctx, params) != identity


def test_a_name_that_nothing_has(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no probe 'knowlege'[\s\S]*did you mean 'knowledge'"):
        probe_sets.run(ctx, Probes(families=("knowlege",)))
    path = tmp_path / "recipe.yaml"
    wanted = "{probes: {families: [code, knowlege]}}"
    path.write_text(f"extends: {find('tiny.yaml')}\nname: own\nevaluation: {wanted}\n")
    (problem,) = check(path)[1]
    assert (problem.key, problem.message) == ("evaluation.probes.families[1]", 'found "knowlege", no such probe')
    assert problem.hint == "did you mean `knowledge`?"
    with pytest.raises(ValidationError, match="is a built-in or installed probe"):
        Probes(families=("own",), sets={"own": {"path": "x"}})
    assert Probes().names == FAMILIES
