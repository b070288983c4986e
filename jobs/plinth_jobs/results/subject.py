"""The subject of a results page: one candidate, else one checkpoint, else one corpus; and the manifests of it alone.

A page's file and title name its subject, so that a later candidate never overwrites or mixes into an earlier page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.provenance.impact.descendants import downstream
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_registry.candidate import model_name

#: Characters of a digest in a file's name.
DIGITS = 12
#: File names of results pages of all recipes; the index orders them by the candidate's version.
FILE = re.compile(r".+-(?:candidate-(?P<version>\d+)|checkpoint-[0-9a-f]{12}|corpus-[0-9a-f]{12})\.html")


class Subject(NamedTuple):
    """One candidate, checkpoint or corpus: `name` as in its file, `title` for people, `version` of a candidate."""

    name: str
    title: str
    funnel: Manifest | None
    mixture: Manifest | None = None
    run: Manifest | None = None
    checkpoint: Manifest | None = None
    evaluation: Manifest | None = None
    version: str | None = None


def newest(ctx: Context, recipe: Recipe) -> Subject:
    """The published candidate; the published checkpoint where that is another one's; the corpus where there is neither.

    Raises:
        MissingError: the funnel has not been made yet.
    """
    checkpoint, made = ctx.refs.published("checkpoint"), ctx.refs.published("candidate")
    if made is not None and (checkpoint is None or made.inputs["checkpoint"] == checkpoint.digest):
        return _candidate(ctx, made)
    if checkpoint is None:
        return _corpus(ctx)
    evaluation = ctx.refs.published("evaluation")
    own = evaluation is not None and checkpoint.digest in evaluation.inputs.values()
    return _trained(ctx, checkpoint, evaluation if own else None)


def of_candidate(ctx: Context, recipe: Recipe, version: str) -> Subject:
    """A candidate that was registered from this workspace.

    Raises:
        MissingError: no manifest of such a candidate is here.
    """
    for made in _candidates(ctx, recipe):
        if made.stats["version"] == version:
            return _candidate(ctx, made)
    raise MissingError(
        f"no manifest of candidate {version} of {recipe.name} is in this workspace",
        remedy="`plinth release log` lists candidates; the workspace that registered it can write its page",
    )


def file_name(recipe: Recipe, subject: str) -> str:
    """The file of the page of a subject, by its name."""
    return f"{recipe.name}-{subject}.html"


def candidate_name(version: str) -> str:
    """The name of a candidate as a subject."""
    return f"candidate-{version}"


def _candidates(ctx: Context, recipe: Recipe) -> Iterator[Manifest]:
    """Every saved manifest of a candidate of the recipe's release, the published one first."""
    published = ctx.refs.published("candidate")
    known = {published.digest: None} if published else {}
    known |= {one.digest: None for one in downstream(ctx, ["candidate"])
              if one.asset == "candidate" and one.state != "deleted"}  # fmt: skip
    found = (ctx.refs.load(digest) for digest in known)
    yield from (made for made in found if made.stats["model"] == model_name(recipe))


def _candidate(ctx: Context, made: Manifest) -> Subject:
    version = str(made.stats["version"])
    checkpoint, evaluation = (ctx.refs.load(made.inputs[name]) for name in ("checkpoint", "evaluation"))
    about = _trained(ctx, checkpoint, evaluation)
    return about._replace(name=candidate_name(version), title=f"candidate {version}", version=version)


def _trained(ctx: Context, checkpoint: Manifest, evaluation: Manifest | None) -> Subject:
    run = ctx.refs.load(checkpoint.inputs["run"])
    mixture = ctx.refs.load(run.inputs["mixture"])
    return Subject(
        name=f"checkpoint-{checkpoint.digest[:DIGITS]}",
        title=f"checkpoint {checkpoint.digest[:DIGITS]}",
        funnel=_funnel(ctx, mixture),
        mixture=mixture,
        run=run,
        checkpoint=checkpoint,
        evaluation=evaluation,
    )


def _corpus(ctx: Context) -> Subject:
    funnel = ctx.refs.current("funnel")
    mixture = funnel.inputs.get("mixture")
    name = funnel.digest[:DIGITS]
    return Subject(f"corpus-{name}", f"corpus {name}", funnel, ctx.refs.load(mixture) if mixture else None)


def _funnel(ctx: Context, mixture: Manifest) -> Manifest | None:
    """The account of the corpus that a mixture draws from; None where none was made, or it is gone."""
    published = ctx.refs.published("funnel")
    if published is not None and published.inputs.get("mixture") == mixture.digest:
        return published
    for one in downstream(ctx, [mixture.digest]):
        if one.asset == "funnel" and one.state != "deleted":
            return ctx.refs.load(one.digest)
    return None
