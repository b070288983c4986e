"""Router, experts and balancing losses against plain loops, `transformers`, and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from plinth.errors import CheckpointError
from plinth.model.attention import Layout
from plinth.model.decoder import Decoder, build
from plinth.model.division import UNDIVIDED, file_tensors, standard_deviation, state
from plinth.model.experts import BIAS, Router, SparseFeedForward, auxiliary_loss, grouped
from plinth.model.export import export_model
from plinth.model.folder import SavedWeights, load_model
from plinth.model.hugging_face import hf_config, model_of
from plinth.model.parameters import Model, MuP
from plinth.model.sparsity import Experts
from tests.model_folder import byte_level, save_model, scrambled
from tests.peers import Peer

modeling = Peer("transformers.models.qwen3_moe.modeling_qwen3_moe")

DIM, TOKENS = 16, 40
SOFTMAX = Experts(count=6, active=2, ffn_dim=24)
SIGMOID = Experts(count=6, active=3, ffn_dim=24, shared=1, score="sigmoid", balancing="loss_free", scale=1.5)
QWEN3 = Model(layers=2, dim=DIM, heads=4, kv_heads=2, ffn_dim=40, qk_norm=True, experts=SOFTMAX)
GLM4 = QWEN3.model_copy(update={"experts": SIGMOID})


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(config: Model) -> SparseFeedForward:
    layer = scrambled(config, 50).blocks[0].mlp
    assert isinstance(layer, SparseFeedForward)
    return layer


def plainly(layer: SparseFeedForward, x: Tensor) -> Tensor:
    """Token by token and expert by expert."""
    router, experts, settings = layer.gate, layer.experts, layer.config
    rows = []
    for token in x:
        logits = router.weight @ token
        scores = logits.sigmoid() if settings.score == "sigmoid" else logits.softmax(0)
        rated = scores + getattr(router, BIAS) if settings.score == "sigmoid" else scores
        best = sorted(range(settings.count), key=lambda e: -float(rated[e].detach()))[: settings.active]
        total = sum(scores[e] for e in best) if settings.normalize_top_k else 1.0
        row = torch.zeros(DIM)
        for e in best:
            gate, up, down = (getattr(experts, f"{name}_proj")[e] for name in ("gate", "up", "down"))
            row = row + scores[e] / total * settings.scale * (down @ (functional.silu(gate @ token) * (up @ token)))
        rows.append(row + layer.shared_experts(token[None])[0] if settings.shared else row)
    return torch.stack(rows)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("experts", [SOFTMAX, SIGMOID], ids=["softmax", "sigmoid"])
def test_outputs_and_gradients_are_those_of_a_plain_loop(experts: Experts, normalize: bool) -> None:
    config = QWEN3.model_copy(update={"experts": experts.model_copy(update={"normalize_top_k": normalize})})
    layer, x = layer_of(config), noise(TOKENS, DIM).requires_grad_()
    found = []
    for outputs in (layer(x), plainly(layer, x)):
        layer.zero_grad()
        (gradient,) = torch.autograd.grad((outputs * noise(TOKENS, DIM, seed=2)).sum(), x, retain_graph=True)
        (outputs * noise(TOKENS, DIM, seed=2)).sum().backward()
        found.append([outputs, gradient, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    layer = layer_of(QWEN3)
    with torch.no_grad():
        layer.gate.weight[4] = 0.0
        layer.gate.weight[4, 0] = -100.0
    x = noise(TOKENS, DIM)
    x[:, 0] = 1.0
    layer(x).sum().backward()
    assert layer.experts.up_proj.grad is not None
    assert not layer.experts.up_proj.grad[4].any()
    assert layer.experts.up_proj.grad[3].any()


def test_grouped_products_are_the_loop() -> None:
    """`grouped_mm` runs on CPUs too; on GPUs the same function computes BF16."""
    experts = layer_of(QWEN3).experts
    load = torch.tensor([7, 0, 11, 1, 20, 1])
    matrices = [p.detach() for p in (experts.gate_proj, experts.up_proj, experts.down_proj)]
    rows = noise(40, DIM)
    torch.testing.assert_close(grouped(rows, load, *matrices), experts.products(rows, load), rtol=1e-5, atol=1e-6)
    halves = [one.bfloat16().requires_grad_() for one in matrices]
    grouped(rows.bfloat16(), load, *halves).mul(noise(40, DIM, seed=3)).sum().backward()
    whole = [one.detach().bfloat16().float().requires_grad_() for one in matrices]
    grouped(rows.bfloat16().float(), load, *whole).mul(noise(40, DIM, seed=3)).sum().backward()
    for half, one in zip(halves, whole, strict=True):
        assert half.grad is not None
        assert one.grad is not None
        assert (half.grad.float() - one.grad).norm() < 0.02 * one.grad.norm()


@pytest.mark.parametrize("active", [1, 2, 5])
def test_auxiliary_loss_of_transformers(active: int) -> None:
    """Theirs is not divided by the experts per token."""
    experts = SOFTMAX.model_copy(update={"active": active})
    router = Router(DIM, experts)
    router.weight.data = noise(6, DIM)
    routes = router(noise(TOKENS, DIM))
    ours = auxiliary_loss(routes.scores, routes.load, active, UNDIVIDED.sequence)
    theirs = modeling.load_balancing_loss_func((routes.logits,), 6, active)
    assert float(ours) * active == pytest.approx(float(theirs), abs=1e-6)
    even = auxiliary_loss(torch.full((12, 6), 1 / 6), torch.full((6,), 4), 2, UNDIVIDED.sequence)
    assert float(even) == pytest.approx(1.0)


def training_loss(model: Decoder, tokens: Tensor) -> Tensor:
    loss: Tensor = model(tokens[:, :-1], targets=tokens[:, 1:])
    return loss


def test_losses_are_added_in_training_only() -> None:
    tokens = torch.randint(0, 50, (2, 33), generator=torch.Generator().manual_seed(1))
    weights = {"auxiliary_coefficient": 0.5, "z_loss_coefficient": 0.25}
    model = scrambled(QWEN3.model_copy(update={"experts": SOFTMAX.model_copy(update=weights)}), 50)
    plain = training_loss(model, tokens)
    assert model.routing is None
    found = training_loss(model.train(), tokens)
    assert model.routing is not None
    assert float(found - plain) == pytest.approx(float(model.routing.loss()), abs=2e-6)
    logits: list[Tensor] = []
    hooks = [
        block.mlp.gate.register_forward_hook(lambda m, i, o: logits.append(o.logits.detach())) for block in model.blocks
    ]
    training_loss(model, tokens)
    auxiliary = [float(modeling.load_balancing_loss_func((one,), 6, 2)) / 2 for one in logits]
    z_losses = [float(one.logsumexp(-1).square().mean()) for one in logits]
    assert float(model.routing.loss()) == pytest.approx(0.5 * sum(auxiliary) / 2 + 0.25 * sum(z_losses) / 2, abs=1e-5)
    assert model.routing.loads().sum(1).tolist() == [2 * 64, 2 * 64]
    for hook in hooks:
        hook.remove()


def test_scores_after_a_training_pass_compute_no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss has a collective over sequence ranks."""
    tokens = torch.randint(0, 50, (2, 33), generator=torch.Generator().manual_seed(1))
    model = scrambled(QWEN3, 50).train()
    training_loss(model, tokens)
    monkeypatch.setattr(SparseFeedForward, "_routing", None)
    model.eval().arranged(tokens, Layout(torch.arange(33).expand(2, -1), outputs=torch.tensor([3, 20])))


