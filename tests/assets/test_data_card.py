"""Data card of a recipe: a filter that is off is never listed as screening."""

from pathlib import Path

from plinth.compute.context import manifest
from plinth.records import Step
from plinth_assets import candidate
from plinth_jobs.recipes import load

ROOT = Path(__file__).parents[2]


def states(path: Path) -> dict[str, str]:
    recipe = load(path)
    buckets = list(recipe.corpus.buckets)
    return {one.subject: one.state(buckets) for one in candidate._screenings(recipe, {})}


def test_what_tiny_screens_for() -> None:
    assert states(ROOT / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml") == {
        "licences and terms": "screened",
        "illegal content": "not screened",
        "protected sets": "screened",  # for the items of probes
        "opt-outs": "not screened in code",
        "toxicity": "not screened",
        "personal data": "screened",
        "learned quality": "not screened",
    }


def test_a_gate_that_one_bucket_lacks_is_named() -> None:
    found = states(ROOT / "tests" / "web.yaml")
    assert found["protected sets"] == "screened"
    assert found["toxicity"] == found["learned quality"] == "not screened in reference"


def test_scores_that_drop_nothing_screen_nothing(tmp_path: Path) -> None:
    """An annotator without a gate screens nothing."""
    path = tmp_path / "scored.yaml"
    path.write_text(
        f"extends: {ROOT / 'tests' / 'web.yaml'}\n"
        "corpus: {policies: {crawl: {rules: [{reason: a, drop: toxicity.lexicon_hits > 3}]}}, slices: {toxicity: null}}"
    )
    assert states(path)["toxicity"] == "not screened in reference"  # by the lexicon, in web
    path.write_text(
        f"extends: {ROOT / 'tests' / 'web.yaml'}\n"
        "corpus: {policies: {crawl: {rules: []}}, slices: {toxicity: null}}"
    )
    assert states(path)["toxicity"] == "not screened"


def test_ready_models_are_named_with_their_digests(tmp_path: Path) -> None:
    """Models appear in the row of their purpose, or in a row of their own."""
    (tmp_path / "ready.yaml").write_text(
        f"extends: {ROOT / 'jobs' / 'plinth_jobs' / 'recipes' / 'tiny.yaml'}\n"
        f"""
corpus:
  lists: {{jigsaw: jigsaw.bin}}
  models: {{jigsaw: {{kind: given, of: fasttext, files: jigsaw, sha256: {"ab" * 32}}}}}
  annotate:
    fasttext_toxicity: {{model: jigsaw}}
    fasttext_topic: {{model: jigsaw}}
    fasttext_seen: {{model: jigsaw}}
  reference_buckets: [web]
  policies:
    default:
      rules:
        - {{reason: toxic, drop: fasttext_toxicity.label == "toxic" and fasttext_toxicity.score > 0.5}}
        - {{reason: topic, drop: fasttext_topic.label == "spam"}}
"""
    )
    recipe = load(tmp_path / "ready.yaml")
    found = {one.subject: one for one in candidate._screenings(recipe, {})}
    buckets = list(recipe.corpus.buckets)
    for subject in ("toxicity", "ready model `fasttext_topic`"):
        assert found[subject].state(buckets) == "not screened in code"  # its policy has other rules
    assert found["toxicity"].evidence == ("ready model jigsaw, sha256 abababababab",)
    assert found["ready model `fasttext_seen`"].state(buckets) == "not screened"

    counts = {"documents": 400, "fired": 2, "bytes": 4000, "fired_bytes": 20}
    rules = recipe.corpus.policies["default"].rules
    row = {"rule": next(rule.drop for rule in rules if rule.reason == "toxic"), "buckets": {"web": counts}}
    measured = manifest("removal_rates", Step(name="removal_rates", version="1"), {}, [], {"rules": [row]})
    (card,) = (one for one in candidate._screenings(recipe, {"removal_rates": measured}) if one.subject == "toxicity")
    assert [one for one in card.evidence if one.startswith("removes of web")] == [card.evidence[-1]]  # reported once


def test_a_card_is_made_again_when_what_it_says_changes(tmp_path: Path) -> None:
    versions = set()
    for keys in ("", "description: Other.", "corpus: {reference_buckets: [code]}"):
        path = tmp_path / "one.yaml"
        path.write_text(f"extends: {ROOT / 'jobs' / 'plinth_jobs' / 'recipes' / 'tiny.yaml'}\n{keys}\n")
        (stage,) = candidate.card_stages(load(path))
        versions.add(stage.code_version)
    assert len(versions) == 3
