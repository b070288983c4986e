"""Work per rank of save, verification and read falls with the number of ranks; counted on a model of fixed size."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import counted_checkpoint
import pytest
import torch
import wide_metadata
from wide_metadata import PARAMETERS, RANKS

from plinth.launch.parameters import Launch
from plinth.model.decoder import Decoder
from plinth.model.parameters import Model
from plinth.storage import atomic
from plinth.training.checkpoint import checkpoint, digest_tree, sharded_state
from plinth.training.checkpoint.checkpoint import read_state
from plinth.training.checkpoint.digest_tree import RankManifest
from plinth.training.checkpoint.model_share import WholeParameter, divide, file_names, index_text
from plinth.training.checkpoint.sharded_state import Piece
from plinth.training.checkpoint.snapshot import parameters_digest
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]
EIGHT_B = Model(layers=32, dim=4096, heads=32, kv_heads=8, ffn_dim=14336, tied_embeddings=False)
MODEL = Model(layers=6, dim=128, heads=4, kv_heads=2, ffn_dim=384)  # 5 MiB of FP32, none of 1 MiB or more
KINDS = {"ZeRO-1": {"zero_stage": 1}, "ZeRO-3": {"zero_stage": 3}}


def configured(make: Make, kind: str, ranks: int, workspace: Path, **parallel: int) -> RunConfig:
    name = f"{kind.lower()}-{'0' * 12}"
    config = make(
        run_id=name,
        workspace=workspace,
        model=MODEL,
        vocab_size=1024,
        launch=Launch(ranks=ranks),
        micro_batch_sequences=1,
        parallel=Parallel(**parallel),  # type: ignore[arg-type]
    )
    config.directory.root.mkdir(parents=True, exist_ok=True)
    return config


def slope(by_ranks: dict[int, float]) -> float:
    """Return the slope of the logarithm of a count over that of the number of ranks."""
    x, y = [math.log(n) for n in by_ranks], [math.log(max(count, 1)) for count in by_ranks.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_bytes_of_a_rank_fall_as_one_over_ranks(make: Make, tmp_path: Path) -> None:
    """Staged, written, hashed and copied, by the rank that has most; a rank opens its own file alone."""
    most: dict[tuple[str, str], dict[int, float]] = {}
    moves = {"ZeRO-1": "ZeRO-3", "ZeRO-3": "ZeRO-1"}  # what four have written, on two
    for ranks in (1, 4, 2):
        configs = {kind: configured(make, kind, ranks, tmp_path / str(ranks), **KINDS[kind]) for kind in KINDS}
        of_four = {kind: configured(make, kind, 2, tmp_path / "4", **KINDS[other]) for kind, other in moves.items()}
        of_four = of_four if ranks == 2 else {}
        for answer, moved in run_ranks(ranks, counted_checkpoint.saved, configs, of_four):
            for kind, counts in moved.items():
                total = checkpoint.read_root(of_four[kind].directory, 1).total_bytes
                assert 0.85 * total / 2 < counts["hashed"] < 1.15 * total / 2, kind
                assert counts["opened"] <= 4, kind  # half of each parameter is not half of all, end to end
            for kind, counts in answer.items():
                assert counts["opened"] == 1, (kind, ranks)
                for what in ("staged", "model", "state", "hashed", "copied"):
                    by_ranks = most.setdefault((kind, what), {})
                    by_ranks[ranks] = max(by_ranks.get(ranks, 0), counts[what])
    for (kind, what), by_ranks in most.items():
        assert -1.1 < slope(by_ranks) < -0.9, (kind, what, by_ranks)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_model_in_several_files_is_what_transformers_loads(make: Make, tmp_path: Path) -> None:
    """Every way in which ranks hold parameters; other programs and ours read the same numbers."""
    from transformers import AutoModelForCausalLM

    from plinth.model.folder import load_model

    kinds = {"data": {"zero_stage": 1}, "three": {"zero_stage": 3}, "tensor": {"tensor": 2}, "stages": {"pipeline": 2}}
    configs = {kind: configured(make, kind, 2, tmp_path, **parallel) for kind, parallel in kinds.items()}
    run_ranks(2, counted_checkpoint.saved, configs, {})
    for kind, config in configs.items():
        folder = checkpoint.verify(config.directory, 1) / "model"
        where = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
        assert set(where.values()) == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
        ours = load_model(folder, checkpoint.digests(config.directory, 1, "model"))
        told = read_state(config.directory, 1)["parameters_sha256"]
        assert parameters_digest((name, p.detach()) for name, p in ours.named_parameters()) == told, kind
        theirs = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
        ids = torch.arange(24).view(1, 24)
        assert torch.allclose(theirs(ids).logits, ours(ids), atol=2e-5), kind


def parameters(model: Model, vocab_size: int) -> list[WholeParameter]:
    with torch.device("meta"):
        decoder = Decoder(model, vocab_size)
    return [WholeParameter(name, 2 * p.numel()) for name, p in decoder.named_parameters()]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64, 1024])
def test_no_rank_writes_more_than_the_mean_and_one_parameter(ranks: int) -> None:
    every = parameters(EIGHT_B, 128_256)
    found = divide([(every, range(ranks))])
    loads = [0] * ranks
    for one in every:
        loads[found[one.name]] += one.bytes
    total, largest = sum(loads), max(one.bytes for one in every)
    assert max(loads) <= total / ranks + largest
    if ranks <= 8:
        assert max(loads) < 1.1 * total / ranks
    assert found.keys() == {one.name for one in every}
    names = file_names(found)
    assert (len(names) == 1) == (ranks == 1)
    assert len(json.loads(next(iter(index_text(found, total).values()), '{"weight_map": {}}'))["weight_map"]) == (
        0 if ranks == 1 else len(every)
    )


def test_a_small_model_is_one_file_and_a_stage_has_its_own() -> None:
    small = [WholeParameter(f"p{n}", 1000) for n in range(9)]
    assert set(divide([(small, range(4))]).values()) == {0}
    assert set(divide([(small[:4], (0, 1)), (small[4:], (2, 3))]).values()) == {0, 2}
    assert set(divide([(small, range(4))], least=2000).values()) == {0, 1, 2, 3}


def test_a_rank_of_1024_opens_the_metadata_of_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By counts: as many ranks read the root and one manifest; half as many read two and a table of fixed rows."""
    run = RunDirectory(tmp_path / "runs" / "wide")
    wide_metadata.simulate(run, {0, 1, 512, 513, 700})
    read: list[Path] = []
    whole: Callable[[Path], bytes] = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path)
        return whole(path)

    opened = atomic.opened
    monkeypatch.setattr(atomic, "opened", lambda path: read.append(path) or opened(path))
    monkeypatch.setattr(Path, "read_bytes", counted)
    tracemalloc.start()
    root = checkpoint.read_root(run, 1)
    own = checkpoint.rank_manifests(run, 1, digest_tree.share(root, 700, RANKS))
    wanted = {name: Piece(*piece) for name, piece in own[0].pieces.items()}
    assert sharded_state.covers(own[0].pieces, wanted)
    here = [path for path in read if path.is_relative_to(run.checkpoints)]
    assert len(here) == 3
    assert sum(path.stat().st_size for path in here) < 400_000
    assert tracemalloc.get_traced_memory()[1] < 20e6

    shares = [checkpoint.rank_manifests(run, 1, digest_tree.share(root, n, 512)) for n in (0, 1)]
    tables = [sharded_state.table_of(share) for share in shares]
    assert all(table.nbytes == 2 * PARAMETERS * sharded_state.ROW.itemsize for table in tables)
    every = wide_metadata.every_piece(tables[0])
    doubled = {name: Piece(0, 0, 1, 2000 * 350, 2000 * 350 + 2000) for name in wanted}
    assert sharded_state.ranks_for(every, doubled) == [700, 701]
    assert every.nbytes < 32e6
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_pieces_that_nobody_divided_so_are_looked_for_in_the_whole() -> None:
    manifests = [RankManifest(rank=n, files=(), pieces={"w": (0, n, 2, 0, 8)}) for n in (0, 1)]
    manifests.append(RankManifest(rank=2, files=(), pieces={"v": (0, 0, 1, 0, 4)}))
    table = sharded_state.table_of(manifests)
    assert sharded_state.ranks_for(table, {"w": Piece(0, 1, 2, 3, 5)}) == [1]
    assert sharded_state.ranks_for(table, {"w": Piece(0, 0, 1, 0, 4)}) == [0, 1]
    assert sharded_state.ranks_for(table, {"v": Piece(0, 0, 1, 4, 6), "x": Piece(0, 0, 1, 0, 1)}) == []
    assert not sharded_state.covers(manifests[2].pieces, {"v": Piece(0, 0, 1, 0, 5)})

