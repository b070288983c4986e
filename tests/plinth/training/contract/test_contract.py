"""Launch contract: nothing starts that its owner did not sign before the start, however the workspace is edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import LineageError, MissingError, SignatureError, TrustError
from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.training import attempts, contract
from plinth.training import config as configuration
from plinth.training.attempts import AttemptRecord
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.contract import BucketShare, LaunchContract, RunBudget
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints, Telemetry
from plinth.training.predicted_curve import CurvePoint, PredictedCurve
from plinth.trust import dsse, enrolment
from plinth.trust.dsse import OWNER, TRAINER, time_of
from plinth.trust.root import Trust
from tests.training_host import HOST

Make = Callable[..., RunConfig]


@pytest.fixture
def make(tmp_path: Path, make: Make) -> Make:
    """Configurations of a run that requires a contract, in a workspace whose root is this test's own."""
    root = Workspace(tmp_path / "workspace").ensure().root
    return lambda **changes: make(workspace=root, contract="required", **changes)


def drafted(config: RunConfig, **changes: Any) -> LaunchContract:
    fields: dict[str, Any] = {
        "run": config.run_id, "key": config.key, "number": 1, "settings": contract.settings(config),
        "mixture": {"web": BucketShare(share=1.0, epochs=0.5)},
        "budget": RunBudget(rank_hours=2, reason="stated by the owner"), "curve": None,
        "owner": OWNER, "at": dsse.now(),
    }  # fmt: skip
    return LaunchContract(**{**fields, **changes})


def sign(config: RunConfig, role: str = OWNER, **changes: Any) -> Mapping[str, Any]:
    """Write a contract as its run's next one, and return its envelope."""
    signer = Trust.of(Workspace(config.workspace)).signer(role)
    made = drafted(config, **{"owner": signer.owner, **changes})
    path = config.directory.contracts / f"{made.number:04d}.json"
    dsse.write(path, contract.statement(made), signer)
    return dsse.envelope_of(path)


def amended(config: RunConfig, **changes: Any) -> Mapping[str, Any]:
    before = contract.known(config.directory)
    named = {"number": len(before) + 1, "previous": contract.fingerprint.digest(before[-1]), "reason": "two nodes less"}
    return sign(config, **(named | changes))


def start(config: RunConfig) -> AttemptRecord:
    """Start the ranks as their supervisor does: with the file that they will read."""
    path = configuration.write(config)
    counts = {"ranks": config.ranks, "nodes": config.launch.nodes}
    return attempts.state(config.directory, path.read_bytes(), config.key, **counts, hosts=[HOST], audit=False)


def test_a_run_starts_under_its_contract_and_names_it(make: Make) -> None:
    config = make()
    with pytest.raises(MissingError, match="has no launch contract"):
        start(config)
    assert not list(config.directory.attempts.glob("*"))
    signed = sign(config)
    assert start(config).contract == contract.fingerprint.digest(signed)
    assert start(make(telemetry=Telemetry(layers_every=7))).number == 2  # what is observed is left open
    assert attempts.in_force(config) == drafted(config, at=attempts.in_force(config).at)  # type: ignore[union-attr]


def test_a_run_without_a_contract_is_as_before(make: Make) -> None:
    config = make().model_copy(update={"contract": "optional"})
    record = start(config)
    assert record.contract == ""
    assert "contract" not in record.model_dump()
    assert not config.directory.contracts.exists()
    assert set(json.loads(attempts.bundle(config.directory) or b"")) == {"attempts"}
    assert "contract" not in configuration.load(config.directory.config).model_dump()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": Optimizer(lr=0.5)}, "optimizer.lr"),
        ({"mixture": "n" * 64}, "mixture"),
        ({"shards": {"web": "x" * 64}}, "shards.web"),
        ({"launch": Launch(ranks=4)}, "launch.ranks"),
        ({"checkpoints": Checkpoints(every_steps=3, audit_steps=4, keep_last=9)}, "checkpoints.keep_last"),
        ({"total_steps": 13}, "total_steps"),
    ],
)
def test_another_recipe_data_or_topology_does_not_start(make: Make, changes: dict[str, Any], named: str) -> None:
    sign(make())
    with pytest.raises(LineageError, match="not what its launch contract promises") as raised:
        start(make(**changes))
    assert named in str(raised.value.found)


