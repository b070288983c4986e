"""Configuration of a mixture of experts, its names in model files, and its fields in Hugging Face's configurations.

    qwen3_moe   softmax scores, no shared expert (Qwen3, arXiv:2505.09388)
    olmoe       softmax scores, every layer sparse (OLMoE, arXiv:2409.02060)
    glm4_moe    sigmoid scores, shared experts, a correction bias for balance without a loss (GLM-4.5, arXiv:2508.06471,
                after DeepSeek-V3, arXiv:2412.19437)

The decoder stacks the matrices of all experts of a layer: a parameter [experts, rows, columns] is divided over ranks by
whole experts and multiplied in one grouped product. In model files every expert has tensors of its own, as Hugging
Face's files do. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen

#: Fields that affect training only, so that a model with other values has the same weights and the same output.
TRAINING_ONLY: Final = frozenset({"balancing", "auxiliary_coefficient", "z_loss_coefficient", "bias_rate"})


class Experts(Frozen):
    """Mixture of experts in place of the feed-forward: a router sends each token to some experts, and none is dropped
    (MegaBlocks, arXiv:2211.15841)."""

    count: int = Field(64, ge=2, description="Experts in each sparse layer.")
    active: int = Field(8, ge=1, description="Experts that each token is sent to (top-k).")
    ffn_dim: int = Field(1024, ge=8, description="Inner width of an expert.")
    shared: int = Field(
        0, ge=0, description="Experts that every token uses in addition, as one of this many times the width."
    )
    score: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="Function of the router's logits; `sigmoid` as in DeepSeek-V3."
    )
    normalize_top_k: bool = Field(False, description="Divide a token's weights by their sum.")
    scale: float = Field(1.0, gt=0, description="Factor of the weights.")
    every: int = Field(1, ge=1, description="Make every n-th layer sparse.")
    dense_first: int = Field(0, ge=0, description="Layers at the start that stay dense.")
    balancing: Literal["auxiliary", "loss_free"] = Field(
        "auxiliary",
        description="`auxiliary`: a loss that is 1 if all experts have the same load. `loss_free`: a bias per expert "
        "for selection only, moved against the load after each step.",
    )
    auxiliary_coefficient: float = Field(0.01, ge=0, description="Weight of the auxiliary loss.")
    z_loss_coefficient: float = Field(0.001, ge=0, description="Weight of the router's z-loss.")
    bias_rate: float = Field(0.001, ge=0, description="Change of a bias per step with `loss_free`.")

    @model_validator(mode="after")
    def _selects(self) -> Experts:
        if self.active > self.count:
            raise ValueError(f"experts.active {self.active} of {self.count} experts")
        if self.balancing == "loss_free" and self.score != "sigmoid":
            raise ValueError("no published model has experts.balancing loss_free with score softmax; use sigmoid")
        return self

    def at(self, layer: int) -> bool:
        """Return True if a layer is sparse."""
        return layer >= self.dense_first and (layer + 1) % self.every == 0

    def sparse_layers(self, layers: int) -> int:
        """Return the number of sparse layers out of `layers`."""
        return sum(self.at(layer) for layer in range(layers))

    @property
    def form(self) -> dict[str, Any]:
        """Fields that affect parameters or the forward pass."""
        return self.model_dump(exclude=set(TRAINING_ONLY))


def expert_name(name: str, expert: int) -> str:
    """Return the name of one expert's part of a stacked parameter: `….experts.3.up_proj.weight`."""
    before, _, projection = name.rpartition(".")
    return f"{before}.{expert}.{projection}.weight"


#: Model types of `transformers` with experts, and their field for the coefficient of the auxiliary loss.
_FAMILIES: Final = ("qwen3_moe", "olmoe", "glm4_moe")


def fields(experts: Experts | None, model_type: str) -> dict[str, Any]:
    """Return the fields of `config.json` that describe a model's experts, in the names of a family; none if dense."""
    if experts is None or model_type not in _FAMILIES:
        return {}
    common: dict[str, Any] = {"num_experts_per_tok": experts.active, "norm_topk_prob": experts.normalize_top_k}
    if model_type == "glm4_moe":
        return common | {
            "n_routed_experts": experts.count,
            "n_shared_experts": experts.shared,
            "moe_intermediate_size": experts.ffn_dim,
            "routed_scaling_factor": experts.scale,
            "first_k_dense_replace": experts.dense_first,
            "n_group": 1,
            "topk_group": 1,
            "num_nextn_predict_layers": 0,
            "partial_rotary_factor": 1.0,
        }
    common |= {"num_experts": experts.count, "router_aux_loss_coef": experts.auxiliary_coefficient}
    if model_type == "olmoe":
        return common | {"intermediate_size": experts.ffn_dim}
    return common | {
        "moe_intermediate_size": experts.ffn_dim,
        "decoder_sparse_step": experts.every,
        "mlp_only_layers": list(range(experts.dense_first)),
    }


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """Return the experts that a configuration of `transformers` describes, or None if the family has none.

    Raises:
        ValueError: Plinth's decoder does not support the model.
    """
    family = config["model_type"]
    if family not in _FAMILIES:
        return None
    dense = list(config.get("mlp_only_layers") or [])
    if dense != list(range(len(dense))):
        raise ValueError(f"mlp_only_layers {dense}, expected the first layers")
    for name, only in (("n_group", 1), ("topk_group", 1)):
        if config.get(name, only) != only:
            raise ValueError(f"{name} {config[name]}, expected {only}")
    count = next(config[name] for name in ("num_experts", "num_local_experts", "n_routed_experts") if name in config)
    common = {"count": count, "active": config["num_experts_per_tok"]}
    if family == "glm4_moe":
        return Experts(
            **common,
            ffn_dim=config["moe_intermediate_size"],
            shared=config["n_shared_experts"],
            score="sigmoid",
            normalize_top_k=config.get("norm_topk_prob", True),
            scale=config.get("routed_scaling_factor", 1.0),
            dense_first=config.get("first_k_dense_replace", 1),
            balancing="loss_free",
        )
    width = config["intermediate_size"] if family == "olmoe" else config["moe_intermediate_size"]
    return Experts(
        **common,
        ffn_dim=width,
        normalize_top_k=config.get("norm_topk_prob", False),
        every=config.get("decoder_sparse_step", 1),
        dense_first=len(dense),
        auxiliary_coefficient=config.get("router_aux_loss_coef", 0.01 if family == "olmoe" else 0.001),
    )
