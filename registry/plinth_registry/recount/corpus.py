"""Claims about training text, and the proof of resume, counted again at promotion.

Text that trained stands in the checkpoint's own ancestry: a statement that was found out from other text, or left a
bucket out, is none about this checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from plinth.compute.context import Context
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.corpus.curate import claims
from plinth.errors import PlinthError
from plinth.provenance.statements import Chain
from plinth.records import Manifest
from plinth_registry.attestations import Attestation
from plinth_registry.recount.measurements import differences

CONTAMINATION: Final = "contamination"
#: Counted claims by the digests that they were counted from.
_KNOWN: dict[tuple[str, ...], Any] = {}


def faults(ctx: Context, stated: Mapping[str, Attestation], chain: Chain) -> dict[str, tuple[str, ...]]:
    """What is wrong with statements about training text, by piece of evidence; those without a fault are left out.

    Args:
        stated: valid attestations, by kind for these.
        chain: the ancestry of the checkpoint.
    """
    made: dict[str, Callable[[Context, Attestation], tuple[str, ...]]] = {
        "licences": _licences,
        CONTAMINATION: _contamination,
    }
    found = {}
    for kind, count in made.items():
        if (one := stated.get(kind)) is None:
            continue
        try:
            own = _of_this_ancestry(one, chain) or count(ctx, one)
        except PlinthError as error:
            own = (f"cannot be counted again: {error.what}",)
        except (KeyError, TypeError, ValueError) as error:
            own = (f"cannot be counted again: {type(error).__name__}: {error}",)
        if own:
            found[kind] = tuple(f"{kind}: {each}" for each in own)
    return found


def _of_this_ancestry(one: Attestation, chain: Chain) -> tuple[str, ...]:
    """Materials that the ancestry has in another version, or not at all though it was trained on."""
    versions = chain.data_versions
    other = [name for name, digest in sorted(one.materials.items()) if versions.get(name, digest) != digest]
    trained = (name for name in versions if name.endswith("/curated") and name != f"{CANARIES}/curated")
    lacking = [name for name in sorted(trained) if name not in one.materials]
    said = (f"counted on another {', '.join(other)} than was trained on",) if other else ()
    return (*said, f"not counted on {', '.join(lacking)}") if lacking else said


def _licences(ctx: Context, one: Attestation) -> tuple[str, ...]:
    curated, documents = (_by_bucket(ctx, one, stage) for stage in ("curated", "documents"))
    read = (*(made.digest for made in curated.values()), *(made.digest for made in documents.values()))
    counted = _once(
        ("licences", *read),
        lambda: {
            "documents": claims.licences(ctx.store, curated),
            "sources": claims.terms(ctx.store, documents, curated),
        },
    )
    return differences({name: one.facts[name] for name in ("documents", "sources")}, counted)


def _contamination(ctx: Context, one: Attestation) -> tuple[str, ...]:
    verdicts, compared = _by_bucket(ctx, one, "verdicts"), ctx.refs.load(one.materials[CONTAMINATION])
    curated = _by_bucket(ctx, one, "curated")
    if set(verdicts) != set(curated):
        return (f"verdicts of {', '.join(sorted(verdicts)) or 'no bucket'}, text of {', '.join(sorted(curated))}",)
    read = (compared.digest, *(made.digest for made in verdicts.values()), *(made.digest for made in curated.values()))
    counted = _once(
        (CONTAMINATION, *read),
        lambda: {
            "contaminated": claims.contaminated(ctx.store, verdicts, compared),
            "documents": sum(claims.licences(ctx.store, curated).values()),
        },
    )
    return differences({name: one.facts[name] for name in ("contaminated", "documents")}, counted)


def _by_bucket(ctx: Context, one: Attestation, stage: str) -> dict[str, Manifest]:
    return {
        name.removesuffix(f"/{stage}"): ctx.refs.load(digest)
        for name, digest in sorted(one.materials.items())
        if name.endswith(f"/{stage}") and name != f"{CANARIES}/{stage}"
    }


def _once(key: tuple[str, ...], count: Callable[[], Any]) -> Any:
    """Counted once in a process: manifests name their parts by digest."""
    if key not in _KNOWN:
        _KNOWN[key] = count()
    return _KNOWN[key]
