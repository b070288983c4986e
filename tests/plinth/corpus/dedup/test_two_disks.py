"""Near duplicates on two Ray nodes that share only a bucket: in many small tasks, the bytes of one process."""

import random
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.compute.select_engine import RayEngine
from plinth.corpus.dedup.near import minhash
from plinth.storage.workspace import Workspace, folder_of
from tests.ray_patience import patient, two_nodes
from tests.s3_server import serving

from ..conftest import Tools


def corpus(ctx: Context) -> Any:
    """Chains of documents, each similar to the next, scattered over the parts of two buckets."""
    picks, tools, texts = random.Random(3), Tools(ctx), []
    for chain in range(30):
        words = [f"{picks.getrandbits(48):x}" for _ in range(94)]
        for link in range(8):
            words[link * 10 : link * 10 + 4] = [f"new{chain}x{link}x{i}" for i in range(4)]
            texts.append(" ".join(words))
    picks.shuffle(texts)
    docs = [tools.Doc(text) for text in texts]
    made = tools.corpus({"a": [docs[:70], docs[70:90]], "b": [docs[90:200], docs[200:]]})
    made.through_near()
    return made


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_nodes_with_disks_of_their_own_make_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = corpus(Context(Workspace(tmp_path / "workspace").ensure())).near
    assert alone.stats["largest_cluster"] > 4
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / "driver"))
    patient(monkeypatch)
    with serving() as bucket:
        cluster = two_nodes(*({"PLINTH_CACHE": str(tmp_path / name)} for name in ("one", "two")))
        try:
            with RayEngine(cluster.address) as engine:
                ctx = Context(Workspace(folder_of(bucket.uri("near"))).ensure(), engine=engine)
                made = corpus(ctx)
                inputs = (made.dedup, made.documents, made.signatures, made.exact)
                small = minhash.run(ctx, *inputs, range_rows=300, partition_rows=10, span=40)
        finally:
            cluster.shutdown()
    assert made.near.digest == alone.digest == small.digest
    assert ctx.costs["dedup/minhash/components"].tasks > 20
    held = {name: len(list((tmp_path / name).glob("*/store/files/md5/*/*"))) for name in ("one", "two")}
    assert all(held.values()), held  # both nodes worked, each on its own disk
