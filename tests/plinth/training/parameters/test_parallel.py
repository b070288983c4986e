"""A `parallel:` block that cannot run is refused when the recipe is read, with the reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from plinth.model.parameters import Model, SlidingWindow
from plinth.recipe.load import check
from plinth.recipe.recipe import Recipe
from plinth.training.parameters.parallel import Parallel, problems

MODEL = Model(layers=4, dim=64, heads=8, kv_heads=4, ffn_dim=96)


def refusals(ranks: int = 8, precision: str = "fp32", sequence_tokens: int = 64, **block: Any) -> list[tuple[str, str]]:
    return list(problems(Parallel(**block), MODEL, ranks=ranks, sequence_tokens=sequence_tokens, precision=precision))


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"tensor": 4, "sequence": 2, "zero_stage": 2},
        {"pipeline": 2, "tensor": 2, "zero_stage": 1},
        {"pipeline": 2, "sequence": 2, "zero_stage": 1, "activation_checkpointing": 1, "compile": True},
        {"pipeline": 4, "zero_stage": 1, "offload": "optimizer"},
        {"sequence": 8, "zero_stage": 3, "offload": "parameters", "activation_checkpointing": 4},
        {"zero_stage": 1, "offload": "optimizer", "compile": True, "communication_dtype": "fp32"},
        {"zero_stage": 3, "precision": "bf16", "communication_dtype": "bf16", "overlap_communication": True},
        {"zero_stage": 0, "tensor": 2, "precision": "bf16", "overlap_communication": False},
    ],
)
def test_what_can_run_is_not_refused(block: dict[str, Any]) -> None:
    assert refusals(**block) == []


@pytest.mark.parametrize(
    ("block", "key", "reason"),
    [
        ({"ranks": 6, "tensor": 4}, "tensor", "4 does not divide launch.ranks = 6"),
        ({"ranks": 2, "pipeline": 2, "sequence": 2}, "tensor", "4 does not divide launch.ranks = 2"),
        ({"ranks": 16, "tensor": 16}, "tensor", "16 does not divide model.heads = 8"),
        ({"tensor": 8}, "tensor", "8 does not divide model.kv_heads = 4"),
        ({"ranks": 64, "tensor": 64}, "tensor", "64 does not divide model.ffn_dim = 96"),
        ({"ranks": 16, "sequence": 16}, "sequence", "16 does not divide the 8 heads"),
        ({"ranks": 16, "tensor": 4, "sequence": 4}, "sequence", "4 does not divide the 2 heads of a tensor rank"),
        ({"sequence": 8, "sequence_tokens": 100}, "sequence", "8 does not divide mixture.sequence_tokens = 100"),
        ({"pipeline": 8, "zero_stage": 0}, "pipeline", "8 stages for 4 layers"),
        ({"pipeline": 2, "zero_stage": 2}, "zero_stage", "expected zero_stage 0 or 1 with pipeline"),
        ({"pipeline": 2, "zero_stage": 3}, "zero_stage", "expected zero_stage 0 or 1 with pipeline"),
        ({"tensor": 2, "zero_stage": 3}, "zero_stage", "expected zero_stage 0, 1 or 2"),
        ({"precision": "fp16", "zero_stage": 0}, "zero_stage", "expected zero_stage 1, 2 or 3"),
        ({"offload": "parameters", "zero_stage": 2}, "offload", "requires ZeRO-3; found zero_stage 2"),
        ({"offload": "optimizer", "zero_stage": 0}, "offload", "expected zero_stage 1, 2 or 3"),
        (
            {"offload": "parameters", "zero_stage": 3, "tensor": 2},
            "offload",
            "does not work with tensor; expected none",
        ),
        ({"offload": "parameters", "zero_stage": 1, "compile": True}, "offload", "optimizer, or no compile"),
        ({"activation_checkpointing": 5}, "activation_checkpointing", "5 selects none of the 4 layers"),
        ({"compile": True, "zero_stage": 3}, "compile", "expected false, or zero_stage 0, 1 or 2"),
        ({"communication_dtype": "bf16"}, "communication_dtype", "expected auto or fp32"),
        ({"communication_dtype": "fp16", "precision": "bf16"}, "communication_dtype", "expected auto or fp32"),
        ({"overlap_communication": True, "zero_stage": 0}, "overlap_communication", "with zero_stage 0"),
        ({"overlap_communication": True, "pipeline": 2}, "overlap_communication", "with pipeline"),
        ({"gather_bucket_elements": 1000, "zero_stage": 3}, "gather_bucket_elements", "expected 33554432, or"),
    ],
)
def test_each_rule_gives_its_reason(block: dict[str, Any], key: str, reason: str) -> None:
    found = [message for name, message in refusals(**block) if name == key]
    assert any(reason in message for message in found), refusals(**block)


def test_flash_takes_no_window() -> None:
    model = Model(document_mask=False, window=SlidingWindow())
    places = {"ranks": 1, "sequence_tokens": 64, "precision": "fp32"}
    (refusal,) = problems(Parallel(attention="flash"), model, **places)
    assert "a sliding window needs one" in refusal[1]
    assert not list(problems(Parallel(attention="flex"), model, **places))


def test_flash_has_no_sinks() -> None:
    places = {"ranks": 1, "sequence_tokens": 64, "precision": "fp32"}
    (refusal,) = problems(Parallel(attention="flash"), Model(document_mask=False, sinks=True), **places)
    assert "sinks need it" in refusal[1]


def test_flash_takes_no_documents() -> None:
    block, places = Parallel(attention="flash"), {"ranks": 1, "sequence_tokens": 64, "precision": "fp32"}
    assert [key for key, _ in problems(block, MODEL, **places)] == ["attention"]
    assert not list(problems(block, MODEL.model_copy(update={"document_mask": False}), **places))


def test_deepspeed_refuses_the_same_pipeline() -> None:
    """Our rule is read off DeepSpeed's: if it ever changes, so may ours."""
    found = importlib.util.find_spec("deepspeed")  # not imported: that takes seconds
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "runtime" / "pipe" / "engine.py").read_text()
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in source


