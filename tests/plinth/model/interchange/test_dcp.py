"""Weights in folders of `torch.distributed.checkpoint`: torch reads ours and we read torch's, bit for bit."""

from __future__ import annotations

import io
import pickle
import re
import resource
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import checkpoint as torch_dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from plinth.errors import CheckpointError
from plinth.model.decoder import Decoder
from plinth.model.hugging_face import WEIGHTS, hf_config, hf_name
from plinth.model.interchange import dcp as reader
from plinth.model.interchange import pickled
from plinth.model.interchange.conversion import DcpWeights, hf_files, write_dcp
from plinth.model.interchange.dcp import METADATA, Chunk, DcpFolder
from plinth.model.interchange.layouts import LAYOUTS, hf_shapes
from plinth.model.parameters import Model
from plinth.storage import tensor_file
from tests.model_folder import save_model, scrambled

BASE = Model(layers=3, dim=32, heads=4, kv_heads=2, ffn_dim=48)
ROWS = 70
KINDS = {
    "tied": BASE,
    "llama": BASE.model_copy(update={"tied_embeddings": False}),
    "qwen2": BASE.model_copy(update={"qkv_bias": True}),
    "qwen3": BASE.model_copy(update={"qk_norm": True, "head_dim": 16, "tied_embeddings": False}),
    "olmo2": BASE.model_copy(update={"architecture": "olmo2", "qk_norm": True, "tied_embeddings": False}),
}
NOT_THERE = {("qwen2", "olmo-core"), ("olmo2", "megatron")}
PAIRS = [(kind, layout) for kind in KINDS for layout in LAYOUTS if (kind, layout) not in NOT_THERE]


