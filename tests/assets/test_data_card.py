"""What the data card says of recipes: nothing that is off is called screened."""

from pathlib import Path

from assets import data_card
from jobs.recipes import load

ROOT = Path(__file__).parents[2]


def states(path: Path) -> dict[str, str]:
    recipe = load(path)
    buckets = list(recipe.corpus.buckets)
    return {one.subject: one.state(buckets) for one in data_card._screenings(recipe, {})}


def test_what_tiny_screens_for() -> None:
    assert states(ROOT / "jobs" / "recipes" / "tiny.yaml") == {
        "licences and terms": "screened",
        "illegal content": "not screened",
        "toxicity": "not screened",
        "personal data": "screened",
        "learned quality": "not screened",
    }


def test_a_gate_that_one_bucket_lacks_is_named() -> None:
    found = states(ROOT / "tests" / "web.yaml")
    assert found["toxicity"] == found["learned quality"] == "not screened in reference"


def test_scores_that_drop_nothing_screen_nothing(tmp_path: Path) -> None:
    """The annotator alone is no gate."""
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
