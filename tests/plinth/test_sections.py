"""Sections of the recipe that a package adds: fields like the model's own, absent or unusable ones refused by name."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from plinth import sections
from plinth.recipe.load import check
from plinth.records import Frozen
from tests.plinth.test_extensions import Site, site

__all__ = ["site"]

MODULE = """
from pydantic import Field
from plinth.records import Frozen
from plinth.sections import RecipeSection

class Polish(Frozen):
    grit: int = Field(240, gt=0)

def problems(recipe):
    if recipe.work.polish and recipe.work.polish.grit == 13:
        yield ("work", "polish", "grit"), "13 is unlucky"

POLISH = RecipeSection(name="work.polish", model=Polish, description="Polish.", problems=problems)
OIL = RecipeSection(name="work.oil", model=Polish, description="Oil.", dumped=True)
WAX = RecipeSection(name="work.wax", model=Polish, description="Wax.", default=Polish(grit=7))
"""


class Work(Frozen):
    """Work of these tests."""

    hours: int = 1


@pytest.fixture
def shed(site: Site) -> type[Work]:
    site.module("saws.py", MODULE)
    points = "".join(f"\nwork.{name} = saws:{name.upper()}" for name in ("oil", "wax"))
    site.install("acme-nails", "work.nails", "nails:NAILS", "plinth.sections")
    site.install("plinth", "work.polish", f"saws:POLISH{points}\nwork.gone = plinth_shed:GONE", "plinth.sections")
    return sections.extended("work")(Work)


def test_an_added_section_is_a_field_like_the_models_own(shed: type[Work]) -> None:
    from saws import Polish  # type: ignore[import-not-found]

    given = shed.model_validate_json('{"hours": 2, "polish": {"grit": 80}}')
    assert isinstance(given, Work)
    assert sections.of(given, "polish", Polish) == Polish(grit=80)
    assert sections.of(Work(), "polish", Polish) is None
    assert given.model_dump() == {"hours": 2, "polish": {"grit": 80}, "oil": None, "wax": {"grit": 7}}
    assert (shed.__doc__, shed.__qualname__) == (Work.__doc__, "Work")
    assert shed.model_json_schema()["properties"]["polish"]["description"] == "Polish."
    assert sections.extended("play")(Work) is Work
    with pytest.raises(ValueError, match="greater than 0"):
        shed.model_validate({"polish": {"grit": 0}})


def test_a_section_of_a_package_that_is_absent_or_broken_is_refused_by_name(shed: type[Work]) -> None:
    assert sections.refusal("work.gone") == "`work.gone` needs the package plinth_shed, which is not installed"
    assert "the section 'work.nails' of acme-nails 2.0 cannot be imported" in sections.refusal("work.nails")
    assert sections.refusal("work.polish") == sections.refusal("work.nowhere") == ""
    assert set(sections.extended("work")(Work).model_fields) == {"hours", "polish", "oil", "wax"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("work.hours", "the section 'work.hours' has the same key as a parameter of Plinth"),
        ("wrok.extra", "the section 'wrok.extra' is below wrok, which accepts no sections"),
        ("work._x", "the section 'work._x' of acme-extra 2.0 cannot be imported"),
    ],
)
def test_a_section_that_no_model_can_take_is_named_and_changes_nothing(site: Site, name: str, why: str) -> None:
    module = "extra_" + name.partition(".")[2]
    site.module(f"{module}.py", MODULE.replace("work.polish", name))
    site.install("acme-extra", name, f"{module}:POLISH", "plinth.sections")
    assert set(sections.extended("work")(Work).model_fields) == {"hours"}
    assert sections.refusal(name).startswith(why)
    assert name not in {section.name for section in sections.SECTIONS.usable()}


def test_a_section_whose_first_import_failed_is_refused_with_that_reason(site: Site) -> None:
    once = "import builtins\nif not hasattr(builtins, 'tried'):\n    builtins.tried = 1\n    raise ImportError('first')"
    once += "\n"
    site.module("second_try.py", once + MODULE)
    site.install("acme-late", "work.polish", "second_try:POLISH", "plinth.sections")
    sections.extended("work")(Work)
    assert "first" in str(sections.SECTIONS._left_out["work.polish"].found)
    assert "cannot be imported" in sections.refusal("work.polish")


def test_an_extended_model_can_be_pickled_under_its_own_name() -> None:
    from plinth.evaluation.parameters import Evaluation

    assert pickle.loads(pickle.dumps(Evaluation())) == Evaluation()


def test_a_recipe_that_needs_an_absent_package_is_told_which(site: Site, tmp_path: Path) -> None:
    site.install("plinth", "evaluation.gone", "plinth_shed:GONE", "plinth.sections")
    (tmp_path / "own.yaml").write_text("evaluation:\n  gone: {}\n  missing: {}\n")
    _, problems = check(tmp_path / "own.yaml")
    told = "\n".join(map(str, problems))
    assert "evaluation.gone: `evaluation.gone` needs the package plinth_shed, which is not installed\n" in told
    assert "evaluation.missing: unknown key" in told
