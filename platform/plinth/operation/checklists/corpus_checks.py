"""Lines about the text: somebody answers for each source; what must not be trained on is set aside and looked for."""

from __future__ import annotations

from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed, undetermined, warned
from plinth.operation.checklists.scope import CheckScope

#: Words in place of a licence.
_NO_LICENCE = ("noassertion", "none", "unknown", "other", "todo", "tbd")
#: Domains that nobody can be reached in (RFC 2606, RFC 6761).
_NOBODY = (".invalid", ".test")


def sources_owned(scope: CheckScope) -> CheckAnswer:
    """Every bucket has an owner who can be reached, every source a licence."""
    if scope.recipe is None:
        return undetermined("no recipe was run in this workspace")
    buckets = scope.recipe.corpus.buckets
    found = [f"{name}: owner {one.owner}" for name, one in buckets.items() if one.owner.lower().endswith(_NOBODY)]
    found += [
        f"{name}/{index}: licence {source.licence}"
        for name, bucket in buckets.items()
        for index, source in enumerate(bucket.sources)
        if source.licence.lower() in _NO_LICENCE
    ]
    owners = sorted({one.owner for one in buckets.values()})
    sources = sum(len(one.sources) for one in buckets.values())
    return failed("; ".join(found)) if found else passed(f"{sources} sources of {', '.join(owners)}")


def terms_allow(scope: CheckScope) -> CheckAnswer:
    """The owner's terms of every source allow training, and the uses that the recipe asks for."""
    if scope.recipe is None:
        return undetermined("no recipe was run in this workspace")
    corpus = scope.recipe.corpus
    found = [
        f"{name}/{index}: no {use}"
        for name, bucket in corpus.buckets.items()
        for index, source in enumerate(bucket.sources)
        for use in ("train", *corpus.uses)
        if not getattr(source.terms, use)
    ]
    return failed("; ".join(found)) if found else passed(f"train{''.join(f', {use}' for use in corpus.uses)}")


def set_aside(scope: CheckScope) -> CheckAnswer:
    """A held-out set is published, and training text was compared with it."""
    if scope.recipe is not None and scope.recipe.mixture is None:
        return not_applicable("the recipe trains nothing")
    absent = [asset for asset in ("holdout", "contamination") if scope.ctx.refs.ref(asset) is None]
    if absent:
        return failed(f"not made: {', '.join(absent)}")
    held = scope.ctx.refs.current("holdout").stats["held_out"]  # its rows are all documents, held out or not
    return passed(f"{held:,} documents; overlap counted") if held else failed("no document is held out")


def benchmarks_protected(scope: CheckScope) -> CheckAnswer:
    """Benchmarks are kept out of training text."""
    if scope.recipe is None or scope.recipe.mixture is None:
        return not_applicable("no recipe that trains")
    sets = scope.recipe.corpus.protected.sets
    if not sets:
        return warned("corpus.protected.sets names no benchmark: scores on any may be of memory")
    return passed(", ".join(sets))


CHECKS = (
    Check(
        "sources-owned", "every source has a licence, and an owner who can be reached", "data",
        ("preproduction", "readiness"), "name licence and owner in corpus.buckets", sources_owned,
    ),
    Check(
        "terms", "the terms of every source allow what the recipe does with it", "data", ("preproduction",),
        "take the source out, or agree other terms with its owner", terms_allow,
    ),
    Check(
        "held-out", "a held-out set exists, and training text was compared with it", "data",
        ("preproduction", "readiness"), "`plinth run --select contamination`", set_aside,
    ),
    Check(
        "benchmarks-protected", "benchmarks are named, so that their text is dropped", "evaluation",
        ("preproduction",), "name them in corpus.protected.sets (docs/contamination.md)", benchmarks_protected,
    ),
)  # fmt: skip
