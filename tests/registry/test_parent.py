"""A model that began or learned from another: proved through it, frozen with it, and its own text told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, SignatureError
from plinth.records import Manifest
from plinth.storage.state import Refs
from plinth.training.parameters.initial import InitialWeights
from plinth_assets import initial
from plinth_registry import candidate, taint
from plinth_registry.evidence import _trained_on
from plinth_registry.registration import _child_of
from plinth_registry.verified import verify_model
from tests.registry.conftest import moved, sign_candidate


def chain_of(ctx: Context, line: Any) -> Any:
    return candidate.ancestry(ctx, line.checkpoint.digest, line.evaluation.digest)


def outside(ctx: Context) -> Manifest:
    """Publish weights from an external source."""
    made = Manifest(asset="weights", step="weights", version="1", params={}, inputs={}, parts=())
    ctx.refs.save(made)
    return made


@pytest.mark.parametrize("use", ["initial", "teacher"])
def test_the_walk_goes_through_the_parent(ctx: Context, make_line: Any, use: str) -> None:
    parent = make_line(1)
    child = make_line(2, parent.checkpoint, use)
    chain = chain_of(ctx, child)
    assert {parent.checkpoint.digest, parent.documents.digest, child.documents.digest} <= chain.digests
    assert chain.data_versions["web/curated"] == child.curated.digest  # of two of that name, its own
    assert _trained_on(chain) == {child.curated.digest}
    behind = f"web/documents.{parent.documents.digest[:8]}:web/sources"
    assert set(chain.sources) == {"web/documents:web/sources", behind}
    proved = verify_model(ctx, str(sign_candidate(ctx, child).directory))
    between = {"initial": 1, "teacher": 2}[use]  # the weights; the teacher, and its logits
    assert proved.manifests == len(chain_of(ctx, parent).links) + len(chain_of(ctx, make_line(3)).links) + between
    begun = {"parent": parent.checkpoint.digest, "digest": child.checkpoint.digest}
    assert _child_of(chain, child.checkpoint) == (begun if use == "initial" else {})


@pytest.mark.parametrize("use", ["initial", "teacher"])
@pytest.mark.parametrize("what", ["checkpoint", "tokenizer", "curated"])
def test_a_mark_on_the_parent_freezes_the_child(ctx: Context, make_line: Any, what: str, use: str) -> None:
    parent = make_line(1)
    child = make_line(2, parent.checkpoint, use)
    directory = str(sign_candidate(ctx, child).directory)
    assert verify_model(ctx, directory).checkpoint == child.checkpoint.digest
    record = taint.mark(ctx, getattr(parent, what).digest, "ada", "poisoned")
    assert child.checkpoint.digest in {one.digest for one in taint.affected(ctx, record)}
    with pytest.raises(GateError, match="is tainted by ada: poisoned"):
        verify_model(ctx, directory)


def test_a_document_of_the_parent_freezes_the_child(ctx: Context, make_line: Any) -> None:
    parent = make_line(1)
    child = make_line(2, parent.checkpoint)
    taint.mark(ctx, fingerprint.digest("also kept 1")[:32], "ada", "takedown")
    assert taint.marks_on(ctx, chain_of(ctx, child))[0].endswith("is tainted by ada: takedown")


def test_a_broken_link_of_the_parent_breaks_the_child(ctx: Context, make_line: Any) -> None:
    parent = make_line(1)
    directory = str(sign_candidate(ctx, make_line(2, parent.checkpoint)).directory)
    (saved,) = ctx.refs.saved(parent.curated.digest)
    Path(ctx.workspace.manifests, saved.name).unlink()
    fresh = Context(ctx.workspace)
    assert isinstance(fresh.refs, Refs)
    with pytest.raises(LineageError, match="web/curated"):
        verify_model(fresh, directory)


def test_a_release_is_proved_by_its_signed_history(ctx: Context, unregistered: Any, line: Any) -> None:
    moved(ctx, "champion", "1", unregistered.subjects)
    for target in ("demo@champion", "demo/1"):
        assert initial._release(ctx, target).digest == line.checkpoint.digest
        assert initial._meant(InitialWeights(release=target), ctx) == line.checkpoint.digest
    path = unregistered.directory / "config.json"
    path.chmod(0o644)
    path.write_text('{"layers":2}')
    with pytest.raises(SignatureError):
        initial._release(ctx, "demo@champion")


def test_weights_from_outside_are_a_source(ctx: Context, make_line: Any) -> None:
    weights = outside(ctx)
    child = make_line(2, weights)
    chain = chain_of(ctx, child)
    assert chain.sources[f"weights.{weights.digest[:8]}"] == weights.digest
    assert _child_of(chain, child.checkpoint) == {}
    taint.mark(ctx, weights.digest, "ada", "its licence was withdrawn")
    with pytest.raises(GateError, match="its licence was withdrawn"):
        verify_model(ctx, str(sign_candidate(ctx, child).directory))