def test_leaving_out_the_requirement_does_not_avoid_the_contract(make: Make) -> None:
    sign(make())
    with pytest.raises(LineageError, match="not what its launch contract promises"):
        start(make(optimizer=Optimizer(lr=0.5)).model_copy(update={"contract": "optional"}))


def test_a_resume_with_another_topology_needs_an_amendment(make: Make) -> None:
    sign(make())
    start(make())
    fewer = make(launch=Launch(ranks=1))
    with pytest.raises(LineageError, match="--amend"):
        start(fewer)
    second = amended(fewer)
    assert start(fewer).contract == contract.fingerprint.digest(second)
    with pytest.raises(LineageError, match="`plinth run` with the recipe of contract 2"):
        start(make())  # number 1 is no longer in force, also before a job has started under number 2


def test_a_removed_contract_is_missed(make: Make) -> None:
    config, fewer = make(), make(launch=Launch(ranks=1))
    sign(config)
    start(config)
    amended(fewer)
    start(fewer)
    (config.directory.contracts / "0002.json").unlink()
    with pytest.raises(LineageError, match="removed or replaced"):
        start(config)  # back to number 1
    (config.directory.contracts / "0001.json").unlink()
    for rule in ("required", "optional"):
        with pytest.raises(LineageError, match="removed or replaced"):
            start(config.model_copy(update={"contract": rule}))


def test_a_contract_that_is_removed_during_the_run_comes_back_with_the_checkpoint(make: Make) -> None:
    config = make()
    signed = sign(config)
    start(config)
    (checkpoint.stage(config.directory, 3) / "state.json").write_text("{}")
    checkpoint.commit(config.directory, 3)
    (config.directory.contracts / "0001.json").unlink()
    assert start(config).contract == contract.fingerprint.digest(signed)
    assert contract.known(config.directory) == [signed]


def test_an_edited_contract_is_refused(make: Make) -> None:
    config, path = make(), make().directory.contracts / "0001.json"
    sealed = dict(sign(config))
    content = dsse.unverified(sealed, "it")
    content["predicate"]["budget"]["rank_hours"] = 2_000.0
    sealed["payload"] = dsse.base64.b64encode(contract.fingerprint.canonical(content)).decode()
    path.write_text(json.dumps(sealed))
    with pytest.raises(SignatureError, match="invalid"):
        start(config)


def test_an_owner_does_not_sign_in_the_name_of_another(make: Make) -> None:
    config = make()
    sign(config, owner="grace")
    with pytest.raises(SignatureError, match="names another owner than its signer"):
        start(config)


@pytest.mark.parametrize("role", [TRAINER, "evaluator", "policy"])
def test_no_other_role_signs_for_the_owner(make: Make, role: str) -> None:
    config = make()
    sign(config, role)
    with pytest.raises(SignatureError, match="invalid"):
        start(config)


def test_a_contract_of_another_run_or_an_older_recipe_is_no_contract_of_this_one(make: Make) -> None:
    config, other = make(), make(run_id="other-000000000000")
    sign(other)
    config.directory.contracts.mkdir(parents=True)
    replayed = (other.directory.contracts / "0001.json").read_bytes()
    (config.directory.contracts / "0001.json").write_bytes(replayed)
    with pytest.raises(LineageError, match="do not form a chain"):
        start(config)
    sign(config, settings=contract.settings(make(seed=2)))
    with pytest.raises(LineageError, match="seed: 2 in the contract, 1 in the run"):
        start(config)


