"""Launch contract of a candidate: verified with its ancestry, shown by `verify`, and judged by the gate `forecast`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import LineageError, SignatureError
from plinth.model.parameters import Model
from plinth.provenance.statements import slsa_statement
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.training import attempts, contract
from plinth.training import config as configuration
from plinth.training.attempts import AttemptRecord
from plinth.training.checkpoint import checkpoint as checkpoints
from plinth.training.config import RunConfig
from plinth.training.contract import BucketShare, LaunchContract, RunBudget
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.predicted_curve import CurvePoint, PredictedCurve
from plinth.trust import dsse
from plinth.trust.dsse import OWNER
from plinth.trust.root import Trust
from plinth_registry import evidence, policy, trained
from plinth_registry.gates import evaluate
from plinth_registry.gates.facts import ContractFacts, CostFacts, PromisedLoss
from plinth_registry.gates.forecast import forecast
from plinth_registry.verified import verify_model
from tests.registry.conftest import Line, make_recipe, sign_candidate, small_policy
from tests.registry.gate_evidence import proof
from tests.training_host import HOST

FACTS = ContractFacts(
    owner="ada", number=1, rank_hours=10.0, level=0.95, segments=10, final=PromisedLoss(loss=2.5, low=2.4, high=2.6)
)


def judged(known: ContractFacts | None, device_s: float | None = 7200.0) -> tuple[str, str]:
    amounts = {"wall_s": 9.0} | ({} if device_s is None else {"device_s": device_s})
    found = forecast(None, proof(contract=known, cost=CostFacts(amounts=amounts)))  # type: ignore[arg-type]
    return found.state, found.reason


@pytest.mark.parametrize(
    ("changes", "device_s", "state", "said"),
    [
        ({}, 7200.0, "passed", "final loss 2.5, in 2.4 to 2.6 (95% for all segments); 2.0 rank-hours (limit 10.0)"),
        ({"final": PromisedLoss(loss=2.61, low=2.4, high=2.6)}, 7200.0, "failed", "above 2.4 to 2.6"),
        ({"final": PromisedLoss(loss=2.39, low=2.4, high=2.6)}, 7200.0, "failed", "below 2.4 to 2.6"),
        ({"final": PromisedLoss(loss=float("nan"), low=2.4, high=2.6)}, 7200.0, "failed", "below"),
        ({"final": None}, 7200.0, "failed", "no finite loss in the last of 10 promised segments"),
        ({"level": None, "final": None}, 7200.0, "failed", "the contract has no predicted curve"),
        ({"missed": ("one", "two")}, 7200.0, "passed", "2 of 10 segments outside"),
        ({}, 36000.0, "passed", "10.0 rank-hours (limit 10.0)"),
        ({}, 36001.0, "failed", "rank-hours (limit"),
        ({}, None, "failed", "no evidence: the rank-hours"),
        ({}, float("nan"), "failed", "no evidence: the rank-hours"),
    ],
)
def test_the_gate(changes: dict[str, Any], device_s: float | None, state: str, said: str) -> None:
    found = judged(FACTS.model_copy(update=changes), device_s)
    assert found[0] == state
    assert said in found[1]


def test_a_run_without_a_contract_fails_the_gate_and_no_other() -> None:
    assert judged(None) == ("failed", "no evidence: a launch contract")


CURVE = PredictedCurve(
    params=1, tokens=1000, level=0.95, method="by hand",
    points=(
        CurvePoint(tokens=500, value=4.0, low=3.8, high=4.2),
        CurvePoint(tokens=1000, value=3.0, low=2.8, high=3.2),
    ),
)  # fmt: skip


class PromisedLine(Line):
    """A line whose run has a contract with a curve. Its timeline is in the run's manifest."""

    losses = (4.0, 3.1)
    curve: PredictedCurve | None = CURVE

    def made(self, asset: str, inputs: Any, *args: Any, **more: Any) -> Manifest:
        found = super().made(asset, inputs, *args, **more)
        if asset != "run":
            return found
        table = pa.table({"tokens": [500, 1000], "loss": [*self.losses]})
        found = Manifest.model_validate(
            found.model_dump() | {"parts": [write_table(self.ctx.store, "timeline.parquet", table).model_dump()]}
        )
        self.ctx.refs.save(found)
        return found

    def config(self) -> RunConfig:
        own = Training(model=Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16))
        return RunConfig(
            run_id=self.run.id, key=self.run.key, recipe="line", workspace=str(self.ctx.workspace.root),
            model=own.model, vocab_size=64, end_of_text=0, optimizer=Optimizer(), precision="fp32",
            parallel=own.parallel, seed=1, launch=own.launch, sequence_tokens=32, micro_batch_sequences=2,
            global_batch_sequences=8, total_steps=12, mixture="m" * 64, shards={}, tokenizer="t" * 64,
            checkpoints=Checkpoints(), supervision=own.supervision, contract="required",
        )  # fmt: skip

    def sign(self, role: str = OWNER) -> None:
        made = LaunchContract(
            run=self.run.id, key=self.run.key, number=1, settings=contract.settings(self.config()),
            mixture={"web": BucketShare(share=1.0, epochs=1.0)}, curve=self.curve, owner=OWNER, at=dsse.now(),
            budget=RunBudget(rank_hours=10, reason="stated by the owner"),
        )  # fmt: skip
        signer = Trust.of(self.ctx.workspace).signer(role)
        dsse.write(self.directory.contracts / "0001.json", contract.statement(made), signer)

    def attempt(self, **changes: object) -> AttemptRecord:
        if not self.directory.contracts.exists():
            self.sign()
        data = configuration.write(self.config()).read_bytes()
        host = HOST.model_copy(update=changes)
        return attempts.state(self.directory, data, self.run.key, ranks=1, nodes=1, hosts=[host], audit=False)