def test_the_bias_changes_the_selection_and_nothing_else() -> None:
    router = Router(DIM, SIGMOID)
    router.weight.data, x = noise(6, DIM), noise(TOKENS, DIM)
    before = router(x)
    getattr(router, BIAS)[2] = 5.0
    after = router(x)
    assert before.load[2] < TOKENS
    assert after.load[2] == TOKENS
    torch.testing.assert_close(after.weights[:, 0], before.scores[:, 2] * 1.5)  # the best by its bias
    assert torch.equal(after.scores, before.scores)


def test_generation_routes_each_token_as_a_whole_row_does() -> None:
    model, tokens = scrambled(GLM4, 50), torch.randint(0, 50, (1, 24), generator=torch.Generator().manual_seed(1))
    layout = Layout(torch.arange(24)[None], outputs=torch.tensor([3, 20]))
    torch.testing.assert_close(model.arranged(tokens, layout), model(tokens)[0, [3, 20]], rtol=1e-4, atol=1e-5)


def test_initial_values_are_those_of_experts_on_their_own() -> None:
    """A rank draws its experts alone; a router has the output's deviation under muP."""
    model = build(QWEN3, 50, 3)
    parts = dict(file_tensors(model.named_parameters()))
    assert parts["layers.1.mlp.experts.4.down_proj.weight"].shape == (DIM, 24)
    assert len({float(one.flatten()[0]) for one in parts.values() if one.dim() == 2}) == sum(
        one.dim() == 2 for one in parts.values()
    )
    scaled = QWEN3.model_copy(update={"mup": MuP(base_dim=8)})
    assert standard_deviation(scaled, "matrix") == 0.02 / 2**0.5
    assert standard_deviation(scaled, "router") == 0.02 / 2
    olmoe = QWEN3.model_copy(update={"init": "trunc-normal-all"})
    down = torch.stack([*build(olmoe, 50, 3).blocks[0].mlp.experts.down_proj]).detach()
    assert down.abs().max() <= 0.06
    assert float(down.std()) == pytest.approx(0.02 * 0.9866, rel=0.05)  # truncated at three deviations


def test_in_bf16_files_the_balancing_state_is_fp32(tmp_path: Path) -> None:
    model, saved, out = scrambled(GLM4, 300), tmp_path / "saved", tmp_path / "out"
    save_model(saved, dict(state(model)), hf_config(GLM4, 300, 64, "float32", 0))
    byte_level(["text"], 300).save(str(saved / "tokenizer.json"))
    export_model(saved, saved / "tokenizer.json", out, "bfloat16")
    with SavedWeights(out) as files:
        name = f"model.layers.1.mlp.gate.{BIAS}"
        assert torch.equal(files.tensor(name), dict(model.named_buffers())[f"layers.1.mlp.gate.{BIAS}"])
        assert files.tensor("model.layers.1.mlp.experts.5.up_proj.weight").dtype == torch.bfloat16
    back = load_model(out)
    assert {one.dtype for one in back.buffers()} == {torch.float32}
    assert {one.dtype for one in back.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"mlp_only_layers": [1]}, "mlp_only_layers \\[1\\], expected the first layers"),
        ({"model_type": "glm4_moe", "n_group": 2}, "n_group 2, expected 1"),
    ],
)
def test_files_with_other_experts_are_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        model_of({**hf_config(QWEN3, 50, 64, "float32", 0), "partial_rotary_factor": 1.0, **changes})


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    model = scrambled(QWEN3, 50)
    tensors = dict(file_tensors(model.named_parameters()))
    del tensors["layers.0.mlp.experts.3.up_proj.weight"]
    save_model(tmp_path, tensors, hf_config(QWEN3, 50, 64, "float32", 0))
    with pytest.raises(CheckpointError, match=r"model.layers.0.mlp.experts.3.up_proj.weight missing"):
        load_model(tmp_path)
