"""All descendants of an item."""

from typing import Any

import pytest

from plinth.errors import IntegrityError
from plinth.provenance.impact import downstream
from plinth.provenance.lineage import walk


def test_a_bucket_reaches_the_release_but_not_its_neighbours(line: Any) -> None:
    found = downstream(line.ctx, [line.made["code/curated"].digest])
    assets = [each.asset for each in found]
    assert assets[0] == "code/curated"
    assert set(assets) == {
        "code/curated", "tokenizer", "code/shards", "prose/shards", "mixture", "run", "checkpoint", "evaluation"
    }  # fmt: skip
    assert [each.steps for each in found] == sorted(each.steps for each in found)
    assert {each.asset: each.steps for each in found}["mixture"] == 2


def test_a_source_reaches_all_that_was_made_of_it(line: Any) -> None:
    assets = {each.asset for each in downstream(line.ctx, ["5" * 64])}
    assert assets == set(line.made)


def test_agrees_with_the_walk_from_the_other_end(line: Any) -> None:
    for origin in ("prose/documents", "tokenizer", "run"):
        digest = line.made[origin].digest
        reached = {each.digest for each in downstream(line.ctx, [digest])}
        for made in line.made.values():
            assert (digest in walk(line.ctx, made.digest).digests) == (made.digest in reached)


def test_an_asset_means_every_saved_version_of_it(line: Any) -> None:
    old = line.made["run"]
    line.publish("run", (), dict(old.inputs), version="2")
    by_digest = {each.digest: each for each in downstream(line.ctx, ["run"])}
    assert {each.asset for each in by_digest.values()} == {"run", "checkpoint", "evaluation"}
    assert by_digest[old.digest].state == "saved"
    assert by_digest[line.made["run"].digest].state == "published"


def test_nothing_is_made_of_what_nobody_has(line: Any) -> None:
    assert downstream(line.ctx, ["0" * 64, "no/asset"]) == ()


def test_a_manifest_that_cannot_be_read_is_not_passed_over(line: Any) -> None:
    (line.ctx.workspace.manifests / f"{line.made['run'].digest}.json").write_bytes(b"{")
    with pytest.raises(IntegrityError, match="has changed"):
        downstream(line.ctx, ["5" * 64])
