from __future__ import annotations

from typing import Any

import pytest

from plinth.model import architectures
from plinth.model.parameters import AttentionPath, Model
from plinth.operation import memory
from plinth.recipe.recipe import Recipe
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Training
from plinth_lab.planning.plan import _attention, plan

LLAMA_7B = Model(layers=32, dim=4096, heads=32, kv_heads=32, ffn_dim=11008, tied_embeddings=False)
LLAMA_3_8B = Model(layers=32, dim=4096, heads=32, kv_heads=8, ffn_dim=14336, tied_embeddings=False)


def _recipe(**training: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "corpus": {
                "buckets": {
                    "web": {
                        "description": "d",
                        "owner": "o@example.org",
                        "sources": [
                            {
                                "kind": "text",
                                "path": "x",
                                "licence": "MIT",
                                "terms": {"train": True, "redistribute": True, "commercial": True},
                                "domain": "d",
                                "snapshot": "s",
                            }
                        ],
                    }
                },
                "annotate": {},
                "policies": {"default": {}},
                "permitted_licences": ["MIT"],
            },
            "tokenizer": {"vocab_size": 1000},
            "mixture": {
                "sequence_tokens": 100,
                "total_tokens": 10_050,
                "phases": [{"name": "main", "fraction": 1.0, "weights": {"web": 1.0}}],
            },
            "training": {
                "model": {"layers": 2, "dim": 8, "heads": 2, "kv_heads": 1, "ffn_dim": 16},
                "micro_batch_sequences": 2,
                "global_batch_sequences": 8,
                "launch": {"ranks": 2},
                **training,
            },
            "release": {"name": "tiny"},
        }
    )


def test_parameters_by_hand() -> None:
    # attention 8x8 + 2 x 8x4 + 8x8 = 192, feed-forward 3 x 8 x 16 = 384, norms 2 x 8, per layer; final norm 8.
    tiny = Model(layers=2, dim=8, heads=2, kv_heads=1, ffn_dim=16)
    counted = architectures.parameters(tiny, 1000)
    assert (counted.embedding, counted.attention, counted.feed_forward, counted.norms, counted.output) == (
        8000,
        384,
        768,
        40,
        0,
    )
    assert counted.total == 9192
    assert architectures.parameters(tiny.model_copy(update={"qk_norm": True}), 1000).norms == 40 + 2 * 2 * 4


@pytest.mark.parametrize(
    ("size", "vocabulary", "published"), [(LLAMA_7B, 32000, 6_738_415_616), (LLAMA_3_8B, 128256, 8_030_261_248)]
)
def test_parameters_of_published_models(size: Model, vocabulary: int, published: int) -> None:
    """Parameter counts of the released Llama 7B and Llama 3 8B checkpoints."""
    assert architectures.parameters(size, vocabulary).total == published


def test_flops_by_hand() -> None:
    tiny = Model(layers=2, dim=8, heads=2, kv_heads=1, ffn_dim=16)
    assert architectures.flops_6n(tiny, 1000) == 6 * 9192
    assert architectures.flops_exact(tiny, 1000, 100) == 6 * (384 + 768 + 8000) + 12 * 2 * 8 * 100


def test_zero_divides_the_states() -> None:
    """The worked example of the ZeRO paper (figure 1), 7.5B parameters on 64 devices, with gradients in FP32."""
    found = {}
    for precision in ("bf16", "fp32"):
        for stage in range(4):
            used = memory.states(7_500_000_000, ranks=64, zero_stage=stage, precision=precision)  # type: ignore[arg-type]
            found[precision, stage] = tuple(round(each / 1e9, 1) for each in used)
    assert found == {
        ("bf16", 0): (15.0, 30.0, 90.0),
        ("bf16", 1): (15.0, 30.5, 1.4),  # whole gradients until they are reduced, and this rank's part
        ("bf16", 2): (15.0, 0.5, 1.4),
        ("bf16", 3): (0.2, 0.5, 1.4),
        ("fp32", 0): (30.0, 30.0, 60.0),  # parameters are their own masters
        ("fp32", 1): (30.0, 30.5, 1.4),
        ("fp32", 2): (30.0, 0.5, 1.4),
        ("fp32", 3): (0.5, 0.5, 1.4),
    }
    at_once = memory.states(7_500_000_000, ranks=64, zero_stage=1, precision="bf16", at_once=True)
    assert round(at_once.gradients / 1e9, 1) == 0.5


