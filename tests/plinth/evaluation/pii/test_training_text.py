"""Personal data planted in training text is counted exactly, by bucket and kind; what was replaced is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.evaluation import pii
from plinth.evaluation.pii import PiiDetector, needs
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_assets.measurements import pii_stage
from tests.peers import Peer

scipy_stats = Peer("scipy.stats")

IBAN = "DE89370400440532013000"
PLANTED = [
    "Write to ada.lovelace@firma.de or to grace@navy.mil about the engine.",
    "Call me on +49 30 901820 tomorrow, or write to ada.lovelace@firma.de instead.",
    f"The rent goes to the account {IBAN} on the first day of every month.",
    "The host answers at 93.184.216.34 since the morning.",
]
CLEAN = ["The quiet garden was painted.", "Replaced by <EMAIL> and <PHONE> before.", "Version 1.2.3.4."]
CHECKPOINT = Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=())


def counted(ctx: Context, curated: dict[str, Manifest], **given: Any) -> Manifest:
    return pii.run(ctx, CHECKPOINT, curated, PiiDetector(given, {}))


def test_what_is_planted_is_counted_by_bucket_and_kind(ctx: Context, curated: Callable[..., Manifest]) -> None:
    held_out = ["Only held out: eve@held.org"]
    text = {"web": curated("web", [*PLANTED, *CLEAN], held_out), "code": curated("code", CLEAN)}
    made = counted(ctx, text)
    assert (made.stats["documents"], made.stats["found"]) == (10, 4)
    kinds = {kind: (one["documents"], one["spans"]) for kind, one in made.stats["kinds"].items() if one["spans"]}
    assert kinds == {"email": (2, 3), "ip": (1, 1), "phone": (1, 1), "iban": (1, 1)}
    web, code = made.stats["buckets"]["web"], made.stats["buckets"]["code"]
    assert (web["documents"], web["found"], code["documents"], code["found"]) == (7, 4, 3, 0)
    assert web["per_million"] == pytest.approx(4e6 / 7)
    assert web["kinds"]["email"]["per_million_at_most"] == pytest.approx(1e6 * scipy_stats.beta.ppf(0.95, 3, 5))
    assert code["at_most"] == pytest.approx(1 - 0.05 ** (1 / 3))
    assert made.stats["detector"]["annotator"] == "pii"
    rows = [row for part in made.named("web/") for row in read_table(ctx.store, part).to_pylist()]
    texts = {row["uri"]: PLANTED[int(row["uri"].rpartition("/")[2])] for row in rows}
    found = [(row["rule"].partition("/")[0], texts[row["uri"]][row["start_cp"] : row["end_cp"]]) for row in rows]
    assert ("iban", IBAN) in found
    assert ("email", "grace@navy.mil") in found
    assert len(found) == 6
    assert set(made.inputs) == {"checkpoint", "web/curated", "code/curated"}
    assert counted(ctx, text) == made
    words = pii_stage.section("", made.stats).tables[0].rows
    assert [row[:3] for row in words] == [("code", "3", "0"), ("web", "7", "4"), ("all", "10", "4")]


def test_kinds_that_the_recipe_leaves_out_are_counted_all_the_same(
    ctx: Context, curated: Callable[..., Manifest]
) -> None:
    made = counted(ctx, {"web": curated("web", PLANTED)}, kinds=("email", "private_ip"))
    assert made.stats["kinds"]["iban"]["documents"] == 1
    assert made.stats["kinds"]["private_ip"]["documents"] == 0


def test_the_replacements_of_the_recipe_are_no_personal_data(ctx: Context, curated: Callable[..., Manifest]) -> None:
    text = {"web": curated("web", ["Write to email@removed.org, or to ada@firma.de.", "Only email@removed.org here."])}
    assert counted(ctx, text).stats["found"] == 2
    own = counted(ctx, text, replacements={"email": "email@removed.org"})
    assert (own.stats["found"], own.stats["kinds"]["email"]["spans"]) == (1, 1)


def test_text_of_nothing_has_no_limit(ctx: Context, curated: Callable[..., Manifest]) -> None:
    made = counted(ctx, {"web": curated("web", [])})
    assert (made.stats["documents"], made.stats["at_most"]) == (0, None)
    assert pii_stage.section("", made.stats).tables[0].rows[-1] == ("all", "0", "0", "-", "none")


def test_a_pipeline_of_names_is_read_and_a_wrong_parameter_refused() -> None:
    assert needs({}) == ()
    assert needs({"ner": "people"}) == ("lists/people",)
    assert PiiDetector({"ner": "people"}, {}).kinds[-2:] == ("name", "address")
    with pytest.raises(RecipeError, match="kindz"):
        PiiDetector({"kindz": []}, {}).kinds  # noqa: B018 - reading it validates
