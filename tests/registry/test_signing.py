"""A signed directory holds what was signed and nothing else: every way to change it is refused and named."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, LineageError, SignatureError
from plinth.trust import dsse
from plinth.trust.dsse import APPROVER, TRAINER, Authority
from plinth.trust.root import Trust
from plinth_registry import signing


@pytest.fixture
def signed(ctx: Context, line: Any) -> Path:
    return build(ctx, line)


@pytest.fixture
def key(ctx: Context) -> Authority:
    return Trust.of(ctx.workspace).authority(TRAINER)


def build(ctx: Context, line: Any) -> Path:
    return signing.materialise(ctx, line.checkpoint, line.provenance())


def flip(path: Path, position: int = -1) -> None:
    """Change one bit of one byte, as a person with access to the file could."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_the_directory_holds_the_checkpoint_and_its_provenance(signed: Path, line: Any, key: Authority) -> None:
    names = {part.name for part in line.checkpoint.parts}
    assert {path.name for path in signed.iterdir()} == names | {"provenance.json"}
    assert signed.name == line.checkpoint.digest[:12]
    provenance = signing.verify(signed, key)
    assert provenance == json.loads((signed / "provenance.json").read_bytes())
    assert provenance["checkpoint"]["digest"] == line.checkpoint.digest


def test_making_it_again_changes_nothing(ctx: Context, signed: Path, line: Any) -> None:
    def stamps() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in ctx.workspace.models.rglob("*") if p.is_file()}

    before = stamps()
    assert build(ctx, line) == signed
    assert stamps() == before


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "state.json", "resume.json", "provenance.json"]
)
def test_a_flipped_bit_in_any_file_is_refused_and_the_file_is_named(signed: Path, key: Authority, name: str) -> None:
    flip(signed / name)
    with pytest.raises(SignatureError, match=name):
        signing.verify(signed, key)


@pytest.mark.parametrize("name", ["extra.bin", ".gitattributes", ".git/config", "sub/model.py"])
def test_an_added_file_is_refused(signed: Path, key: Authority, name: str) -> None:
    (signed / name).parent.mkdir(exist_ok=True)
    (signed / name).write_text("new")
    with pytest.raises(SignatureError, match=r"the signature of .* is invalid"):
        signing.verify(signed, key)


def test_a_missing_file_is_refused(signed: Path, key: Authority) -> None:
    (signed / "state.json").unlink()
    with pytest.raises(SignatureError, match=r"state\.json"):
        signing.verify(signed, key)


def test_a_link_in_place_of_a_file_is_refused(signed: Path, key: Authority, tmp_path: Path) -> None:
    (signed / "config.json").rename(tmp_path / "config.json")
    (signed / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(SignatureError, match=r"the signature of .* is invalid"):
        signing.verify(signed, key)


def test_an_empty_directory_never_verifies(tmp_path: Path, key: Authority) -> None:
    with pytest.raises(SignatureError, match="not a signed model"):
        signing.verify(tmp_path, key)


def test_another_trainers_signature_is_refused(ctx: Context, signed: Path) -> None:
    with pytest.raises(SignatureError, match=r"the signature of .* is invalid"):
        signing.verify(signed, Trust.of(ctx.workspace).authority(APPROVER))


@pytest.mark.parametrize("which", [signing.signature_path, signing.slsa_path])
@pytest.mark.parametrize("field", ["payload", "sig"])
def test_a_changed_payload_or_signature_is_refused(
    signed: Path, key: Authority, which: Callable[[Path], Path], field: str
) -> None:
    path = which(signed)
    content = json.loads(path.read_bytes())
    envelope = content.get("dsseEnvelope", content)
    holder = envelope if field == "payload" else envelope["signatures"][0]
    raw = bytearray(base64.b64decode(holder[field]))
    raw[len(raw) // 2] ^= 1
    holder[field] = base64.b64encode(raw).decode()
    path.write_text(json.dumps(content))
    with pytest.raises(SignatureError):
        signing.verify(signed, key)


@pytest.mark.parametrize("which", [signing.signature_path, signing.slsa_path])
def test_a_torn_signature_file_is_refused(signed: Path, key: Authority, which: Callable[[Path], Path]) -> None:
    path = which(signed)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SignatureError):
        signing.verify(signed, key)


def test_another_models_statement_is_refused(ctx: Context, make_line: Any, key: Authority) -> None:
    one, other = build(ctx, make_line(1)), build(ctx, make_line(2))
    signing.slsa_path(one).write_bytes(signing.slsa_path(other).read_bytes())
    with pytest.raises(SignatureError, match=r"model\.safetensors"):
        signing.verify(one, key)


def test_a_signature_of_another_model_is_refused(ctx: Context, make_line: Any, key: Authority) -> None:
    one, other = build(ctx, make_line(1)), build(ctx, make_line(2))
    signing.signature_path(one).write_bytes(signing.signature_path(other).read_bytes())
    with pytest.raises(SignatureError, match=r"model\.safetensors"):
        signing.verify(one, key)


def test_unfinished_work_is_made_again(ctx: Context, signed: Path, line: Any, key: Authority) -> None:
    flip(signed / "config.json")
    signing.slsa_path(signed).unlink()
    assert build(ctx, line) == signed
    assert signing.verify(signed, key)["checkpoint"]["digest"] == line.checkpoint.digest


def test_a_changed_directory_is_not_silently_repaired(ctx: Context, signed: Path, line: Any) -> None:
    flip(signed / "model.safetensors")
    with pytest.raises(SignatureError, match=r"model\.safetensors"):
        build(ctx, line)


def test_changing_the_model_never_changes_the_store(ctx: Context, signed: Path, line: Any) -> None:
    flip(signed / "model.safetensors")
    for part in line.checkpoint.parts:
        ctx.store.verify(part.blob)


def test_a_damaged_store_never_becomes_a_model(ctx: Context, line: Any) -> None:
    (part,) = line.checkpoint.named("model.safetensors")
    flip(ctx.store.path(part.blob))
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        build(ctx, line)
    assert not signing.directory_of(ctx, line.checkpoint.digest).exists()


def test_a_checkpoint_without_weights_is_no_model(ctx: Context, line: Any) -> None:
    bare = line.checkpoint.model_copy(update={"parts": line.checkpoint.parts[1:]})
    with pytest.raises(LineageError, match="not a model"):
        signing.materialise(ctx, bare, {})


def test_a_statement_of_another_kind_is_refused(ctx: Context, signed: Path, key: Authority) -> None:
    with pytest.raises(SignatureError, match="has an unexpected predicate type"):
        dsse.read(signing.slsa_path(signed), key, "urn:plinth:approval:v1")