@pytest.fixture
def promised(ctx: Context, request: pytest.FixtureRequest) -> PromisedLine:
    name = f"t-{fingerprint.digest(request.node.nodeid)[:10]}"
    given = small_policy(name)
    policy.sign(ctx, given.model_copy(update={"extensions": {**given.extensions, "forecast": {}}}))
    return PromisedLine(ctx, make_recipe(name))


def gathered(ctx: Context, line: Line) -> evidence.Evidence:
    return evidence.gather(ctx, line.recipe, sign_candidate(ctx, line), {})


def test_a_candidate_shows_its_contract_from_registration_to_verification(ctx: Context, promised: PromisedLine) -> None:
    found = gathered(ctx, promised)
    assert found.contract == ContractFacts(
        owner=OWNER, number=1, rank_hours=10, level=0.95, segments=2, final=PromisedLoss(loss=3.1, low=2.8, high=3.2)
    )
    assert found.lineage is not None
    assert found.lineage.detail.endswith("launch contract of owner")
    proved = verify_model(ctx, str(sign_candidate(ctx, promised).directory))
    assert proved.contract == "number 1, signed by owner before the run started"
    provenance = promised.provenance()
    (stated,) = provenance["training"]["contracts"]
    products = slsa_statement(provenance, {})["predicate"]["runDetails"]["byproducts"]
    assert {"name": "launch contract 1", "digest": {"sha256": fingerprint.digest(stated)}} in products
    results = evaluate(policy.current(ctx, promised.recipe.required_release().name).policy, found)
    (gate,) = [one for one in results if one.name == "forecast"]
    assert gate.state == "failed"  # the line's cost has no rank-hours
    assert gate.reason.startswith("final loss 3.1, in 2.8 to 3.2")


def test_losses_outside_are_listed_and_another_runs_stay_out(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, promised: PromisedLine
) -> None:
    monkeypatch.setattr(PromisedLine, "losses", (5.0, 3.3))
    line = PromisedLine(ctx, promised.recipe, seed=2)
    known = gathered(ctx, line).contract
    assert known is not None
    assert known.final == PromisedLoss(loss=3.3, low=2.8, high=3.2)
    assert [one.partition(":")[0] for one in known.missed] == ["500 tokens", "1,000 tokens"]


def test_a_run_without_a_contract_has_no_such_evidence(ctx: Context, line: Line) -> None:
    found = gathered(ctx, line)
    assert found.contract is None
    assert "contracts" not in line.provenance()["training"]
    assert "contract" not in verify_model(ctx, str(sign_candidate(ctx, line).directory)).model_dump()


def changed(line: PromisedLine, contracts: list[Mapping[str, Any]]) -> dict[str, Any]:
    provenance = line.provenance()
    return provenance | {"training": provenance["training"] | {"contracts": contracts}}


def test_contracts_that_are_removed_replaced_or_signed_by_another_role_are_refused(
    ctx: Context, promised: PromisedLine, tmp_path: Path
) -> None:
    made = ctx.refs.load(promised.checkpoint.digest)
    trained.proved(ctx, made, promised.provenance())
    (own,) = promised.provenance()["training"]["contracts"]
    for contracts in ([], [own, own], [{**own, "signatures": []}]):
        with pytest.raises((LineageError, SignatureError)):
            trained.proved(ctx, made, changed(promised, contracts))
    records = trained.attempts_of(promised.provenance()["training"])
    with pytest.raises(LineageError, match="removed or replaced"):
        trained.promised(ctx, changed(promised, []), records)
    unnamed = [one.model_copy(update={"contract": ""}) for one in records]
    assert trained.promised(ctx, promised.provenance(), unnamed) == ()
    late = [unnamed[0], *records]
    with pytest.raises(LineageError, match="started before its launch contract"):
        trained.promised(ctx, promised.provenance(), late)


def test_a_contract_without_a_curve_promises_no_loss(
    ctx: Context, promised: PromisedLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromisedLine, "curve", None)
    known = gathered(ctx, PromisedLine(ctx, promised.recipe, seed=3)).contract
    assert known == ContractFacts(owner=OWNER, number=1, rank_hours=10)


def test_the_committed_bundle_has_the_contract(promised: PromisedLine) -> None:
    data = (checkpoints.path(promised.directory, 5) / attempts.BUNDLE).read_bytes()
    assert list(attempts.unpacked(data, "contracts")) == contract.known(promised.directory)
