"""The chain of a checkpoint, its provenance, and the SLSA statement about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.errors import LineageError
from plinth.provenance.statements import Chain, Link, attempts_of, chain, provenance, slsa_statement
from plinth.recipe.recipe import Recipe
from plinth.records import Blob, Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.training.attempts import known, state, together
from plinth.training.directory import RunDirectory
from tests.training_host import HOST

SOURCE = "ab" * 32


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path).ensure())


@pytest.fixture
def recipe() -> Recipe:
    source = {
        "kind": "jsonl",
        "path": "/somewhere/on/this/machine.jsonl",
        "licence": "MIT",
        "terms": {"train": True, "redistribute": False, "commercial": True},
        "domain": "example.org",
        "snapshot": "2026-01",
    }
    return Recipe.model_validate(
        {
            "name": "tiny",
            "corpus": {
                "buckets": {"web": {"description": "Web.", "owner": "web@example.org", "sources": [source]}},
                "annotate": {},
                "policies": {"default": {}},
                "permitted_licences": ["MIT"],
            },
            "mixture": {"total_tokens": 2**20, "phases": [{"name": "main", "fraction": 1, "weights": {"web": 1}}]},
            "release": {"name": "tiny"},
        }
    )


def save(ctx: Context, asset: str, parts: tuple[Part, ...] = (), **inputs: str) -> Manifest:
    keyed = {key.replace("_", "/"): digest for key, digest in inputs.items()}
    made = Manifest(asset=asset, step=asset.split("/")[-1], version="1", params={}, inputs=keyed, parts=parts)
    ctx.refs.save(made)
    return made


def test_chain_lists_inputs_before_what_was_made_of_them_each_once(ctx: Context) -> None:
    documents = save(ctx, "web/documents", web_sources=SOURCE)
    curated = save(ctx, "web/curated", web_documents=documents.digest)
    tokenizer = save(ctx, "tokenizer", web_curated=curated.digest)
    shards = save(ctx, "web/shards", tokenizer=tokenizer.digest, web_curated=curated.digest)

    found = chain(ctx.refs, shards)

    assert [link.asset for link in found.links] == ["web/documents", "web/curated", "tokenizer", "web/shards"]
    assert found.sources == {"web/documents:web/sources": SOURCE}
    assert found.data_versions == {m.asset: m.digest for m in (documents, curated, tokenizer, shards)}
    assert found.digests == {m.digest for m in (documents, curated, tokenizer, shards)} | {SOURCE}


def test_chain_of_a_thousand_links_does_not_recurse(ctx: Context) -> None:
    last = save(ctx, "web/documents", web_sources=SOURCE)
    for number in range(1200):
        last = save(ctx, f"step-{number}", before=last.digest)
    assert len(chain(ctx.refs, last).links) == 1201


def test_missing_manifest_is_named_with_what_needed_it(ctx: Context) -> None:
    documents = save(ctx, "web/documents", web_sources=SOURCE)
    curated = save(ctx, "web/curated", web_documents=documents.digest)
    (ctx.refs.manifests / f"{documents.digest}.json").unlink()
    with pytest.raises(LineageError, match=f"breaks at web/documents: manifest {documents.digest}.*web/curated"):
        chain(ctx.refs, curated)


def test_changed_manifest_breaks_the_chain(ctx: Context) -> None:
    documents = save(ctx, "web/documents", web_sources=SOURCE)
    curated = save(ctx, "web/curated", web_documents=documents.digest)
    path = ctx.refs.manifests / f"{documents.digest}.json"
    path.write_text(path.read_text().replace(SOURCE, "cd" * 32))
    with pytest.raises(LineageError, match="web/documents"):
        chain(ctx.refs, curated)


def test_a_users_files_end_the_chain_and_are_no_manifests(ctx: Context, tmp_path: Path) -> None:
    """Inputs of `lists`, `protected`, `probe_sets`, `fairness` and `task_files` have the digest of a file."""
    (tmp_path / "domains").write_text("bad.example\n")
    listed = lists.run(ctx, "urls", str(tmp_path / "domains"))
    ctx.refs.save(listed)
    documents = save(ctx, "web/documents", web_sources=SOURCE)
    annotated = save(ctx, "web/url", web_documents=documents.digest, lists_urls=listed.digest)

    found = chain(ctx.refs, annotated)

    assert {link.asset for link in found.links} == {"web/documents", "lists/urls", "web/url"}
    assert found.sources == {"web/documents:web/sources": SOURCE}
    assert set(listed.inputs.values()) < found.digests, "a mark on the file reaches what was made with it"


def test_what_shows_a_place_ends_at_its_listing(ctx: Context) -> None:
    shown = save(ctx, "web/sources", inventory=SOURCE)
    assert chain(ctx.refs, shown).digests == {shown.digest, SOURCE}


def test_ancestry_without_a_raw_source_is_incomplete(ctx: Context) -> None:
    invented = save(ctx, "tokenizer")
    with pytest.raises(LineageError, match="has no raw source in its ancestry"):
        chain(ctx.refs, save(ctx, "run", tokenizer=invented.digest))


def test_files_of_a_user_are_no_sources_of_text(ctx: Context) -> None:
    """Neither behind other manifests, nor of a model that names nothing else."""
    listed = save(ctx, "lists/urls", **{"file:domains": SOURCE})
    assert chain(ctx.refs, listed).sources == {}
    with pytest.raises(LineageError, match="has no raw source in its ancestry"):
        chain(ctx.refs, save(ctx, "mixture", lists_urls=listed.digest))
    with pytest.raises(LineageError, match="has no raw source in its ancestry"):
        chain(ctx.refs, save(ctx, "checkpoint", **{"file:weights": SOURCE})).require_sources()


def test_two_versions_of_one_asset_are_refused() -> None:
    links = [Link(asset="web/curated", digest=digest, step="curated", version="1", inputs={}) for digest in ("a", "b")]
    links.append(Link(asset="mixture", digest="c", step="mixture", version="1", inputs={"one": "a", "other": "b"}))
    with pytest.raises(LineageError, match="two versions of web/curated"):
        _ = Chain(links=tuple(links)).data_versions


def checkpoint(ctx: Context) -> Manifest:
    documents = save(ctx, "web/documents", web_sources=SOURCE)
    run = save(ctx, "run", web_documents=documents.digest)
    weights = Part(name="model.safetensors", blob=Blob(md5="0" * 32, sha256="12" * 32, bytes=7))
    return save(ctx, "checkpoint", (weights,), run=run.digest)


@pytest.fixture
def training(ctx: Context) -> dict[str, Any]:
    """Return the statement of a trainer in a first attempt and after a move to a machine with changes in its work
    tree."""
    run = RunDirectory(ctx.workspace.runs / "tiny-1")
    moved = HOST.model_copy(update={"host": "node-2", "commit": "beef" + "0" * 36, "dirty": True, "image": "plinth:1"})
    for host in (HOST, moved):
        state(run, b"{}", "k", ranks=1, nodes=1, hosts=[host], audit=False)
    return {"attempts": known(run), "commit": {}, "manifest": {}}


def test_provenance_is_plain_json_and_holds_no_path(ctx: Context, recipe: Recipe, training: dict[str, Any]) -> None:
    made = checkpoint(ctx)
    data = provenance(recipe, made, chain(ctx.refs, made), run_id="tiny-1", run_key="k", training=training)
    assert json.loads(json.dumps(data)) == data
    assert "/somewhere" not in json.dumps(data)
    assert str(ctx.workspace.root) not in json.dumps(data)
    assert data["checkpoint"]["digest"] == made.digest
    assert data["files"] == {"model.safetensors": {"sha256": "12" * 32, "bytes": 7}}
    code = {"version": "0.4.0", "sha256": together(HOST.code), "commit": "beef" + "0" * 36, "dirty": True}
    assert data["code"] == code
    assert data["materials"]["web"][0]["licence"] == "MIT"
    assert [link["asset"] for link in data["chain"]] == ["web/documents", "run", "checkpoint"]


def test_slsa_statement_has_the_fields_of_the_specification(
    ctx: Context, recipe: Recipe, training: dict[str, Any]
) -> None:
    made = checkpoint(ctx)
    ancestry = chain(ctx.refs, made)
    data = provenance(recipe, made, ancestry, run_id="tiny-1", run_key="k", training=training)
    statement = slsa_statement(data, {"model.safetensors": "12" * 32})

    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": "model.safetensors", "digest": {"sha256": "12" * 32}}]
    build = statement["predicate"]["buildDefinition"]
    assert build["externalParameters"]["recipe"]["name"] == "tiny"
    named = [(each["name"], *each["digest"].items()) for each in build["resolvedDependencies"]]
    assert named == [
        ("web/documents:web/sources", ("sha256", SOURCE)),
        *((link.asset, ("sha256", link.digest)) for link in ancestry.links if link.asset != "checkpoint"),
        *((name, ("sha256", digest)) for name, digest in HOST.code.items()),
        ("commit", ("gitCommit", HOST.commit)),
        ("commit", ("gitCommit", "beef" + "0" * 36)),
        ("distributions", ("sha256", HOST.distributions)),
        (HOST.image, ("sha256", "1" * 64)),  # the other is a tag, which names no content
    ]
    details, (first, second) = statement["predicate"]["runDetails"], attempts_of(training)
    assert details["metadata"] == {"invocationId": "tiny-1", "startedOn": first.at}
    assert [one["digest"]["sha256"] for one in details["byproducts"]][:1] == [second.previous]
