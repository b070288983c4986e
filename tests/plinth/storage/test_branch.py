"""A branch of a workspace: references of its own, everything else in common."""

from pathlib import Path

from plinth.compute.context import Context, manifest
from plinth.records import Step
from plinth.storage.workspace import Workspace


def test_a_branch_publishes_for_itself_and_shares_what_was_made(tmp_path: Path) -> None:
    space = Workspace(tmp_path).ensure()
    whole, branch = Context(space), Context(space.branch("words/plain/one-s1"))
    made = manifest("web/documents", Step(name="documents", version="1"), {}, [whole.store_json("a.json", {"a": 1})])
    branch.refs.publish(made, "key")
    branch.cache.put("0" * 64, made.parts)
    assert whole.refs.ref("web/documents") is None
    assert list(whole.refs.all()) == []
    assert [ref.asset for ref in Context(space.branch("words/plain/one-s1")).refs.all()] == ["web/documents"]
    assert Context(space.branch("words/plain/one-s2")).refs.ref("web/documents") is None
    assert whole.refs.load(made.digest) == made
    assert whole.cache.get("0" * 64) == made.parts
    assert branch.workspace.trust_folder == space.trust_folder
