"""Checkpoints that several ranks have written, on files of a few bytes."""

from __future__ import annotations

import hashlib
import json

from plinth.training.checkpoint import checkpoint, digest_tree
from plinth.training.checkpoint.digest_tree import File, RankFiles, RankManifest, hash_files
from plinth.training.directory import RunDirectory


def committed(run: RunDirectory, *steps: int, ranks: int = 4, times: int = 50) -> None:
    """Commit steps, each with other bytes."""
    for step in steps:
        folder, stated = checkpoint.stage(run, step), list[RankFiles]()
        for rank in range(ranks):
            names = [f"engine/rank-{rank:05d}.safetensors", f"rng/rank-{rank:05d}.json"]
            for name in names:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(f"{step} {rank} {name}".encode() * times)
            files = tuple(hash_files(folder, names, flush=False))
            data = digest_tree.manifest_bytes(RankManifest(rank=rank, files=files))
            (folder / "ranks").mkdir(exist_ok=True)
            (folder / digest_tree.manifest_path(rank)).write_bytes(data)
            stated.append(
                RankFiles(
                    rank=rank,
                    bytes=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                    files=len(files),
                    file_bytes=sum(file.bytes for file in files),
                )
            )
        state = json.dumps({"step": step, "monitor": {"guard": {"rollbacks": []}}}).encode()
        (folder / "state.json").write_bytes(state)
        own = File(path="state.json", bytes=len(state), sha256=hashlib.sha256(state).hexdigest())
        checkpoint.commit(run, step, [own], stated)
