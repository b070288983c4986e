"""Presets: what they fill in, and how many parameters they have, counted on a device that holds none."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from plinth.model import architectures as planning
from plinth.model.decoder import Decoder
from plinth.model.parameters import PRESETS, Model, MuP, RopeScaling
from plinth.training.config import run_key
from plinth.training.parameters.run import Training

#: Those of Llama 3.2 1B and 3B, Llama 3 8B and 70B are the published counts; those of OLMo follow from its shapes.
#: Models with experts are published with 6.92B and 30.5B, of which 1.28B and 3.3B are active.
COUNTS = {
    "1m": 1_049_728,
    "10m": 10_490_112,
    "60m": 59_257_344,
    "150m": 151_023_360,
    "350m": 352_371_712,
    "1b": 1_235_814_400,
    "3b": 3_212_749_824,
    "8b": 8_030_261_248,
    "70b": 70_553_706_496,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo3-7b": 7_298_011_136,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen3-30b-a3b": 30_532_122_624,
}


def counted(config: Model, vocab_size: int) -> int:
    with torch.device("meta"):
        model = Decoder(config, vocab_size)
    assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", list(PRESETS))
def test_parameter_counts(name: str) -> None:
    config, vocabulary = Model(preset=name), PRESETS[name].vocab_size
    assert counted(config, vocabulary) == COUNTS[name]
    assert planning.parameters(config, vocabulary).total == COUNTS[name]


def test_active_parameters() -> None:
    active = {name: planning.parameters(Model(preset=name), PRESETS[name].vocab_size).active for name in PRESETS}
    assert active == COUNTS | {"olmoe-1b-7b": 1_282_017_280, "qwen3-30b-a3b": 3_353_032_704}


@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": True},
        {"tied_embeddings": False},
        {"head_dim": 24, "qk_norm": True},
        {"kv_heads": 4},
        {"architecture": "olmo2"},
        {"window": {"tokens": 8}},
        {"rotary_fraction": 0.5},
        {"sinks": True},
        {"architecture": "olmo2", "kv_heads": 1, "head_dim": 24, "tied_embeddings": False},
        {"architecture": "olmoe", "experts": {"count": 4, "active": 2, "ffn_dim": 384}},
        {"qk_norm": True, "experts": {"count": 4, "active": 2, "ffn_dim": 40, "every": 2, "dense_first": 2}},
        {"experts": {"count": 4, "active": 1, "ffn_dim": 40, "shared": 3, "score": "sigmoid", "dense_first": 1}},
        {"mup": MuP(base_dim=64), "rope_scaling": RopeScaling(), "z_loss": 1e-4, "init": "megatron"},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_planned_counts_are_the_models(changes: dict[str, object]) -> None:
    config = Model.model_validate({"preset": "1m", **changes})
    assert planning.parameters(config, 501).total == counted(config, 501)


def test_a_preset_is_a_shape_and_nothing_else() -> None:
    config = Model.model_validate({"preset": "8b", "layers": 4, "tied_embeddings": True})
    assert (config.layers, config.dim, config.ffn_dim, config.tied_embeddings) == (4, 4096, 14336, True)
    written = Model(**PRESETS["8b"].fields())
    assert run_key(Training(model=Model(preset="8b")), "m", "t") == run_key(Training(model=written), "m", "t")
    assert Model.model_validate_json(config.model_dump_json()) == config.model_copy(update={"preset": None})
    olmo = Model(preset="olmo2-1b")
    assert Model.model_validate_json(olmo.model_dump_json()) == olmo.model_copy(update={"preset": None})
    with pytest.raises(ValidationError, match="preset"):
        Model.model_validate({"preset": "9b"})


def test_the_architecture_is_in_no_dump_of_a_llama() -> None:
    """Run keys of recipes that were written before there were others stay."""
    assert "architecture" not in Model().model_dump()
    assert Model(architecture="olmo2").model_dump()["architecture"] == "olmo2"
    assert run_key(Training(model=Model(architecture="olmo2")), "m", "t") != run_key(Training(), "m", "t")


def test_a_window_is_in_no_dump_of_a_model_without() -> None:
    assert "window" not in Model().model_dump()
    windowed = Model(preset="olmo3-7b")
    assert windowed.windows[:5] == (4096, 4096, 4096, None, 4096)
    assert Model.model_validate_json(windowed.model_dump_json()) == windowed.model_copy(update={"preset": None})
    with pytest.raises(ValidationError, match="layers are all full"):
        Model.model_validate({"window": {"layers": ["full"]}})
    with pytest.raises(ValidationError, match=r"architecture llama has window\.rope_theta without sinks"):
        Model.model_validate({"window": {"rope_theta": 1e4}})


@pytest.mark.parametrize(
    ("fields", "found"),
    [({"head_dim": 10, "rotary_fraction": 0.5}, "0.5 of head width 10 is not an even number"),
     ({"rotary_fraction": 0.01}, "not an even number"),
     ({"rotary_fraction": 0.5, "qk_norm": True, "rope_scaling": {}}, "both rotary_fraction and qk_norm, rope_scaling"),
     ({"rotary_fraction": 0.5, "window": {}}, "both rotary_fraction and a window in some layers only")],
)  # fmt: skip
def test_partly_rotated_heads_are_those_of_a_published_form(fields: dict[str, object], found: str) -> None:
    assert "rotary_fraction" not in Model().model_dump()
    with pytest.raises(ValidationError, match=found):
        Model.model_validate(fields)


def test_sinks_are_those_of_a_published_form() -> None:
    assert "sinks" not in Model().model_dump()
    assert Model(sinks=True).model_dump()["sinks"]
    with pytest.raises(ValidationError, match="no published model has sinks with architecture olmo2"):
        Model(sinks=True, qk_norm=True)


def test_olmo2_implies_its_qk_norm() -> None:
    assert Model(architecture="olmo2").qk_norm
    with pytest.raises(ValidationError, match="normalizes queries and keys; remove it"):
        Model(architecture="olmo2", qk_norm=False)


def test_experts_are_in_no_dump_of_a_dense_model() -> None:
    assert "experts" not in Model().model_dump()
    mixed = Model(preset="qwen3-30b-a3b")
    assert Model.model_validate_json(mixed.model_dump_json()) == mixed.model_copy(update={"preset": None})


SIGMOID = {"score": "sigmoid", "shared": 1}


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"experts": {}}, "softmax scores without qk_norm"),
        ({"experts": {"shared": 1}, "qk_norm": True}, "softmax scores with shared experts or a scale"),
        ({"experts": {"score": "sigmoid"}}, "sigmoid scores without shared experts"),
        ({"experts": {**SIGMOID, "every": 2}}, "sigmoid scores in every n-th layer"),
        ({"experts": {"active": 65}, "qk_norm": True}, "experts.active 65 of 64 experts"),
        ({"experts": {"balancing": "loss_free"}, "qk_norm": True}, "loss_free with score softmax"),
        ({"experts": {"dense_first": 6}, "qk_norm": True}, "experts in none of 6 layers"),
        ({"experts": {}, "architecture": "olmo2"}, "experts in architecture olmo2"),
        ({"experts": SIGMOID, "sinks": True}, "experts with a window, sinks"),
        ({"architecture": "olmoe"}, "architecture olmoe without experts"),
        ({"architecture": "olmoe", "experts": {}}, "olmoe with ffn_dim 704 and experts.ffn_dim 1024"),
        ({"architecture": "olmoe", "ffn_dim": 1024, "experts": {"dense_first": 1}}, "olmoe with dense layers"),
        ({"architecture": "olmoe", "ffn_dim": 1024, "experts": {}, "head_dim": 32}, "another head width"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_forms_of_experts_that_no_model_has_are_refused(changes: dict[str, object], refusal: str) -> None:
    with pytest.raises(ValidationError, match=refusal):
        Model.model_validate(changes)
