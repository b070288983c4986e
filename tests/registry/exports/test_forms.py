"""`plinth export model --format` of a release: measured on held-out text, judged by its policy, proved offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.provenance import ledger
from plinth.trust import dsse
from plinth_jobs.cli import call
from plinth_registry import policy
from plinth_registry.exports import verify
from tests.judged_corpus import PLANTED, build, ledger_of
from tests.peers import Peer
from tests.registry.conftest import make_recipe
from tests.registry.exports.test_released import release_in, root_of

gguf = Peer("gguf")


@pytest.fixture
def released(tmp_path: Path) -> Context:
    """Return a release with published held-out text of two buckets."""
    ctx = build(tmp_path)
    made = ledger.run(ctx, ledger_of(ctx))
    ctx.refs.publish(made, key=made.digest)
    return release_in(ctx)


def export(ctx: Context, tmp_path: Path, to: Path, form: str) -> int:
    described = make_recipe("demo").model_dump(mode="json", exclude_unset=True)
    (web,) = described["corpus"]["buckets"].values()
    described["corpus"]["buckets"] = dict.fromkeys(PLANTED, web)
    described["corpus"]["annotate"] = {"language": {}, "licence": {}}
    recipe = tmp_path / "demo.yaml"
    recipe.write_text(yaml.safe_dump(described))
    words = ("export", "model", "demo@champion", str(to), "-w", str(ctx.workspace.root), "-r", str(recipe))
    return call([*words, "--format", form])


@pytest.mark.exhaustive
def test_a_form_leaves_with_its_loss_and_proves_itself(
    released: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "q8"
    assert export(released, tmp_path, to, "gguf-q8_0") == 0, capfd.readouterr().err
    assert gguf.GGUFReader(to / "model.gguf").fields["general.architecture"].contents() == "llama"
    proved = verify(to, root_of(released))
    assert (proved["name"], proved["status"]) == ("demo/2", "released")
    assert proved["evidence"]["evidence/attestations/forms.gguf-q8_0.json"].startswith("evaluator: ")
    sealed = dsse.unverified(dsse.envelope_of(to / "EXPORT.json"), "export")["predicate"]["form"]
    (gate,) = sealed["gates"]
    assert (sealed["name"], gate["name"], gate["passed"]) == ("gguf-q8_0", "compressed", True)
    whole = gate["evidence"]["bits_per_byte"]["all"]
    assert -0.02 < whole["low"] < whole["value"] < whole["high"] < whole["margin"] == 0.02
    stated = dsse.unverified(dsse.envelope_of(to / "evidence/attestations/forms.gguf-q8_0.json"), "form")["predicate"]
    assert stated["facts"]["files"] == {"model.gguf": proved["digests"]["model.gguf"]}
    assert stated["materials"]["forms/gguf-q8_0"] == sealed["comparison"]
    compared = released.refs.load(sealed["comparison"])
    form = released.refs.load(compared.inputs["a/checkpoint"])
    assert form.inputs == {"release": proved["checkpoint"]} == {"release": compared.inputs["b/checkpoint"]}
    assert {line["slice"] for line in compared.stats["lines"]} >= {"all", "bucket web", "bucket prose"}
    (to / "model.gguf").chmod(0o644)
    with (to / "model.gguf").open("r+b") as stream:
        stream.seek(-100, 2)
        stream.write(b"\x01\x02")
    with pytest.raises(SignatureError, match="not a verified export"):
        verify(to, root_of(released))


@pytest.mark.exhaustive
def test_a_policy_without_room_for_a_loss_holds_a_form_back(
    released: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = policy.current(released, "demo").policy
    none = {"version": before.version + 1, "extensions": {"compressed": {"margin": 0.0}}}
    policy.sign(released, before.model_copy(update=none))
    assert export(released, tmp_path, tmp_path / "held", "gguf-q8_0") == 8
    assert "compressed: 1 of 1 difference from the release above the limit: " in capfd.readouterr().err
    assert not (tmp_path / "held").exists()
    stated = json.dumps([path.name for path in released.workspace.attestations.rglob("*.json")])
    assert "forms.gguf-q8_0.json" in stated  # what was measured stays on record
