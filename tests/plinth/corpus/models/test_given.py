"""A model given as its files: scores as the one it is a copy of, no text read again, refusals."""

import hashlib
import random
from typing import Any

import pytest

from plinth.corpus import lists, models
from plinth.corpus.annotate.stage import run as annotate
from plinth.errors import IntegrityError, RecipeError
from plinth.storage import dvc


def prose(rng: random.Random) -> str:
    words = ["dog", "cat", "bird", "sees", "likes", "finds", "the", "old", "red"]
    return "\n".join(" ".join(rng.choices(words, k=7)) + "." for _ in range(15))


def test_a_model_that_is_given_scores_old_text_from_the_cache_and_new_text_alone(tiny: Any) -> None:
    rng, ctx = random.Random(1), tiny.ctx
    parts = [[tiny.Doc(prose(rng), name=f"{p}-{d}") for d in range(30)] for p in range(3)]
    before, after = tiny.corpus({"web": parts[:2]}).documents["web"], tiny.corpus({"web": parts}).documents["web"]
    raw = {"kind": "ngram", "reference": ["web"], "vocabulary": 500, "prune": [0, 0, 0, 0]}
    learnt = models.train(ctx, "perplexity", raw, {"web": before}, {})
    old = annotate(ctx, "web", "perplexity", {}, before, {"models/perplexity": learnt})

    dvc.checkout(ctx.store, learnt.parts, ctx.workspace.input / "kept")
    files = {"kept": lists.run(ctx, "kept", "kept")}
    kept = models.train(ctx, "perplexity", {"kind": "given", "files": "kept", "of": "ngram"}, {}, files)
    assert {part.name: part.blob for part in kept.parts} == {part.name: part.blob for part in learnt.parts}
    assert kept.stats["order"] == 4
    lines = "".join(f"{part.blob.sha256}  {part.name}\n" for part in sorted(kept.parts, key=lambda part: part.name))
    digest = hashlib.sha256(lines.encode()).hexdigest()  # what `sha256sum * | sha256sum` prints in the folder
    named = {"kind": "given", "files": "kept", "of": "ngram", "sha256": digest}
    assert models.train(ctx, "perplexity", named, {}, files).parts == kept.parts
    with pytest.raises(IntegrityError, match="do not match the digest"):
        models.train(ctx, "perplexity", {**named, "sha256": "0" * 64}, {}, files)

    ctx.store.open_path(before.parts[0].blob).unlink()  # any reader of old text now fails
    new = annotate(ctx, "web", "perplexity", {}, after, {"models/perplexity": kept})
    assert [part.blob for part in new.parts[:2]] == [part.blob for part in old.parts]
    assert new.stats["documents"] == 90

    again = models.train(ctx, "perplexity", raw, {"web": after.model_copy(update={"parts": after.parts[1:]})}, {})
    assert again.parts != learnt.parts  # learned again it would be another

    with pytest.raises(IntegrityError, match="models/quality cannot be used"):
        models.train(ctx, "quality", {"kind": "given", "files": "kept", "of": "classifier"}, {}, files)
    with pytest.raises(RecipeError, match=r"corpus\.models\.perplexity\.files"):
        models.parameters("perplexity", {"kind": "given", "of": "ngram"})
