"""The held-out set of a workspace that grows: the asset begins with what is published."""

import random
from pathlib import Path

from plinth.compute.context import Context
from plinth.corpus.protected.parameters import Holdout
from plinth.storage.workspace import Workspace
from plinth_assets import verdicts as asset
from plinth_assets.dedup import survivors
from plinth_jobs.recipes import load
from tests.plinth.corpus.conftest import Corpus, Doc

RECIPE = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


def texts(stem: str, count: int) -> list[Doc]:
    picks = random.Random(stem)
    return [Doc(f"{stem}{i} " + " ".join(str(picks.randrange(10**6)) for _ in range(9))) for i in range(count)]


def test_the_held_out_of_every_publication_stay_in_the_next(tmp_path: Path) -> None:
    params, ctx = Holdout(fraction=0.2, max_documents=3), Context(Workspace(tmp_path).ensure())
    recipe = load(RECIPE)
    recipe = recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"holdout": params})})
    (stage,) = asset.holdout_stages(recipe)
    docs = {name: texts(name, 30) for name in recipe.corpus.buckets}
    kept: set[bytes] = set()
    for more in (0, 40, 80):
        corpus = Corpus(ctx, {name: [own, texts(f"{name}-more", more)] for name, own in docs.items()})
        inputs = {f"{name}/documents": one for name, one in corpus.documents.items()}
        made = stage.make(ctx, {**inputs, survivors(recipe): corpus.through_near()}, print)
        ctx.refs.publish(made, key=str(more))
        found = {identity for identity, row in corpus.rows(made).items() if row["held_out"]}
        assert found >= kept
        kept = found
    assert len(kept) > 3 * len(docs)
