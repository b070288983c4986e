"""Profiles: their guarantees, their expansion into rules, and their settings in the recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.corpus import annotate
from plinth.corpus.annotate.base import annotator
from plinth.corpus.curate import apply_edits
from plinth.corpus.policy import policy as stage
from plinth.corpus.policy.compiled_policy import columns_of, compile_policy
from plinth.corpus.policy.expressions import parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.profiles import PROFILES, profile, resolved
from plinth.errors import RecipeError
from plinth.recipe import column_checks
from plinth.storage.parts import EDIT_TYPE, read_table
from tests.agreement.released import FILTERS
from tests.rights import MIT

ROOT = Path(__file__).parents[5]
RESULTS = ROOT / "tests" / "benchmarks" / "results" / "agreement.json"
RELEASED = RESULTS.with_name("agreement_released.json")


def policy(**given: Any) -> Policy:
    """As a recipe file is read."""
    return Policy.model_validate_json(json.dumps(given), strict=True)


@pytest.mark.parametrize("name", PROFILES)
def test_rules_read_and_rest_on_the_annotators_they_name(name: str) -> None:
    chosen = PROFILES[name]
    assert chosen.name == name
    assert chosen.source
    assert chosen.version
    types = columns_of(tuple(chosen.annotators))
    used = {column.split(".")[0] for reason, drop in chosen.rules for column in parse(drop, types, reason).columns}
    used |= {spans.split(".")[0] for _, spans in chosen.edits}
    assert used == set(chosen.annotators)
    assert all(types[spans] == EDIT_TYPE for _, spans in chosen.edits)
    for needed, params in chosen.annotators.items():
        annotator(needed).params(**params)
    assert len({reason for reason, _ in chosen.rules}) == len(chosen.rules)


@pytest.mark.parametrize("name", FILTERS)
def test_profiles_of_datatrove_were_run_beside_it_as_released(name: str) -> None:
    """Measured by tests/benchmarks/bench_agreement.py."""
    made = json.loads(RELEASED.read_text())
    assert sum(made["documents"].values()) >= 5000
    assert len(made["documents"]) >= 6
    entry = made["profiles"][name]
    assert entry["verdicts"] >= 0.99
    assert min(entry["styles"].values()) >= 0.99
    assert 0 < entry["kept"] < sum(made["documents"].values())


#: For datatrove with its splitters by language, whose words differ, see tests/benchmarks/bench_languages.py.
LANGUAGES = {"fineweb2/scripts", "fineweb/languages"}


@pytest.mark.parametrize("name", sorted(set(PROFILES) - set(FILTERS) - LANGUAGES))
def test_every_profile_was_run_beside_its_project(name: str) -> None:
    """Measured by tests/agreement/compare.py. No verdict differs, so nothing is left to explain."""
    entry = json.loads(RESULTS.read_text())[name]
    assert entry["documents"] >= 5000
    assert entry["peer"]
    assert entry["verdicts"] == 1.0
    assert entry["apart"] == {}
    assert entry["dropped"], "documents that are all kept prove nothing"
    assert sum(entry["dropped"].values()) < entry["documents"]
    if PROFILES[name].edits:
        assert entry["pages"] == 1.0
        assert entry["pages_compared"] > 1000


def test_rules_of_profiles_come_first_in_order() -> None:
    made = policy(profiles=["fineweb/datatrove", "c4/fineweb"], rules=[{"reason": "own", "drop": "x.y > 1"}])
    assert [rule.reason for rule in made.rules] == [
        "unended_lines", "short_lines", "duplicate_characters", "list_like",
        "too_few_sentences", "lorem_ipsum", "curly_bracket", "own",
    ]  # fmt: skip
    assert made.edits == ()
    assert [edit.spans for edit in policy(profiles=["c4/dclm"]).edits] == ["c4_lines.cuts"]


def test_reasons_that_two_profiles_share_are_told_apart() -> None:
    made = policy(profiles=["c4/datatrove", "c4/dclm", "gopher/datatrove", "gopher/redpajama"])
    reasons = [rule.reason for rule in made.rules]
    assert len(set(reasons)) == len(reasons)
    assert reasons[:3] == ["too_few_sentences", "lorem_ipsum", "curly_bracket"]
    assert "c4_lorem_ipsum" in reasons
    assert "gopher_top_2_gram" in reasons
    thrice, _ = resolved(["gopher/datatrove", "gopher/dolma", "gopher/redpajama"], (), ())
    assert ("gopher_redpajama_bullets", "redpajama.bullet_lines > 0.9") in thrice
    again, _ = resolved(["dolma/1.6", "c4/paper", "c4/paper"], (), ())
    assert len(again) == len(profile("dolma/1.6").rules) + len(profile("c4/paper").rules)


def test_an_own_rule_takes_the_place_of_one_with_its_reason() -> None:
    made = policy(
        profiles=["fineweb/datatrove"], rules=[{"reason": "short_lines", "drop": "fineweb.short_lines > 0.9"}]
    )
    assert [(rule.reason, rule.drop) for rule in made.rules][1] == ("short_lines", "fineweb.short_lines > 0.9")
    assert len(made.rules) == 4


def test_a_rule_on_other_columns_stays_beside_the_profile_s() -> None:
    """As when a recipe inherits rules of datatrove's counting and names Dolma's profile."""
    inherited = {"reason": "too_few_words", "drop": "gopher_quality.word_count < 50"}
    made = policy(profiles=["gopher/dolma"], rules=[inherited])
    assert (made.rules[0].reason, made.rules[0].drop) == ("gopher_too_few_words", "gopher_dolma.word_count < 50")
    assert (made.rules[-1].reason, made.rules[-1].drop) == tuple(inherited.values())
    assert len(made.rules) == len(profile("gopher/dolma").rules) + 1
    assert Policy.model_validate_json(made.model_dump_json(), strict=True) == made


def test_what_is_resolved_stays_as_it_is() -> None:
    made = policy(profiles=["gopher/dolma", "c4/paper", "gopher/datatrove"], rules=[{"reason": "a", "drop": "x.y > 1"}])
    assert Policy.model_validate(made.model_dump(mode="json")) == made
    assert Policy.model_validate_json(made.model_dump_json(), strict=True) == made
    assert set(compile_policy(policy(profiles=["gopher/dolma"]), ("gopher_dolma",)).sidecars) == {"gopher_dolma"}


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="no profile 'gopher/dolmo'") as error:
        profile("gopher/dolmo")
    assert error.value.remedy == "did you mean 'gopher/dolma'?"
    with pytest.raises(ValueError, match="did you mean 'gopher/dolma'"):
        policy(profiles=["gopher/dolmo"])


def problems(annotate: dict[str, Any], *profiles: str) -> list[Any]:
    data = {"annotate": annotate, "policies": {"default": {"profiles": list(profiles)}}}
    found = column_checks.problems_of_columns({"corpus": data})
    return [one for one in found if one[0][-2:-1] == ("profiles",)]


def test_missing_annotators_are_named_with_what_to_write() -> None:
    ((where, what, hint),) = problems({"language": {}}, "c4/dclm")
    assert where == ("corpus", "policies", "default", "profiles", 0)
    assert what == "c4/dclm needs the annotator `c4_lines`, which is not in `corpus.annotate`"
    assert hint == 'add `c4_lines: {profile: "dclm"}` to corpus.annotate'
    added = yaml.safe_load(hint.split("`")[1])
    assert problems(added, "c4/dclm") == []


def test_another_counting_than_the_project_has_is_named() -> None:
    assert problems({"c4": {"terminal_punctuation": False}}, "c4/fineweb") == []
    ((where, what, _),) = problems({"c4": {"terminal_punctuation": False}}, "fineweb/datatrove", "c4/datatrove")[1:]
    assert where[-1] == 1
    assert what == "c4/datatrove needs `corpus.annotate.c4.terminal_punctuation` = True, found False"


def test_the_default_policy_is_a_profile_written_out() -> None:
    """Rules of a recipe replace them all, as lists do, and opt-outs come first."""
    base = yaml.safe_load((ROOT / "jobs" / "plinth_jobs" / "recipes" / "base.yaml").read_text())["corpus"]
    rules, edits = resolved(["fineweb/languages"], (), ())
    written = [(rule["reason"], rule["drop"]) for rule in base["policies"]["default"]["rules"]]
    assert written[0][0] == "opted_out"
    assert written[1:] == list(rules)
    assert edits == ()
    assert problems(base["annotate"], "gopher/datatrove", "c4/fineweb", "fineweb/pipeline", "fineweb/languages") == []


def test_english_is_judged_by_fineweb_s_rules_alone() -> None:
    """Scores of other languages are missing there, and nothing compares with what is missing."""
    rules, english = profile("fineweb/languages").rules, dict(profile("fineweb/pipeline").rules)
    assert [reason for reason, _ in rules][: len(english) + 1] == ["language", *english]
    for reason, drop in rules[1:]:
        stated, _, other = drop.partition(" or fineweb2.")
        expected = f"language.label in ['en', 'eng_Latn'] and ({english[reason]})" if reason in english else drop
        assert (stated if reason in english else drop) == expected
        assert other or reason in english or "fineweb2." in drop or "c4." in drop


def test_one_rule_of_a_recipe_names_the_languages_that_are_wanted() -> None:
    """The language rule comes first, so it is the reason for all unwanted documents."""
    wanted = "not language.accepted or language.label not in ['en', 'ja']"
    made = policy(profiles=["fineweb/languages"], rules=[{"reason": "language", "drop": wanted}])
    assert (made.rules[0].reason, made.rules[0].drop) == ("language", wanted)
    assert len(made.rules) == len(profile("fineweb/languages").rules)


def test_a_profile_goes_through_the_line(tiny: Any) -> None:
    """Annotated, judged with the profile's reasons, and its lines cut out of what is kept."""
    page = (
        "Menu\nHere is a first sentence of five.\nAnd one that is about the sea.\nThe last of them is here now.\nShare"
    )
    texts = [page, page.replace("Menu", "Menu { }") + "\nSome more of {this} and of that.", "Too short."]
    corpus = tiny.corpus({"web": [[tiny.Doc(text) for text in texts]]})
    sidecar = annotate.run(tiny.ctx, "web", "c4_lines", {"profile": "dclm"}, corpus.documents["web"])
    made = stage.run(tiny.ctx, "web", policy(profiles=["c4/dclm"]), corpus.documents["web"], {"c4_lines": sidecar}, MIT)
    rows = read_table(tiny.ctx.store, made.parts[0]).to_pylist()
    assert [row["reason"] for row in rows] == [None, "curly_bracket", "too_few_sentences"]
    assert {edit["reason"] for edit in rows[0]["edits"]} == {"c4_line"}
    left = apply_edits(page, rows[0]["edits"])
    assert left.split("\n")[0] == "Here is a first sentence of five."
    assert "Menu" not in left
    assert "Share" not in left
