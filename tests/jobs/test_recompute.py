"""One thing of a recipe changes: exactly the predicted steps run again, as the files of the workspace show.

A stage that runs writes the record of its cost, and a task that runs writes blobs and the record of its step. So what
has run is read from files, never from events:

    roots  stages whose own key has changed, stated for each change
    runs   roots, and stages of which an input's reference has moved: no other, and none less
    work   stages in which a task did its work; all others were spared theirs by the step cache
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from plinth.compute import context
from plinth.compute.engine import InlineEngine
from plinth.compute.select_engine import Compute
from plinth.recipe.load import load
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import selected, stages
from plinth_jobs import pipeline
from plinth_registry.mlflow.server import find_server
from tests import tiny_corpus
from tests.jobs.conftest import RECIPE, ROOT, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.slow

BUCKETS = ("web", "prose", "code")
#: The policy of code without the rule against repeats, which drops no document here.
ONE_RULE = 'corpus: {policies: {code: {rules: [{reason: too_few_words, drop: "gopher_quality.word_count < 20"}]}}}\n'
WATCHED = ("store/files", "records", "manifests", "refs", "costs")


@dataclass(frozen=True)
class Change:
    """Difference from the tiny recipe, and the tasks that must run."""

    name: str
    roots: frozenset[str]
    work: frozenset[str]
    recipe: str = ""
    #: Change of the files in `input/`.
    edit: Callable[[Path], None] | None = None


def _each(kind: str, buckets: tuple[str, ...] = BUCKETS) -> frozenset[str]:
    return frozenset(f"{bucket}/{kind}" for bucket in buckets)


def _threshold(reason: str, drop: str) -> str:
    policies = load(RECIPE).corpus.policies["default"].model_dump(mode="json")
    next(rule for rule in policies["rules"] if rule["reason"] == reason)["drop"] = drop
    return yaml.safe_dump({"corpus": {"policies": {"default": policies}}})


def _more_code(sources: Path) -> None:
    """A file with four functions more."""
    rng = random.Random(78)
    texts = [tiny_corpus.article(rng) for _ in range(4)]
    functions = [f'def part_{n}(rows):\n    """{text}"""\n    return rows[{n}:]\n' for n, text in enumerate(texts)]
    (sources / "tiny" / "code" / "package0" / "extra.py").write_text("\n\n".join(functions))


def _more_prose(sources: Path) -> None:
    """A file with one article more."""
    line = json.dumps({"id": "later", "text": tiny_corpus.article(random.Random(77))})
    (sources / "tiny" / "later.jsonl").write_text(line + "\n")


def _second_source() -> str:
    """The tiny recipe's source of prose and another one."""
    (first,) = yaml.safe_load(RECIPE.read_text())["corpus"]["buckets"]["prose"]["sources"]
    second = {**first, "path": "tiny/later.jsonl", "domain": "later.example"}
    return yaml.safe_dump({"corpus": {"buckets": {"prose": {"sources": [first, second]}}}})


#: Audit of the tokenizer, and the shards of all buckets.
_SHARDS = frozenset({"tokenizer/audit"}) | _each("shards")


def _of_new_documents(bucket: str) -> frozenset[str]:
    """Return the assets to recompute after a bucket gets a new document: its own stages, those over all documents, and
    everything measured in tokens. Annotators of English words are one task, and so are those of all languages."""
    own = ("documents", "c4", "fineweb2", "policy", "minhash", "verdicts", "curated")
    over_all = {"protected", "holdout", "contamination", "dedup/exact", "dedup/minhash", "tokenizer"}
    return _SHARDS | over_all | {f"{bucket}/{kind}" for kind in own}


CHANGES = (
    Change("a weight of the mixture", frozenset({"mixture"}), frozenset(), recipe="""\
mixture:
  phases:
    - {name: stable, fraction: 0.75, weights: {web: 2, prose: 1, code: 1}}
    - {name: annealing, fraction: 0.25, weights: {web: 1, prose: 2, code: 1}}
"""),
    *(
        pytest.param(change, marks=pytest.mark.exhaustive)
        for change in (
            Change("nothing", frozenset(), frozenset()),
            Change("the seed of the order", frozenset({"mixture"}), frozenset(), recipe="mixture: {seed: 5}\n"),
            Change(
                "a threshold",
                _each("policy", ("web", "prose")),
                _each("policy", ("web", "prose")) | {"dedup/exact", "prose/verdicts"},
                recipe=_threshold("too_few_words", "gopher_quality.word_count < 51"),
            ),
            Change("a filter", _each("policy", ("code",)), _each("policy", ("code",)), recipe=ONE_RULE),
            Change(
                "the vocabulary", frozenset({"tokenizer"}), _SHARDS | {"tokenizer"},
                recipe="tokenizer: {vocab_size: 600}\n",
            ),
            Change("a file", _each("sources", ("code",)), _of_new_documents("code"), edit=_more_code),
            Change(
                "a source", _each("sources", ("prose",)), _of_new_documents("prose"),
                recipe=_second_source(), edit=_more_prose,
            ),
            Change(
                "a parameter of an annotator", _each("language"), _each("language"),
                recipe="corpus: {annotate: {language: {thresholds: {de: 0.8}}}}\n",
            ),
        )
    ),
)  # fmt: skip