def test_a_contract_about_other_settings_than_its_subject(make: Make) -> None:
    config = make()
    made = contract.statement(drafted(config))
    made["subject"][0]["digest"]["sha256"] = "0" * 64
    dsse.write(config.directory.contracts / "0001.json", made, Trust.of(Workspace(config.workspace)).signer(OWNER))
    with pytest.raises(LineageError, match="other settings than it states"):
        start(config)


def test_a_run_that_started_before_its_contract_stays_without_one(make: Make) -> None:
    config = make().model_copy(update={"contract": "optional"})
    start(config)
    sign(config)
    for rule in ("required", "optional"):
        with pytest.raises(LineageError, match="started before its launch contract"):
            start(config.model_copy(update={"contract": rule}))


def test_an_amendment_keeps_the_curve_and_names_the_contract_before(make: Make) -> None:
    config = make()
    point = CurvePoint(tokens=100, value=3.0, low=2.9, high=3.1)
    curve = PredictedCurve(params=1, tokens=100, level=0.95, method="by hand", points=(point,))
    sign(config, curve=curve)
    start(config)
    wider = point.model_copy(update={"high": 9.0})
    amended(config, curve=curve.model_copy(update={"points": (wider,)}))
    with pytest.raises(LineageError, match="do not form a chain"):
        start(config)
    (config.directory.contracts / "0002.json").unlink()
    amended(config, curve=curve, previous="0" * 64)
    with pytest.raises(LineageError, match="do not form a chain"):
        start(config)
    with pytest.raises(ValueError, match="names the previous contract"):
        drafted(config, number=2)


class TestRevokedOwner:
    """The owner's key is revoked: what an attempt dates before that is valid, what a thief dates back is not."""

    @pytest.fixture
    def config(self, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunConfig:
        monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
        enrolment.initialise(Workspace(make().workspace), "own", ["ada"])
        return make()

    def revoke(self, config: RunConfig, since: datetime) -> None:
        workspace = Workspace(config.workspace)
        enrolment.revoke(workspace, Trust.of(workspace).signer(OWNER).key_id, since)

    def test_after_the_start_the_contract_stays(self, config: RunConfig) -> None:
        sign(config)
        started = start(config)
        self.revoke(config, time_of(started.at) + timedelta(seconds=1))
        assert start(config).contract == started.contract

    def test_before_the_start_nothing_starts_whatever_its_date(self, config: RunConfig) -> None:
        sign(config, at="2020-01-01T00:00:00+00:00")
        self.revoke(config, datetime.now(UTC) - timedelta(days=1))
        with pytest.raises(SignatureError, match="was revoked"):
            start(config)

    def test_no_attempt_is_dated_before_the_revocation(self, config: RunConfig) -> None:
        sign(config)
        started = start(config)
        self.revoke(config, time_of(started.at) - timedelta(days=1))
        with pytest.raises(SignatureError, match="was revoked"):
            start(config)


def test_roots_from_before_the_role_are_valid_and_sign_no_contract(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    older = {role: said for role, said in dsse.ROLES.items() if role != OWNER}
    monkeypatch.setattr(enrolment, "ROLES", older)
    workspace = Workspace(make().workspace)
    before = enrolment.initialise(workspace, "own", ["ada"]).root
    assert OWNER not in before.roles
    assert "owner" not in before.model_dump_json().replace('"owner":', "")
    monkeypatch.undo()
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    with pytest.raises(SignatureError):
        Trust.of(workspace).signer(OWNER)
    enrolment.enrol(workspace, OWNER, "ada", enrolment.new_key(Trust.of(workspace).folder, OWNER, "ada"))
    sign(make())
    assert start(make()).contract


def test_hostile_envelopes_are_refused_by_name(make: Make) -> None:
    config = make()
    sign(config)
    path = config.directory.contracts / "0001.json"
    for content in (
        b"",
        b"[]",
        b"{}",
        b'{"payload": 1}',
        b"\xff",
        b'{"payloadType":"x","payload":"e30=","signatures":[]}',
    ):
        path.write_bytes(content)
        with pytest.raises(TrustError):
            start(config)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(TrustError):
        start(config)
