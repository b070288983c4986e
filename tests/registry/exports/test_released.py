"""`plinth export model` of a release: papers and evidence inside the seal; what is tainted or gone stays at home."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest
import torch

from plinth.compute.context import Context
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.provenance.statements import SLSA_PREDICATE
from plinth.storage.workspace import Workspace
from plinth.trust import dsse
from plinth.trust.root import Trust
from plinth_audit.papers import provider, signed
from plinth_audit.papers.facts import ROLLED_BACK
from plinth_audit.papers.provider import ProviderStatement
from plinth_audit.papers.signed import papers_of, papers_of_candidate
from plinth_jobs.cli import call
from plinth_registry import approval, audit_log, judgement, policy, releases, taint
from plinth_registry.candidate import Candidate
from plinth_registry.exports import models as exported
from plinth_registry.exports import verify
from plinth_registry.exports.models import UNRELEASED, find
from plinth_registry.gates import GateResult
from plinth_registry.gates.settings import gate_policy
from plinth_registry.verified import released_as
from tests.model_folder import byte_level, save_folder
from tests.registry.conftest import Line, make_recipe, sign_candidate
from tests.registry.exports.conftest import make_root
from tests.registry.exports.test_offline import alone
from tests.statements import statements

MODEL = Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48)
TOKENS = 32
PROBES = "9" * 64
MARKET = {"1": date(2026, 11, 1), "2": date(2026, 11, 20)}


class ModelLine(Line):
    """A line whose checkpoint is a model that can be run."""

    def model_files(self) -> dict[str, bytes]:
        folder = self.ctx.workspace.tmp / "model"
        tokenizer = byte_level(["a small text that is merged"] * 3, 300)
        save_folder(folder, build(MODEL, tokenizer.get_vocab_size(), 3), MODEL, tokenizer, TOKENS)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def released(tmp_path: Path) -> Context:
    """`demo` under a demo root with version 1, which was rolled back, and version 2, the champion."""
    return release_in(Context(Workspace(tmp_path / "workspace").ensure()))


def release_in(ctx: Context) -> Context:
    """Two versions of one candidate, under a policy that asks for signed papers."""
    line = ModelLine(ctx, make_recipe("demo"))
    found = sign_candidate(ctx, line)
    approval.write_login(ctx, found, "anna@example.org", "ada@example.org", "approval.reason", "read it", "")
    unbounded = {"max_bits_per_byte": "a tiny model has no bound"}
    governs = policy.sign(ctx, gate_policy({"release": "demo", "papers": "signed", "without": unbounded}))
    approval.sign(ctx, found, "anna@example.org", "better on every slice", policy=governs.digest)
    judgement.sign_verdict(ctx, found, governs, [GateResult(name="slices", passed=True, reason="good")], [])
    attest(ctx, found.checkpoint)
    provider.sign(ctx, ProviderStatement(release="demo", provider="Example GmbH", placed_on_the_market=MARKET))
    move(ctx, found, "champion", "1", None)
    move(ctx, found, "withdrawn", None, "1")
    move(ctx, found, "champion", "2", None, policy=governs.digest)
    return ctx


def attest(ctx: Context, checkpoint: str, bpb: float = 0.5) -> None:
    """Attest the measurements as the evaluator."""
    facts = {"kind": "measurement", "asset": "probes", "materials": {"probes": PROBES}, "facts": {"bpb": bpb}}
    content = dsse.statement("urn:plinth:attestation:measurement:v1", {"checkpoint": checkpoint}, facts)
    path = ctx.workspace.attestations / checkpoint[:16] / "probes.json"
    dsse.write(path, content, Trust.of(ctx.workspace).signer("evaluator"))


def move(ctx: Context, found: Candidate, action: str, version: str | None, previous: str | None, **more: str) -> None:
    about = {"candidate": found.subjects, "candidate_version": "1", "at": "2026-11-20T10:00:00+00:00"}
    to = {"action": action, "goal": action, "model": "demo", "version": version, "previous": previous}
    releases.append(ctx, by="tests", reason="a reason", **to, **about, **more)


def root_of(ctx: Context) -> Path:
    return ctx.workspace.trust_folder / "root.json"


def export(ctx: Context, target: str, to: Path, *more: str) -> int:
    return call(["export", "model", target, str(to), "-w", str(ctx.workspace.root), *more])


def test_a_release_leaves_with_papers_and_evidence_and_proves_itself(released: Context, tmp_path: Path) -> None:
    to, root = tmp_path / "out", Path(shutil.copy(root_of(released), tmp_path / "root.json"))
    assert export(released, "demo@champion", to) == 0
    record = json.loads((released.workspace.releases / "00003.json").read_bytes())["record"]
    shutil.rmtree(released.workspace.root)
    proved = verify(to, root)
    assert (proved["name"], proved["number"], proved["status"]) == ("demo/2", 3, "released")
    assert proved["checkpoint"] == record["candidate"]["checkpoint"]
    roles = {name.removeprefix("evidence/"): role.partition(":")[0] for name, role in proved["evidence"].items()}
    assert roles == {"release.json": "promoter", "head.json": "promoter", "provenance.slsa.json": "trainer",
                     "evidence.json": "trainer", "approvals/anna@example.org.json": "approver",
                     "logins/00001.json": "approver",
                     "attestations/probes.json": "evaluator", "attestations/evaluation.json": "evaluator",
                     "attestations/resume.json": "evaluator", "attestations/contamination.json": "evaluator",
                     "attestations/licences.json": "compliance", "attestations/stability.json": "trainer",
                     "attestations/cost.json": "trainer", "policy.json": "policy", "verdict.json": "promoter",
                     "attestations/forms.hf-saved.json": "evaluator",
                     "papers.json": "compliance", "provider.json": "compliance"}  # fmt: skip
    assert proved["policy"] == record["policy"] != ""
    statuses, printed = alone(root, to)
    assert statuses == [0], printed
    card = (to / "README.md").read_text()
    assert "UNRELEASED" not in card
    assert "better on every slice" in card
    assert f"| probes.manifest | {PROBES} |" in card
    assert {path.name for path in (to / "papers").iterdir()} == {
        "DATA_CARD.md", "TRAINING_SUMMARY.md", "MODEL_DOCUMENTATION.md", "bom.cdx.json", "sbom.spdx.json",
    }  # fmt: skip
    summary = (to / "papers" / "TRAINING_SUMMARY.md").read_text()
    assert "| provider | Example GmbH | compliance |" in summary
    assert "| date of placement on the market | 2026-11-20 | compliance |" in summary
    bom = json.loads((to / "papers" / "bom.cdx.json").read_bytes())
    assert bom["metadata"]["component"]["version"] == "2"


def test_the_digests_that_papers_name_lie_beside_them(released: Context, tmp_path: Path) -> None:
    assert export(released, "demo/2", tmp_path / "out") == 0
    evidence = tmp_path / "out" / "evidence"
    found = {digest_of(path) for path in evidence.rglob("*.json")}
    named = [line for line in (tmp_path / "out" / "README.md").read_text().splitlines() if "` attestation: " in line]
    assert len(named) == 10
    assert {line[3:67] for line in named} <= found


def test_every_statement_has_the_trace_id_of_its_signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the SLSA provenance, which verification derives again without knowing the trace."""
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    released = release_in(Context(Workspace(tmp_path / "workspace").ensure()))
    assert export(released, "demo/2", tmp_path / "out") == 0
    found = [*statements(tmp_path / "out"), *statements(released.workspace.root)]
    kinds = {SLSA_PREDICATE, "urn:plinth:training-attempt:v1", "urn:plinth:release:v1", "urn:plinth:log:audit:v1"}
    assert {one["predicateType"] for _, one in found} > kinds
    assert {path.name: one.get(dsse.TRACE) for path, one in found if one.get(dsse.TRACE) != "ab" * 16} == {}
    for traceparent in ("", f"00-{'ef' * 16}-{'cd' * 8}-01"):
        monkeypatch.setenv("TRACEPARENT", traceparent)
        assert export(released, "demo/2", tmp_path / f"again{traceparent[:5]}") == 0
        assert verify(tmp_path / "out", root_of(released))["name"] == "demo/2"
    statuses, printed = alone(root_of(released), tmp_path / "out")
    assert statuses == [0], printed


