"""The metadata of a checkpoint that 1,024 ranks have written, without its tensors."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from plinth.training.checkpoint import checkpoint, commit_record, digest_tree
from plinth.training.checkpoint.digest_tree import CheckpointRoot, RankFiles, RankManifest, made
from plinth.training.directory import RunDirectory

RANKS, PARAMETERS = 1024, 723  # of 70B


def simulate(run: RunDirectory, there: set[int]) -> CheckpointRoot:
    """The metadata of a checkpoint that 1,024 ranks of ZeRO-3 have written; the manifests of some of them are there."""
    folder, entries = checkpoint.path(run, 1), []
    (folder / "ranks").mkdir(parents=True)
    names = [f"layers.{n // 9}.part_{n % 9}.weight" for n in range(PARAMETERS)]
    for rank in range(RANKS):
        data = b""
        if rank in there:
            places = (f"engine/rank-{rank:05d}.safetensors", f"model/model-{rank:05d}.safetensors", f"rng/{rank}")
            files = tuple(made(path, 9_000_000, "ab" * 32) for path in places)
            pieces = dict.fromkeys(names, (0, 0, 1, 1000 * rank, 1000 * rank + 1000))
            data = digest_tree.manifest_bytes(RankManifest(rank=rank, files=files, pieces=pieces))
            (folder / digest_tree.manifest_path(rank)).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        model = (made(f"model/model-{rank:05d}.safetensors", 9_000_000, "ab" * 32),)
        entries.append(
            RankFiles(rank=rank, bytes=len(data), sha256=digest, files=3, file_bytes=27_000_000, model=model)
        )
    root = CheckpointRoot(step=1, files=(made("state.json", 2, "cd" * 32),), ranks=tuple(entries))
    data = digest_tree.root_bytes(root)
    (folder / "manifest.json").write_bytes(data)
    checkpoint.record_path(run, 1).write_bytes(commit_record.seal(run, 1, hashlib.sha256(data).hexdigest(), 1)[1])
    return root


def every_piece(table: Any) -> Any:
    """The pieces of all ranks, as they are put together from what each sends, by those of one."""
    every = np.tile(table[:PARAMETERS], RANKS)
    every["rank"] = np.repeat(range(RANKS), PARAMETERS)
    every["first"], every["end"] = 1000 * every["rank"], 1000 * every["rank"] + 1000
    return every