def test_muon_keeps_a_momentum_and_a_mean_as_much() -> None:
    """A model of 100 parameters, 60 in matrices: 12 bytes each; 4 less for matrices; 4 more for the mean, all divided
    alike."""

    def kept(stage: int, precision: memory.Precision = "bf16", **optimizer: Any) -> int:
        asked = Optimizer(**optimizer)
        return memory.states(
            100, ranks=4, zero_stage=stage, precision=precision, optimizer=asked, matrices=60
        ).optimizer

    assert (kept(1), kept(1, kind="muon"), kept(1, ema_decay=0.9)) == (300, 240, 400)
    assert (kept(0), kept(0, kind="muon", ema_decay=0.9), kept(0, "fp32", kind="muon")) == (1200, 1360, 560)
    model, whole = Model(layers=4, dim=320, heads=2, kv_heads=2, ffn_dim=832), Parallel()
    assert memory.matrices_of_rank(model, 64, whole) == 4 * (4 * 320 * 320 + 3 * 320 * 832)


def test_the_plan_tells_the_way_of_gradients() -> None:
    assert plan(_recipe()).gradients.text() == (
        "accumulated in fp32, sent in fp32, reduced once a step, during the backward pass"
    )
    cheap = plan(_recipe(precision="bf16", parallel={"zero_stage": 3, "communication_dtype": "bf16"}))
    assert cheap.gradients.text().startswith("accumulated in fp32, sent in bf16, reduced each micro batch")
    alone = plan(_recipe(parallel={"zero_stage": 0}))
    assert alone.gradients.text().endswith("reduced once a step, after the backward pass")


def test_plan_by_hand() -> None:
    # 10,050 tokens are 100 sequences, 12 steps of 8, 9,600 tokens; 450 are not used.
    made = plan(_recipe(), tokens_per_second=1200)
    assert (made.steps, made.tokens, made.unused_tokens, made.global_batch_tokens) == (12, 9600, 450, 800)
    assert made.wall_clock_s == 8.0
    assert made.flops_6nd == 6 * 9192 * 9600
    assert made.parameters_without_embeddings == 1192
    assert made.memory_per_device.total == made.memory_by_zero_stage[1]
    assert sorted(made.memory_by_zero_stage) == [0, 1, 2, 3]
    assert made.fits is None
    assert "1,200 tokens/s over all ranks (stated), without start-up, checkpoints and restarts" in made.assumptions


@pytest.mark.parametrize(
    ("path", "documents", "says"),
    [
        ("auto", True, "flex with block masks on GPUs if documents end within rows, otherwise sdpa"),
        ("auto", False, "sdpa"),
        ("sdpa", True, "sdpa with dense masks"),
        ("flex", True, "flex with block masks"),
        ("flash", False, "flash"),
    ],
)
def test_the_path_of_attention_is_stated(path: AttentionPath, documents: bool, says: str) -> None:
    model, block = Model(document_mask=documents), Parallel(attention=path)
    assert _attention(Training(model=model, parallel=block)) == says


def test_assumptions_say_what_was_not_known() -> None:
    made = plan(_recipe())
    assert made.wall_clock_s is None
    assert "no wall-clock time, because no speed was stated" in made.assumptions
    assert any(line.startswith("precision auto is estimated as fp32") for line in made.assumptions)
    known = plan(_recipe(precision="bf16"), vocab_size=500, tokens_per_second=1.0)
    assert (known.precision, known.vocab_size) == ("bf16", 500)
    assert not [line for line in known.assumptions if "vocabulary" in line or "auto" in line or "no speed" in line]


