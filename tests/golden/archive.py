"""A small released workspace, kept in `archive.tar.xz`: later versions must verify it, down to its sources.

`make` is run only to keep a workspace of a further version: an archive that no longer verifies is what the test is for.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path
from unittest import mock

from plinth.compute.context import Context
from plinth.provenance import lineage
from plinth.storage.workspace import Workspace
from plinth.trust import enrolment
from plinth_registry import releases
from plinth_registry.mlflow.server import stop_server
from tests import tiny_corpus

HERE = Path(__file__).parent
ARCHIVE, RECIPE = HERE / "archive.tar.xz", HERE / "archive.yaml"
#: The release, and the number of manifests, sources and blobs in its ancestry.
EXTENT = ("tiny/1", 26, 2, 45)
#: Files that the proof rests on; the largest of each pattern is changed.
PROVED = ("store/**/*", "models/*/model.safetensors", "models/*.slsa.json", "manifests/303de4ea*", "releases/0*.json",
          "approvals/*/*", "policies/*/*")  # fmt: skip
#: What verification reads of a workspace, and of the folder of trust: no private key, no page, nothing of Dagster.
KEPT = ("approvals", "attestations", "audit", "manifests", "models", "policies", "refs", "releases", "taint")
KEPT_OF_TRUST = ("root.json", "seen.json")
#: Validity of the root and of the head of the releases.
DAYS = 36500


def unpack(folder: Path) -> tuple[Path, Path]:
    """The workspace and the folder of trust of the archive, below an empty folder."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder / "workspace", folder / "trust"


def make(folder: Path) -> None:
    """Run the recipe to a release in an empty folder, and write the archive. PLINTH_TRUST is `folder/trust`."""
    from tests.jobs.conftest import here

    workspace = Workspace(folder / "workspace").ensure()
    tiny_corpus.write(workspace.root / "input")
    enrolment.initialise(workspace, "archive", ["demo-approver@example.org"], demo=True, days=DAYS)
    lasting = dataclasses.replace(releases._HEAD, days=DAYS)
    try:
        with mock.patch.object(releases, "_HEAD", lasting):
            done = here(workspace.root, "run", "-r", RECIPE)
        assert done.returncode == 0, done.stderr
        assert (workspace.root / "releases" / "head").exists(), done.stdout
    finally:
        stop_server(workspace)
    kept = [*(workspace.root / name for name in KEPT), *(folder / "trust" / name for name in KEPT_OF_TRUST)]
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as tar:
        for path in (*kept, *_blobs(Context(workspace))):
            tar.add(path, path.relative_to(folder), filter=_anonymous)


def _blobs(ctx: Context) -> list[Path]:
    """Files of all parts in the ancestry of the checkpoint; the store has more, which verification does not read."""
    ancestry = lineage.walk(ctx, ctx.refs.current("checkpoint").digest)
    parts = [part for link in ancestry.links for part in ctx.refs.load(link.digest).parts]
    return sorted({Path(ctx.store.located(part.blob)) for part in parts})


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
