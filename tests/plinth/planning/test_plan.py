from __future__ import annotations

import pytest

from plinth.planning import memory, model
from plinth.planning.plan import plan
from plinth.recipe import Recipe
from plinth.recipe.training import Model

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
    counted = model.parameters(tiny, 1000)
    assert (counted.embedding, counted.attention, counted.feed_forward, counted.norms, counted.output) == (
        8000,
        384,
        768,
        40,
        0,
    )
    assert counted.total == 9192
    assert model.parameters(tiny.model_copy(update={"qk_norm": True}), 1000).norms == 40 + 2 * 2 * 4


@pytest.mark.parametrize(
    ("size", "vocabulary", "published"), [(LLAMA_7B, 32000, 6_738_415_616), (LLAMA_3_8B, 128256, 8_030_261_248)]
)
def test_parameters_of_published_models(size: Model, vocabulary: int, published: int) -> None:
    """Parameter counts of the released Llama 7B and Llama 3 8B checkpoints."""
    assert model.parameters(size, vocabulary).total == published


def test_flops_by_hand() -> None:
    tiny = Model(layers=2, dim=8, heads=2, kv_heads=1, ffn_dim=16)
    assert model.flops_6n(tiny, 1000) == 6 * 9192
    assert model.flops_exact(tiny, 1000, 100) == 6 * (384 + 768 + 8000) + 12 * 2 * 8 * 100


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_zero_divides_sixteen_bytes_per_parameter(precision: str) -> None:
    """The worked example of the ZeRO paper (figure 1): 7.5B parameters, 64 devices: 120, 31.4, 16.6, 1.9 GB."""
    found = []
    for stage in range(4):
        used = memory.per_device(
            LLAMA_7B,
            7_500_000_000,
            vocab_size=32000,
            sequence_tokens=1,
            micro_batch=1,
            ranks=64,
            zero_stage=stage,
            precision=precision,  # type: ignore[arg-type]
        )
        found.append(round((used.parameters + used.gradients + used.optimizer) / 1e9, 1))
    expected = {"bf16": [120.0, 31.4, 16.6, 1.9], "fp32": [120.0, 60.9, 31.4, 1.9]}
    assert found == expected[precision]


def test_plan_by_hand() -> None:
    # 10,050 tokens are 100 sequences, 12 steps of 8, 9,600 tokens; 450 are not used.
    made = plan(_recipe(), tokens_per_second=1200)
    assert (made.steps, made.tokens, made.unused_tokens, made.global_batch_tokens) == (12, 9600, 450, 800)
    assert made.wall_clock_s == 8.0
    assert made.flops_6nd == 6 * 9192 * 9600
    assert made.parameters_without_embeddings == 1192
    assert made.memory_per_device.total == made.memory_by_zero_stage[1]
    assert list(made.memory_by_zero_stage) == sorted(made.memory_by_zero_stage, reverse=True)
    assert "1,200 tokens/s over all ranks, without start-up, checkpoints and restarts" in made.assumptions


def test_assumptions_say_what_was_not_known() -> None:
    made = plan(_recipe())
    assert made.wall_clock_s is None
    assert "no wall clock: no speed was stated" in made.assumptions
    assert "precision auto means fp32 on this machine" in made.assumptions
    known = plan(_recipe(precision="bf16"), vocab_size=500, tokens_per_second=1.0)
    assert (known.precision, known.vocab_size) == ("bf16", 500)
    assert not [line for line in known.assumptions if "vocabulary" in line or "auto" in line or "no speed" in line]
