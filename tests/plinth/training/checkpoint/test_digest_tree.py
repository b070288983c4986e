"""The digest tree: every verifier names every kind of damage; ranks that verify together agree."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import agreeing_ranks
import pytest
from ranked_files import committed

from plinth import fingerprint
from plinth.errors import CheckpointError
from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint, commit_record, digest_tree
from plinth.training.checkpoint.digest_tree import File, RankFiles, RankManifest
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

Damage = Callable[[RunDirectory], None]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "runs" / "run")
    found.root.mkdir(parents=True)
    committed(found, 1, 2)
    return found


def at(run: RunDirectory, name: str, step: int = 2) -> Path:
    return checkpoint.path(run, step) / name


def torn_tree(run: RunDirectory) -> None:
    path = at(run, "ranks/rank-00002.json")
    path.write_bytes(path.read_bytes()[:40])


def missing_branch(run: RunDirectory) -> None:
    at(run, "ranks/rank-00003.json").unlink()


def branch_of_another_step(run: RunDirectory) -> None:
    shutil.copy(at(run, "ranks/rank-00001.json", 1), at(run, "ranks/rank-00001.json"))


def branch_of_another_rank(run: RunDirectory) -> None:
    shutil.copy(at(run, "ranks/rank-00000.json"), at(run, "ranks/rank-00001.json"))


def missing_file(run: RunDirectory) -> None:
    at(run, "engine/rank-00003.safetensors").unlink()


def share_of_another_step(run: RunDirectory) -> None:
    for name in ("engine/rank-00002.safetensors", "rng/rank-00002.json", "ranks/rank-00002.json"):
        shutil.copy(at(run, name, 1), at(run, name))


def file_of_another_step(run: RunDirectory) -> None:
    shutil.copy(at(run, "engine/rank-00001.safetensors", 1), at(run, "engine/rank-00001.safetensors"))


def torn_file(run: RunDirectory) -> None:
    path = at(run, "engine/rank-00000.safetensors")
    path.write_bytes(path.read_bytes()[:-1])


def torn_root(run: RunDirectory) -> None:
    path = at(run, "manifest.json")
    path.write_bytes(path.read_bytes()[:-1])


def torn_state(run: RunDirectory) -> None:
    at(run, "state.json").write_bytes(b"{}")


DAMAGE: dict[Damage, str] = {
    torn_tree: r"ranks/rank-00002\.json has changed",
    missing_branch: r"ranks/rank-00003\.json is missing",
    branch_of_another_step: r"ranks/rank-00001\.json has changed",
    branch_of_another_rank: r"ranks/rank-00001\.json has changed",
    missing_file: "lacks files that its manifest lists",
    share_of_another_step: r"ranks/rank-00002\.json has changed",
    file_of_another_step: r"engine/rank-00001\.safetensors has changed",
    torn_file: r"engine/rank-00000\.safetensors has changed",
    torn_root: r"manifest\.json has changed",
    torn_state: r"state\.json has changed",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_named_by_one_process_and_by_a_reader_of_any_number(run: RunDirectory, damage: Damage) -> None:
    damage(run)
    with pytest.raises(CheckpointError, match=DAMAGE[damage]):
        checkpoint.verify(run, 2)
    assert checkpoint.newest_valid(run)[0] == 1
    for count in (1, 2, 3, 4, 7):
        said = []
        for index in range(count):
            try:
                checkpoint.verify_share(run, 2, index, count)
            except CheckpointError as error:
                said.append(str(error.what))
        assert said, count
        assert all(checkpoint.name(2) in one for one in said), said


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16])
def test_readers_together_hash_every_file_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    hashed: list[str] = []
    whole = digest_tree._hash

    def counted(path: Path, *rest: object) -> tuple[int, str]:
        hashed.append(str(path.relative_to(checkpoint.path(run, 2))))
        return whole(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(digest_tree, "_hash", counted)
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    for index in range(count):
        checkpoint.verify_share(run, 2, index, count, beat)
    manifests = {f"ranks/rank-{rank:05d}.json" for rank in range(4)}  # these are hashed as they are read
    files = {file.path for file in checkpoint.listed_files(run, 2)} - manifests - {"state.json"}
    assert sorted(one for one in hashed if one != "state.json") == sorted(files)
    assert hashed.count("state.json") == count
    assert beats >= len(hashed)


def test_an_earlier_form_is_refused_by_name(run: RunDirectory) -> None:
    data = fingerprint.canonical({"step": 2, "files": [{"path": "state.json", "bytes": 2, "sha256": "0" * 64}]})
    at(run, "manifest.json").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    checkpoint.record_path(run, 2).write_bytes(commit_record.seal(run, 2, digest, 2)[1])
    with pytest.raises(CheckpointError, match="the checkpoint format of another Plinth version") as error:
        checkpoint.verify(run, 2)
    assert (error.value.found, "version that wrote it" in str(error.value.remedy)) == ("format 1", True)


@pytest.mark.parametrize("name", ["ranks/rank-00001.json", "../state.json", "manifest.json"])
def test_a_branch_cannot_name_what_is_not_its_own(run: RunDirectory, name: str) -> None:
    file = File(path=name, bytes=1, sha256="0" * 64)
    data = digest_tree.manifest_bytes(RankManifest(rank=0, files=(file,)))
    stated = RankFiles(rank=0, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), files=1, file_bytes=1)
    with pytest.raises(CheckpointError, match="names"):
        digest_tree.read_manifest(data, stated, "it")
    more = stated.model_copy(update={"files": 2})
    good = digest_tree.manifest_bytes(RankManifest(rank=0, files=(file.model_copy(update={"path": "a"}),)))
    more = more.model_copy(update={"sha256": hashlib.sha256(good).hexdigest()})
    with pytest.raises(CheckpointError, match="differs from the rank's entry in the checkpoint's root"):
        digest_tree.read_manifest(good, more, "it")


def test_a_file_of_two_branches_and_a_rank_left_out_are_refused(run: RunDirectory) -> None:
    root = checkpoint.read_root(run, 2)
    ranks = checkpoint.rank_manifests(run, 2, root.ranks)
    with pytest.raises(CheckpointError, match="duplicate file"):
        digest_tree.every_file(root, [*ranks, ranks[0]], "it")
    left_out = root.model_copy(update={"ranks": (root.ranks[0], root.ranks[2])})
    with pytest.raises(CheckpointError, match="not a valid root manifest of a checkpoint"):
        digest_tree.read_root(digest_tree.root_bytes(left_out), "it")


@pytest.mark.slow
def test_ranks_agree_on_a_checkpoint_that_one_of_them_refuses(make: Callable[..., RunConfig]) -> None:
    config = make(launch=Launch(ranks=2))
    run = config.directory
    run.root.mkdir(parents=True)
    committed(run, 1, 2, 3, ranks=2)
    at(run, "engine/rank-00001.safetensors", 3).write_bytes(b"torn")  # only the second rank reads it
    assert run_ranks(2, agreeing_ranks.selected, config) == [2, 2]
    assert checkpoint.refused(run) == [3]
    assert [event["step"] for event in timeline(run.events).of("refused")] == [3]
    for step in (1, 2):
        at(run, "state.json", step).unlink()
    first, second = run_ranks(2, agreeing_ranks.selected, config)
    assert first == second
    assert "can be trusted" in str(first)