def test_a_second_export_has_the_same_papers_and_weights(released: Context, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert export(released, "demo/2", tmp_path / name) == 0
    one, two = ({str(path.relative_to(at)): path.read_bytes() for path in at.rglob("*") if path.is_file()}
                for at in (tmp_path / "one", tmp_path / "two"))  # fmt: skip
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} <= {"EXPORT.json", "model.sig"}  # ECDSA draws a number
    assert len(list((released.workspace.root / "exports").iterdir())) == 2


def test_papers_of_a_candidate_say_what_the_signed_history_says(tmp_path: Path) -> None:
    """Unreleased, released, rolled back; a checkpoint counts as released whichever of its candidates was."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    found = sign_candidate(ctx, ModelLine(ctx, make_recipe("demo")))
    attest(ctx, found.checkpoint)

    def shown(of: Candidate) -> tuple[str, bool, list[str]]:
        made = papers_of_candidate(ctx, of)
        card, bom = made.files["README.md"].decode(), json.loads(made.files["papers/bom.cdx.json"])
        properties = {one["name"]: one["value"] for one in bom["metadata"]["component"]["properties"]}
        states = [state for state in (UNRELEASED, ROLLED_BACK) if f"**{state}**" in card]
        assert [properties["plinth:release.state"]] == (states or ["released"])
        return made.subject.name, made.subject.released is not None, states

    other = found.model_copy(update={"key": "0" * 64, "version": "9"})
    assert shown(found) == ("demo-candidate/1", False, [UNRELEASED])
    move(ctx, found, "canary", "1", None)
    move(ctx, found, "champion", "1", None)
    assert shown(found) == ("demo/1", True, [])
    assert released_as(ctx, other)[1] == "champion"
    move(ctx, found, "withdrawn", None, "1")
    assert shown(found) == ("demo/1", True, [ROLLED_BACK])


def test_a_real_root_signs_papers_only_when_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    released = release_in(make_root(tmp_path / "real", monkeypatch))
    here = ("-w", str(released.workspace.root))
    assert export(released, "demo/2", tmp_path / "out") == 8
    refusal = capfd.readouterr().err
    assert "the documents of demo/2 are not signed" in refusal
    assert "plinth release papers demo/2 --sign" in refusal
    assert not (tmp_path / "out").exists()
    assert call(["release", "papers", "demo/2", "--to", str(tmp_path / "before"), "--json", *here]) == 0
    assert json.loads(capfd.readouterr().out)["signed_by"] == []
    assert call(["release", "papers", "demo@champion", "--sign", "--reason", "read", "--json", *here]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["name"], made["released"], made["signed_by"]) == ("demo/2", True, ["compliance"])
    assert export(released, "demo/2", tmp_path / "out") == 0
    assert made["papers"] == {name: digest_of(tmp_path / "out" / name) for name in made["papers"]}
    assert made["papers"] == {name: digest_of(tmp_path / "before" / name) for name in made["papers"]}
    assert not (tmp_path / "before" / "evidence").exists()
    proved = verify(tmp_path / "out", root_of(released))
    assert proved["evidence"]["evidence/papers.json"] == "compliance: compliance"
    acts = [(one.action, one.outcome, one.actor) for one in audit_log.entries(released)]
    assert acts[-3:] == [("export", "refused", "promoter"), ("papers", "done", "compliance"),
                         ("export", "done", "promoter")]  # fmt: skip

    attest(released, made["checkpoint"], bpb=0.25)  # the documents contain it, but without a signature
    assert export(released, "demo/2", tmp_path / "more") == 8
    assert call(["release", "papers", "demo/2", "--show", "model-card", *here]) == 0
    assert "| probes.bpb | 0.25 |" in capfd.readouterr().out


def test_without_the_package_of_papers_a_policy_that_asks_for_them_lets_nothing_leave(
    released: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exported, "absent", lambda group: {"papers": "plinth_audit"})
    assert export(released, "demo/2", tmp_path / "out") == 2
    assert "needs the package plinth_audit, which is not installed" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_statement_over_papers_that_was_changed_is_none(released: Context, tmp_path: Path) -> None:
    made = papers_of(released, find(released, "demo/2"))
    path = signed.sign(released, made)
    assert signed.signed_by(released, made) == ("compliance",)
    better = made._replace(files={**made.files, "README.md": b"better"})
    assert signed.signed_by(released, better) == ()
    shutil.copy(path, signed.path_of(released, better))
    assert signed.signed_by(released, better) == ()
    content = dsse.unverified(dsse.envelope_of(path), "papers")
    dsse.write(path, content, Trust.of(released.workspace).signer("promoter"))
    assert signed.signed_by(released, made) == ()


def test_model_signing_verifies_it_with_the_promoters_key(released: Context, tmp_path: Path) -> None:
    from model_signing import hashing, verifying

    assert export(released, "demo/2", tmp_path / "out") == 0
    to, trust = tmp_path / "out", Trust.of(released.workspace)
    (key,) = trust.authority("promoter").keys.values()
    (tmp_path / "promoter.pub").write_text(key.public)
    ignored = [to / "EXPORT.json", to / "model.sig"]
    hashed = hashing.Config().set_ignored_paths(paths=ignored, ignore_git_paths=False)
    config = verifying.Config().use_elliptic_key_verifier(public_key=tmp_path / "promoter.pub")
    config.set_hashing_config(hashed.use_file_serialization(hashing_algorithm="sha256")).verify(to, to / "model.sig")


@pytest.mark.slow
def test_transformers_loads_it(released: Context, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert export(released, "demo/2", tmp_path / "out") == 0
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    tokens = torch.arange(TOKENS)[None]
    with torch.no_grad():
        ours, theirs = build(MODEL, peer.config.vocab_size, 3)(tokens), peer(input_ids=tokens).logits
    assert float((ours - theirs).abs().max()) <= 1e-5
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize(
    ("target", "code", "reason"),
    [
        ("demo/1", 8, "was rolled back"),
        ("demo/9", 8, "was never released"),
        ("demo@canary", 3, "demo has no canary"),
        ("latest", 8, "latest is not a release"),
    ],
)
def test_what_was_not_released_or_is_gone_stays(
    released: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str], target: str, code: int, reason: str
) -> None:
    assert export(released, target, tmp_path / "out") == code
    assert reason in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not (released.workspace.root / "exports").exists()


def test_a_tainted_release_stays(released: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = releases.history(released)[-1]
    taint.mark(released, record.candidate["checkpoint"], "compliance@example.org", "leaks addresses")
    assert export(released, "demo/2", tmp_path / "out") == 8
    assert "leaks addresses" in capfd.readouterr().err
    assert not list(tmp_path.glob("*out*"))


def test_a_changed_weight_stays(released: Context, tmp_path: Path) -> None:
    weights = next(released.workspace.models.glob("*/model.safetensors"))
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    assert export(released, "demo/2", tmp_path / "out") == 8
    assert not list(tmp_path.glob("*out*"))


def test_evidence_that_somebody_else_signed_stops_the_export(
    released: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = released.workspace.approvals.glob("*/*.json")
    content = dsse.unverified(dsse.envelope_of(path), "approval")
    dsse.write(path, content, Trust.of(released.workspace).signer("trainer"))
    assert export(released, "demo/2", tmp_path / "out") == 8
    assert "no authorized signature on evidence/approvals/anna@example.org.json" in capfd.readouterr().err


def test_without_the_promoters_key_nothing_leaves(released: Context, tmp_path: Path, own_trust: Path) -> None:
    shutil.rmtree(own_trust / "keys" / "promoter")
    assert export(released, "demo/2", tmp_path / "out") == 8
    assert not list(tmp_path.glob("*out*"))


def test_the_evaluator_states_what_leaves_once(
    released: Context, tmp_path: Path, own_trust: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its key is required if these exact files have no statement yet; later exports of the same files do not need
    it."""
    keys = (own_trust / "keys" / "evaluator").rename(tmp_path / "elsewhere")
    assert export(released, "demo/2", tmp_path / "out") == 8
    refusal = capfd.readouterr().err
    assert "no statement proves that the files of hf-saved are derived from checkpoint" in refusal
    assert "run this command on the machine that has the evaluator's key" in refusal
    keys.rename(own_trust / "keys" / "evaluator")
    (own_trust / "keys" / "promoter").rename(tmp_path / "promoter")
    assert export(released, "demo/2", tmp_path / "out") == 8
    (tmp_path / "promoter").rename(own_trust / "keys" / "promoter")
    shutil.rmtree(own_trust / "keys" / "evaluator")
    assert export(released, "demo/2", tmp_path / "out") == 0
    assert export(released, "demo/2", tmp_path / "other", "--dtype", "bfloat16") == 8
    assert "hf-bfloat16" in capfd.readouterr().err


def digest_of(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
