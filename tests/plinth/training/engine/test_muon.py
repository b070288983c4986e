"""Muon on whole matrices is PyTorch's, bit for bit; an update kept back changes nothing; parts come together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from plinth.model.decoder import build
from plinth.model.parameters import Model, MuP
from plinth.training.engine import optimization
from plinth.training.engine.optimization import Muon, orthogonal, parameter_groups, set_rates
from plinth.training.parameters.optimizers import MuonOptions, Optimizer, make_optimizer, problems_with_division
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

SHAPE = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=48, tied_embeddings=False)
NAMES = {"rms": "match_rms_adamw", "spectral": "original"}
HIDDEN = ("self_attn", "mlp")


def optimizer_of(model: torch.nn.Module, **options: Any) -> Any:
    block = Optimizer(kind="muon", lr=2e-2, options=options)
    return make_optimizer(parameter_groups(block, SHAPE, model.named_parameters()), block, None)


def learn(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("scale", ["rms", "spectral"])
def test_whole_matrices_as_torch_bit_for_bit(scale: str) -> None:
    ours, theirs = build(SHAPE, 20, 1), build(SHAPE, 20, 1)
    optimizer = optimizer_of(ours, scale=scale, momentum=0.9)
    named = dict(theirs.named_parameters())
    hidden = [p for name, p in named.items() if any(part in name for part in HIDDEN) and p.dim() == 2]
    ends = [named["embed_tokens"], named["lm_head"]]
    gains = [p for p in named.values() if p.dim() == 1]
    assert len(hidden) == 7 * SHAPE.layers
    muon = torch.optim.Muon(hidden, lr=2e-2, momentum=0.9, weight_decay=0.1, adjust_lr_fn=NAMES[scale])
    adam = {"lr": 2e-2, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}
    others = [torch.optim.AdamW(ends, weight_decay=0.1, **adam), torch.optim.AdamW(gains, weight_decay=0.0, **adam)]
    for step in range(4):
        for model in (ours, theirs):
            learn(model, step)
        set_rates(optimizer.param_groups, 2e-2 / (step + 1))
        for one in (muon, *others):
            set_rates(one.param_groups, 2e-2 / (step + 1))
            one.step()
        optimizer.step()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, named[name]), name


def test_a_made_orthogonal_matrix_has_singular_values_near_one() -> None:
    for shape in ((40, 40), (64, 24), (24, 64)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        made = torch.linalg.svdvals(orthogonal(matrix.bfloat16()).float())
        assert made.min() > 0.3, shape
        assert made.max() < 1.3, shape


def state_of(model: torch.nn.Module, optimizer: Any) -> list[torch.Tensor]:
    kept = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        kept += [state[name].clone() for name in sorted(state)]
    return kept


def test_an_update_that_is_kept_back_changes_nothing_and_an_allowed_one_is_the_same() -> None:
    model, free = build(SHAPE, 20, 1), build(SHAPE, 20, 1)
    judged, plain = optimizer_of(model), optimizer_of(free)
    for step in range(3):
        learn(model, step)
        learn(free, step)
        judged.found_inf = torch.zeros(())
        judged.step()
        plain.step()
    assert all(torch.equal(a, b) for a, b in zip(state_of(model, judged), state_of(free, plain), strict=True))
    before = state_of(model, judged)
    learn(model, 9)
    next(model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
    dict(model.named_parameters())["layers.0.mlp.up_proj.weight"].grad.fill_(math.inf)  # type: ignore[union-attr]
    judged.found_inf = torch.ones(())
    judged.step()
    assert all(torch.equal(a, b) for a, b in zip(state_of(model, judged), before, strict=True))


@pytest.mark.parametrize(("scale", "factor"), [("rms", 0.5), ("spectral", 1.0)])
def test_mup_keeps_the_spectral_norm_of_an_update(scale: str, factor: float) -> None:
    """Four times as wide: the norm of lr x scale x O is the same for square matrices of both widths."""
    block = Optimizer(kind="muon", options={"scale": scale})
    narrow, wide = (Model(layers=1, dim=d, heads=4, kv_heads=4, ffn_dim=d, mup=32) for d in (32, 128))
    norms = []
    for model in (narrow, wide):
        groups = parameter_groups(block, model, build(model, 20, 1).named_parameters())
        (hidden,) = (group for group in groups if group.get("hidden_matrices"))
        norms.append(hidden["lr_factor"] * (0.2 * math.sqrt(model.dim) if scale == "rms" else 1.0))
    assert norms[0] == pytest.approx(norms[1])
    assert hidden["lr_factor"] == factor


#: Matrices of a group end to end: borders within, at and beyond matrices, and one over all ranks.
SHAPES = [(2, 3), (5, 7), (1, 4), (20, 6), (3, 3), (4, 1)]


def there_and_back(world: int) -> bool:
    """On one of the ranks: parts of ZeRO-1's and ZeRO-3's division are whole at their owners and come back the same."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    matrices = [torch.arange(a * b).view(a, b) + 1000.0 * n for n, (a, b) in enumerate(SHAPES)]
    sizes = [matrix.numel() for matrix in matrices]
    flat, offsets = torch.cat([m.view(-1) for m in matrices]), [sum(sizes[:n]) for n in range(len(sizes))]
    share = -(-len(flat) // world)
    held = torch.nn.functional.pad(flat, (0, share * world - len(flat)))[rank * share : (rank + 1) * share]
    whole = _owned(optimization._end_to_end(matrices, offsets, share, dist.group.WORLD), held)
    shares = [-(-size // world) for size in sizes]
    parts = [m.view(-1)[rank * part : (rank + 1) * part] for m, part in zip(matrices, shares, strict=True)]
    three = torch.cat([torch.nn.functional.pad(p, (0, part - len(p))) for p, part in zip(parts, shares, strict=True)])
    outer = _Stage3(matrices, shares, three)
    ((_, waves),) = optimization._divided_each(outer, [0])
    counts = [None] * world
    dist.all_gather_object(counts, (whole, _owned(waves, three)))
    for which in (0, 1):
        owned = [one for found in counts for one in found[which]]  # type: ignore[index]
        assert sorted(owned) == sorted((m.shape, m.view(-1).tolist()) for m in matrices), which
    dist.destroy_process_group()
    return True


def _owned(waves: list[Any], flat: torch.Tensor) -> list[Any]:
    found = []
    for wave in waves:
        parts = [flat[one.held] for one in wave.matrices]
        whole = wave.gather(parts)
        found += [(matrix.shape, matrix.view(-1).tolist()) for matrix in whole.values()]
        back = wave.scatter({index: matrix.view(-1) for index, matrix in whole.items()}, parts)
        assert all(torch.equal(a, b) for a, b in zip(back, parts, strict=True))
    return found


class _Stage3:
    """Stand-in for the attributes that are read from DeepSpeed's ZeRO-3 optimizer; `test_muon_stages` has the real
    one."""

    def __init__(self, matrices: list[Any], shares: list[int], flat: torch.Tensor) -> None:
        for matrix in matrices:
            matrix.ds_numel, matrix.ds_shape = matrix.numel(), matrix.shape
        self.fp16_groups, self.sub_group_to_group_id, self.fp32_partitioned_groups_flat = [matrices], {0: 0}, [flat]
        self.grad_position = {n: [0, sum(shares[:n]), share] for n, share in enumerate(shares)}
        self.dp_process_group = dist.group.WORLD
        self.get_param_id = lambda matrix: [id(one) for one in matrices].index(id(matrix))


@pytest.mark.parametrize("world", [2, 3])
def test_parts_are_whole_at_one_owner_and_come_back(world: int) -> None:
    assert run_ranks(world, there_and_back, world) == [True] * world


def test_divisions_that_hold_no_whole_matrix_are_refused_by_name() -> None:
    def refused(optimizer: Optimizer, precision: str = "bf16", model: Model = SHAPE, **parallel: Any) -> list[str]:
        return [key for key, _ in problems_with_division(optimizer, Parallel(**parallel), model, precision)]

    muon, wide = Optimizer(kind="muon"), SHAPE.model_copy(update={"mup": MuP(base_dim=SHAPE.dim // 2)})
    assert refused(muon, tensor=2, offload="optimizer") == ["tensor", "offload"]
    assert refused(muon, zero_stage=3, sequence=2) == refused(muon, pipeline=2) == []
    assert refused(Optimizer(), tensor=2, offload="optimizer") == []
    assert refused(muon, "fp16", pipeline=2) == refused(Optimizer(), "fp16", wide, pipeline=2) == ["pipeline"]
    assert refused(Optimizer(), "fp16", pipeline=2) == refused(muon, "fp16", zero_stage=1) == []


def test_options_are_those_of_the_optimizer() -> None:
    with pytest.raises(Exception, match="no parameter 'momentun'"):
        optimizer_of(build(SHAPE, 20, 1), momentun=0.9)
    assert isinstance(optimizer_of(build(SHAPE, 20, 1)), Muon)
    assert MuonOptions().scale == "rms"