def test_the_recipe_names_file_line_and_key(tmp_path: Path) -> None:
    base = Path(__file__).parents[4] / "jobs" / "plinth_jobs" / "recipes" / "demo.yaml"
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {base}\ntraining:\n  parallel:\n    tensor: 2\n    zero_stage: 3\n")
    recipe, found = check(path)
    assert recipe is None
    (problem,) = found
    assert (problem.key, problem.mark.line) == ("training.parallel.zero_stage", 5)


def test_the_block_bears_no_identity() -> None:
    """Division decides speed and memory, not what is learned: the run is the same one."""
    from plinth.training.config import run_key
    from plinth.training.parameters.run import Training

    divided = Training(parallel=Parallel(tensor=2, zero_stage=2, activation_checkpointing=1))
    assert run_key(divided, "m", "t") == run_key(Training(), "m", "t")
    assert Recipe.model_fields["training"].annotation is Training


def test_shorter_rows_divide_over_sequence_ranks_too(tmp_path: Path) -> None:
    base = Path(__file__).parents[4] / "jobs" / "plinth_jobs" / "recipes" / "demo.yaml"
    lines = [
        f"extends: {base}",
        "mixture: {sequence_tokens: 480}",
        "training:",
        "  model: {heads: 6, kv_heads: 2, dim: 192}",
        "  launch: {ranks: 3}",
        "  parallel: {sequence: 3}",
        "  changes: [{from_step: 1, sequence_tokens: 10}]",
    ]
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(lines) + "\n")
    messages = {problem.key: problem.message for problem in check(path)[1]}
    assert messages["training.changes[0].sequence_tokens"] == "10 is not divisible by parallel.sequence = 3"