def _files(workspace: Path) -> dict[str, tuple[int, int]]:
    found = [path for folder in WATCHED for path in (workspace / folder).rglob("*") if path.name != "lock"]
    return {
        str(path.relative_to(workspace)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in found
        if path.is_file()
    }


def _written(workspace: Path, before: dict[str, tuple[int, int]]) -> set[str]:
    return {name for name, seen in _files(workspace).items() if before.get(name) != seen}


def _ran(written: set[str]) -> set[str]:
    return {name.removeprefix("costs/").removesuffix(".json") for name in written if name.startswith("costs/")}


def _worked(workspace: Path, ran: set[str]) -> set[str]:
    spent = {asset: context.load(Workspace(workspace), asset) for asset in ran}
    return {asset for asset, cost in spent.items() if cost is not None and cost.tasks.tasks}


def _blobs(workspace: Path, assets: set[str]) -> set[str]:
    """MD5s of all that the manifests of these assets name."""
    now = digests(workspace)
    read = [Manifest.parse((workspace / "manifests" / f"{now[one]}.json").read_bytes()) for one in sorted(assets)]
    return {part.blob.md5 for manifest in read for part in manifest.parts}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name.replace(" ", "-"))
def test_a_change_runs_what_it_must_and_no_more(
    change: Change, pending: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compute, "open", lambda self: InlineEngine())  # tasks in this process: no start of workers
    workspace = copied(pending, tmp_path / "workspace")
    shutil.rmtree(workspace / "mlflow")  # a corpus without candidates
    recipe = variant(tmp_path, change.recipe) if change.recipe else RECIPE
    if change.edit is not None:
        change.edit(workspace / "input")
    before, published = _files(workspace), digests(workspace)

    pipeline.run(workspace, recipe, ("funnel",))

    written, now = _written(workspace, before), digests(workspace)
    ran, moved = _ran(written), {asset for asset in now if now[asset] != published.get(asset)}
    catalog = selected(stages(load(recipe)), ("funnel",))
    follows = {stage.asset for stage in catalog if moved.intersection(stage.deps)}
    assert ran == change.roots | follows
    assert change.roots <= ran
    assert moved <= ran  # a stage that read other columns than those that moved is published as it was
    assert {name for name in written if name.startswith("refs/")} == {f"refs/{asset}.json" for asset in ran}

    worked = _worked(workspace, ran)
    assert worked == change.work
    new = {name.removeprefix("store/files/md5/").replace("/", "") for name in written if name.startswith("store/")}
    assert not new & _blobs(workspace, set(now) - ran)
    assert not new or worked

    before = _files(workspace)
    pipeline.run(workspace, recipe, ("funnel",))
    assert _written(workspace, before) == set()
    assert find_server(Workspace(workspace)) is None  # none is started


@pytest.mark.exhaustive
def test_another_build_of_a_plug_in_annotates_again_and_no_more(corpus: Path, tmp_path: Path) -> None:
    module, info = tmp_path / "site" / "acme_quotes.py", tmp_path / "site" / "acme-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[plinth.annotators]\nquotes = acme_quotes:ANNOTATOR\n")
    source = (ROOT / "docs" / "examples" / "plinth-example" / "plinth_example" / "quotes.py").read_text()
    environment = {**os.environ, "PYTHONPATH": str(module.parent)}
    workspace = copied(corpus, tmp_path / "workspace")
    recipe = variant(tmp_path, "corpus: {annotate: {quotes: {}}}\n")
    module.write_text(source)
    plinth(workspace, "run", "-r", recipe, "--select", "funnel", env=environment)
    before = _files(workspace)

    module.write_text(source + "\n# The same results by other code: nobody can know.\n")
    plinth(workspace, "run", "-r", recipe, "--select", "funnel", env=environment)

    ran = _ran(_written(workspace, before))
    assert ran == _each("quotes") | _each("policy")  # no rule reads it: policies are published as they were
    assert _worked(workspace, ran) == _each("quotes")