def test_a_private_run_is_planned_with_its_sum_of_gradients_and_its_time() -> None:
    given: dict[str, Any] = {"precision": "bf16", "guard": {"enabled": False}, "launch": {"ranks": 4}}
    plain, private = _recipe(**given), _recipe(**given, privacy={"epsilon": 8, "delta": 1e-6})
    made, bare = plan(private), plan(plain)
    used, usual = made.memory_per_device, bare.memory_per_device
    # activations of a sequence are more than gradients: the sum in FP32, its own, and twice the embedding
    assert (used.gradients, used.buffers) == (6 * made.parameters, 2 * 4 * 8000)
    rotation = 100 * 2 * 4 * 2  # of a row's positions, however many rows there are
    halved = ((usual.activations + rotation) // 2, usual.logits // 2)  # micro batches of two
    assert (used.activations, used.logits) == halved
    assert (used.parameters, used.optimizer) == (usual.parameters, usual.optimizer)
    assert list(made.memory_by_zero_stage) == [0, 1]
    (words,) = [line for line in made.assumptions if line.startswith("private: a step is")]
    assert f"{plain.training.global_batch_sequences / 4:g} forward and backward passes of one sequence" in words
    assert not [line for line in bare.assumptions if line.startswith("private")]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_sum_of_a_private_step_becomes_its_gradients(overlap: bool) -> None:
    """Short sequences: the backward pass over the sum takes more than clipping."""
    block = Parallel(overlap_communication=overlap)
    short, same = (
        memory.per_device(
            TINY, block, vocab_size=100, sequence_tokens=1, micro_batch=1, accumulation=1, ranks=4, precision="bf16",
            private=private,
        )
        for private in (True, False)
    )  # fmt: skip
    own = architectures.parameters(TINY, 100).total
    arriving = 4 * 100 * TINY.dim if overlap else 0
    found = (short.gradients, short.buffers, short.activations)
    assert found == (4 * (own + -(-own // 4)), same.buffers - arriving, 0)


TINY = Model(layers=4, dim=8, heads=4, kv_heads=2, ffn_dim=16)
# a block: attention 8x8 + 2 x 8x4 + 8x8 = 192, feed-forward 384, norms 16; embedding 800; final norm 8
# bytes per token: two inputs of projections and of norms 4 x 8 x 2 + two statistics x 4 = 72; divided by tensor:
# (2 x 8 + 2 x 4 + 4 x 16) x 2 + 4 heads x 4 = 192; last norm and what the loss is of 2 x 8 x 2 + 4 = 36; cosine and
# sine of a position 2 x 2 x 2 = 8


def _used(ranks: int = 4, accumulation: int = 4, **block: object) -> memory.Memory:
    return memory.per_device(
        TINY,
        Parallel(**block),  # type: ignore[arg-type]
        vocab_size=100,
        sequence_tokens=50,
        micro_batch=2,
        accumulation=accumulation,
        ranks=ranks,
        precision="bf16",
    )


def test_memory_of_a_divided_model_by_hand() -> None:
    whole = 4 * (192 + 384 + 16) + 800 + 8
    assert memory.parameters_of_rank(TINY, 100, Parallel()) == whole == architectures.parameters(TINY, 100).total
    halved = (4 * (192 + 384) + 800) // 2 + 4 * 16 + 8  # norms are on every tensor rank
    assert memory.parameters_of_rank(TINY, 100, Parallel(tensor=2)) == halved
    stage = 2 * (192 + 384) + 800 + (4 * 16 + 8) // 2
    assert memory.parameters_of_rank(TINY, 100, Parallel(pipeline=2)) == stage
    plain, tensor, sequence, pipeline = _used(), _used(tensor=2), _used(sequence=2), _used(pipeline=2)
    assert plain.activations == 100 * (4 * (72 + 192) + 36) + 50 * 8
    assert tensor.activations == 100 * (4 * (72 + 96) + 36) + 50 * 8
    assert sequence.activations == plain.activations // 2 + 50 * 4 * 8 * 2  # attention's output as it is received
    assert pipeline.activations == (100 * 2 * (72 + 192) + 50 * 8) * 2  # half the layers, two micro batches in flight
    assert _used(pipeline=2, accumulation=1).activations == pipeline.activations // 2
    assert tensor.logits == plain.logits // 2 == 100 * 50 * (2 + 8)
    # ZeRO-1 divides twelve bytes by the ranks that hold the same parameters
    assert (plain.optimizer, sequence.optimizer) == (whole * 12 // 4, whole * 12 // 4)
    assert tensor.optimizer == halved * 12 // 2
    assert plain.gradients == (whole + whole // 4) * 4


def test_recomputation_keeps_the_inputs_of_blocks_and_one_block() -> None:
    assert _used(activation_checkpointing=1).activations == 100 * (4 * 16 + 36 + 264) + 50 * 8
    assert _used(activation_checkpointing=2).activations == 100 * (2 * 264 + 2 * 16 + 36 + 264) + 50 * 8


def test_a_loss_by_chunks_holds_the_gradient_of_the_output_matrix() -> None:
    """FP32 as it is summed and one product in the run's precision; and the gradient of its input."""
    few, many = (
        memory.per_device(
            TINY, Parallel(), vocab_size=2**16, sequence_tokens=2048, micro_batch=micro, accumulation=1, ranks=1,
            precision="bf16",
        ).logits
        for micro in (1, 2)
    )  # fmt: skip
    assert few == 2**27 * 10
    assert many == 2**27 * 10 + 2**16 * 8 * (4 + 2) + 4096 * 8 * 2


def test_offload_moves_to_the_host() -> None:
    kept, moved = _used(zero_stage=3), _used(zero_stage=3, offload="parameters")
    assert (moved.parameters, moved.gradients, moved.optimizer) == (0, 0, 0)
    whole = 4 * (192 + 384 + 16) + 800 + 8
    # gradients are accumulated on the host, and lent to the optimizer in a second buffer
    assert moved.host == kept.parameters + 2 * kept.gradients + kept.optimizer
    assert moved.host == kept.parameters + whole // 4 * (8 + 12)
    reduced = _used(zero_stage=2, offload="optimizer")
    assert reduced.gradients == _used(zero_stage=2).gradients  # they are accumulated on the device
    assert _used(zero_stage=2, offload="optimizer").parameters == _used(zero_stage=2).parameters


@pytest.mark.parametrize(("zero_stage", "bytes_per_parameter"), [(0, 12), (1, 6)])
def test_copies_for_recoveries_are_in_host_memory(zero_stage: int, bytes_per_parameter: int) -> None:
    """Seven copies of master weights and Adam's moments in FP32 (ZeRO-1: half of them per rank); four on one node."""
    parallel, recovery = {"zero_stage": zero_stage}, {"copies_every": 10}
    state = bytes_per_parameter * 9192
    for kind, copies in (({"kind": "slurm", "nodes": 2}, 7), ({}, 4)):
        made = plan(_recipe(parallel=parallel, recovery=recovery, launch={"ranks": 2, **kind}))
        assert made.memory_per_device.host == copies * state
        assert made.memory_per_device.total == plan(_recipe(parallel=parallel)).memory_per_device.total


def test_published_sizes_fit_or_do_not() -> None:
    """8B in BF16 with Adam needs 18 bytes per parameter, 145 GB: more than an H200; over eight, ZeRO-1 divides
    twelve."""
    for ranks, fits in ((1, False), (8, True)):
        launched = {"launch": {"ranks": ranks}, "model": {"preset": "8b"}, "micro_batch_sequences": 1}
        made = plan(_recipe(precision="bf16", **launched), vocab_size=128256, device="h200")
        assert made.fits is fits
        assert made.division == ("one rank" if ranks == 1 else "data 8")


def test_stages_that_the_block_forbids_are_left_out() -> None:
    made = plan(_recipe(parallel={"pipeline": 2, "zero_stage": 1}))
    assert sorted(made.memory_by_zero_stage) == [0, 1]
    assert made.division == "pipeline 2"


def test_parameters_by_place_and_preset() -> None:
    made = plan(_recipe(model={"preset": "10m", "layers": 3}))
    assert made.preset == "10m"
    assert made.parameters_by_place.total == made.parameters
    assert made.parameters_by_place.feed_forward == 3 * 3 * 256 * 768
    assert made.parameters_by_place.output == 0