def saved(folder: Path, model: Decoder, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Write a Hugging Face folder, and return its tensors."""
    described = hf_config(model.config, ROWS, 16, "float32", 0)
    save_model(folder, {name: one.detach().to(dtype) for name, one in model.named_parameters()}, described)
    return load_file(folder / WEIGHTS)


def read_back(dcp: Path, model: Model, folder: Path, file_bytes: int = 1 << 30) -> dict[str, Tensor]:
    with DcpFolder(dcp) as opened:
        for name, content in hf_files(DcpWeights(opened, model, ROWS), file_bytes):
            tensor_file.write_chunks(folder / name, content)
    found: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def require_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name].dtype == one.dtype, name
        assert torch.equal(found[name], one), name


def save_with_torch(folder: Path, state: dict[str, Any], planner: DefaultSavePlanner | None = None) -> Path:
    torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(folder), planner=planner, no_dist=True)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_shapes_are_those_of_our_decoder(kind: str) -> None:
    with torch.device("meta"):
        model = Decoder(KINDS[kind], ROWS)
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    assert hf_shapes(KINDS[kind], ROWS) == {hf_name(name): shape for name, shape in shapes.items()}
    own = LAYOUTS["plinth"].tensors(KINDS[kind], ROWS)
    assert {name: one.shape for name, one in own.items()} == shapes


@pytest.mark.parametrize(
    ("kind", "layout", "dtype"),
    [
        *((kind, layout, (torch.float32, torch.bfloat16)[n % 2]) for n, (kind, layout) in enumerate(PAIRS)),
        ("llama", "megatron", torch.float16),
        ("llama", "megatron", torch.float64),
    ],
)
def test_a_written_folder_is_read_back_bit_for_bit(tmp_path: Path, kind: str, layout: str, dtype: torch.dtype) -> None:
    expected = saved(tmp_path / "hf", scrambled(KINDS[kind], ROWS), dtype)
    size = write_dcp(tmp_path / "hf", layout, tmp_path / "dcp")
    assert size == sum(one.nbytes for one in expected.values())
    require_equal(read_back(tmp_path / "dcp", KINDS[kind], tmp_path / "back", 5000), expected)
    write_dcp(tmp_path / "hf", layout, tmp_path / "again")
    for path in (tmp_path / "dcp").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_torch_reads_ours(tmp_path: Path) -> None:
    expected = saved(tmp_path / "hf", scrambled(KINDS["llama"], ROWS), torch.bfloat16)
    write_dcp(tmp_path / "hf", "hf", tmp_path / "dcp")
    found = {name: torch.zeros_like(one) for name, one in expected.items()}
    torch_dcp.load(found, storage_reader=torch_dcp.FileSystemReader(tmp_path / "dcp"), no_dist=True)
    require_equal(found, expected)


class Divided(DefaultSavePlanner):
    """Each matrix in four chunks, as ranks of a grid of 2 x 2 write it."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        self.plan = SavePlan([one for item in plan.items for one in self._chunks(item)], planner_data=plan.planner_data)
        return self.plan

    def _chunks(self, item: WriteItem) -> list[WriteItem]:
        data = item.tensor_data
        if data is None or len(data.size) != 2:
            return [item]
        rows, columns = data.size[0] // 3, data.size[1] // 4
        boxes = [(r, c) for r in ((0, rows), (rows, data.size[0])) for c in ((0, columns), (columns, data.size[1]))]
        chunks = [
            ChunkStorageMetadata(torch.Size((r[0], c[0])), torch.Size((r[1] - r[0], c[1] - c[0]))) for r, c in boxes
        ]
        return [
            WriteItem(
                MetadataIndex(item.index.fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=type(data)(chunk=chunk, properties=data.properties, size=data.size),
            )
            for chunk in chunks
        ]

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.type != WriteItemType.SHARD:
            return super().resolve_data(write_item)
        assert write_item.tensor_data is not None
        chunk = write_item.tensor_data.chunk
        places = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        return self.state_dict[write_item.index.fqn][places].clone()


@pytest.mark.parametrize("kind", ["tied", "olmo2"])
@pytest.mark.parametrize("planner", [None, Divided])
def test_we_read_what_torch_wrote(tmp_path: Path, kind: str, planner: type[Divided] | None) -> None:
    """Nested names, other state, a tied head, transposed storage, and matrices divided on both axes."""
    expected = saved(tmp_path / "hf", scrambled(KINDS[kind], ROWS))
    state = dict(expected)
    if kind == "tied":
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    name = "model.layers.0.mlp.up_proj.weight"
    state[name] = state[name].t().contiguous().t()
    trainer = {"app": {"model": state, "optim": {"state": {"0": torch.ones(3), "step": 5}}}, "step": torch.tensor(3)}
    save_with_torch(tmp_path / "dcp", trainer, planner() if planner else None)
    require_equal(read_back(tmp_path / "dcp", KINDS[kind], tmp_path / "back"), expected)


def test_our_own_names_are_read(tmp_path: Path) -> None:
    model = scrambled(KINDS["qwen3"], ROWS)
    expected = saved(tmp_path / "hf", model)
    save_with_torch(tmp_path / "dcp", {"optim": {"exp_avg": torch.ones(2)}, **dict(model.named_parameters())})
    require_equal(read_back(tmp_path / "dcp", KINDS["qwen3"], tmp_path / "back"), expected)


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    state = saved(tmp_path / "hf", scrambled(KINDS["llama"], ROWS))
    del state["model.norm.weight"]
    state["model.layers.1.mlp.up_proj.weight"] = torch.ones(48, 31)
    state["model.layers.3.mlp.up_proj.weight"] = torch.ones(48, 32)
    state["lm_head.weight"] = torch.ones(ROWS, 32, dtype=torch.int32)
    save_with_torch(tmp_path / "dcp", dict(state))
    with DcpFolder(tmp_path / "dcp") as dcp, pytest.raises(CheckpointError) as caught:
        DcpWeights(dcp, KINDS["llama"], ROWS)
    assert str(caught.value.found).split("; ") == [
        "model.norm.weight missing",
        "model.layers.3.mlp.up_proj.weight unexpected",
        "lm_head.weight has type int32, expected one of float64, float32, bfloat16, float16",
        "model.layers.1.mlp.up_proj.weight has shape (48, 31), expected (48, 32)",
    ]


def test_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    state = saved(tmp_path / "hf", scrambled(KINDS["tied"], ROWS))
    save_with_torch(tmp_path / "dcp", {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1})
    with DcpFolder(tmp_path / "dcp") as dcp, pytest.raises(CheckpointError, match="tied embeddings"):
        DcpWeights(dcp, KINDS["tied"], ROWS)


def test_other_checkpoints_and_models_are_refused(tmp_path: Path) -> None:
    save_with_torch(tmp_path / "dcp", {"conv.weight": torch.ones(2)})
    with DcpFolder(tmp_path / "dcp") as dcp, pytest.raises(CheckpointError, match=r"known layout[\s\S]*conv.weight"):
        DcpWeights(dcp, BASE, ROWS)
    saved(tmp_path / "qwen2", scrambled(KINDS["qwen2"], ROWS))
    with pytest.raises(CheckpointError, match="qkv_bias"):
        write_dcp(tmp_path / "qwen2", "olmo-core", tmp_path / "out")
    saved(tmp_path / "olmo2", scrambled(KINDS["olmo2"], ROWS))
    with pytest.raises(CheckpointError, match="architecture olmo2"):
        write_dcp(tmp_path / "olmo2", "megatron", tmp_path / "out")


# Hostile folders.


class Runs:
    """Object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Callable[..., object], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return self._call


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    saved(tmp_path / "hf", scrambled(KINDS["llama"], ROWS))
    write_dcp(tmp_path / "hf", "hf", tmp_path / "dcp")
    return tmp_path / "dcp"


def changed(folder: Path, change: Callable[[Metadata], object]) -> None:
    metadata = pickle.loads((folder / METADATA).read_bytes())
    change(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_back(folder, KINDS["llama"], folder.with_name("refused"))
    return str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_code_of_a_pickle_runs(dcp: Path, tmp_path: Path, protocol: int) -> None:
    seen = tmp_path / "ran"
    attacks = [Runs(Path.touch, seen), Runs(exec, f"open({str(seen)!r}, 'w')"), Runs(getattr, "", "join")]
    for attack in (*attacks, Runs(torch.save, 1, str(seen))):
        (dcp / METADATA).write_bytes(pickle.dumps({"state_dict_metadata": attack}, protocol))
        refused(dcp)
        assert not seen.exists()


def test_no_code_of_a_chunk_runs(dcp: Path, tmp_path: Path) -> None:
    seen, written = tmp_path / "ran", io.BytesIO()
    torch.save(Runs(exec, f"open({str(seen)!r}, 'w')"), written)
    data = written.getvalue()
    (dcp / "__0_0.distcp").write_bytes(data)

    def point(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            info.offset, info.length = 0, len(data)

    changed(dcp, point)
    assert "the pickle names __builtin__.exec" in refused(dcp)
    assert not seen.exists()


def test_broken_folders_are_refused(dcp: Path, tmp_path: Path) -> None:
    content = (dcp / METADATA).read_bytes()
    for wrong in (b"", content[:100], b"no pickle", pickle.dumps(5), pickle.dumps(torch.Size((1,)))):
        (dcp / METADATA).write_bytes(wrong)
        refused(dcp)
    (dcp / METADATA).unlink()
    assert ".metadata" in refused(dcp)
    (dcp / METADATA).write_bytes(content)
    data = (dcp / "__0_0.distcp").read_bytes()
    (dcp / "__0_0.distcp").write_bytes(data[: len(data) // 2])
    assert "bytes, and the chunk ends at" in refused(dcp)
    (dcp / "__0_0.distcp").write_bytes(bytes(len(data)))
    refused(dcp)


NORM = "model.norm.weight"


def _elsewhere(path: str, metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = path


def _shifted(offset: int, metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(NORM, torch.Size((0,)))].offset = offset


def _boxes(boxes: list[tuple[int, int]], metadata: Metadata) -> None:
    described: Any = metadata.state_dict_metadata[NORM]
    described.chunks = [ChunkStorageMetadata(torch.Size((at,)), torch.Size((size,))) for at, size in boxes]
    info = metadata.storage_data[MetadataIndex(NORM, torch.Size((0,)))]
    metadata.storage_data |= {MetadataIndex(NORM, torch.Size((at,))): info for at, _ in boxes}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (partial(_elsewhere, "../secret"), r"\.\."),
        (partial(_elsewhere, "/etc/passwd"), "/etc/passwd"),
        (partial(_elsewhere, "a/b.distcp"), "a/b.distcp"),
        (partial(_shifted, -1), "invalid place"),
        (partial(_shifted, 1 << 40), "the chunk ends at"),
        (partial(_shifted, 0), "expected"),  # the archive of another tensor
        (partial(_boxes, [(0, 16), (8, 16)]), "overlaps"),
        (partial(_boxes, [(0, 16)]), "total size"),
        (partial(_boxes, [(0, 16), (24, 16)]), "invalid chunk"),
    ],
)  # fmt: skip
def test_metadata_must_describe_the_files(dcp: Path, change: Callable[[Metadata], None], reason: str) -> None:
    changed(dcp, change)
    found = refused(dcp)
    assert re.search(reason, found), found


def test_two_models_in_one_checkpoint_are_refused(tmp_path: Path) -> None:
    """The shorter name is not the better one: `ema` is an average that nobody asked for."""
    tensors = saved(tmp_path / "hf", scrambled(BASE, ROWS))
    averages = {name: one + 1 for name, one in tensors.items()}
    dcp = save_with_torch(tmp_path / "dcp", {"model": tensors, "ema": averages})
    with DcpFolder(dcp) as opened, pytest.raises(CheckpointError, match="several models"):
        DcpWeights(opened, BASE, ROWS)


def test_a_trainer_that_would_compute_other_numbers_has_no_such_model() -> None:
    with pytest.raises(CheckpointError, match="rotary_fraction"):
        LAYOUTS["olmo-core"].tensors(KINDS["llama"].model_copy(update={"rotary_fraction": 0.5}), ROWS)


def test_a_pickle_of_eight_bytes_takes_no_gigabytes() -> None:
    """The memo index is 268,435,455; with the unpickler in C this took 4 GB, and 32 GB with another index."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert pickled.read(io.BytesIO(b"\x80\x02Nr\xff\xff\xff\x0f.")) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize("axis", [0, 1])
def test_shards_of_one_axis_are_compared_with_their_neighbors_only(monkeypatch: pytest.MonkeyPatch, axis: int) -> None:
    compared: list[Chunk] = []
    real, count, shape = reader._overlap, 500, (8, 1000)[:: 1 if axis else -1]
    monkeypatch.setattr(reader, "_overlap", lambda one, other: compared.append(one) or real(one, other))

    def chunk(first: int) -> Chunk:
        offsets, box = ((0, first), (8, 2)) if axis else ((first, 0), (2, 8))
        return Chunk(offsets, box, "file", 0, 0)

    whole = [chunk(2 * number) for number in range(count)]
    reader._require_cover("weight", shape, whole)
    assert len(compared) < count
    with pytest.raises(ValueError, match="overlaps"):
        reader._require_cover("weight", shape, [*whole[:-1], chunk(1)])
