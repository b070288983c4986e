"""Attack: folders that a release depends on are emptied. The champion does not load without them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.trust.root import SEEN
from plinth_registry import verified
from tests.attacks.test_mlflow_writer import name_of, release


def _emptied(folder: Path) -> None:
    for path in folder.rglob("*.json"):
        path.unlink()


def _cut(folder: Path) -> None:
    max(folder.glob("*.json")).unlink()


def _edited(folder: Path) -> None:
    (path,) = folder.rglob("*.json")
    path.write_text(path.read_text().replace('"sig": "M', '"sig": "N'))


def _replaced(folder: Path) -> None:
    """The entry that the release record names, by the one before."""
    *_, before, named, _ = sorted(folder.glob("*.json"))
    shutil.copy(before, named)


ATTACKS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "approvals/ emptied": ("approvals", _emptied, "decisions that released candidate .* are missing"),
    "approvals/ removed": ("approvals", shutil.rmtree, "decisions that released candidate .* are missing"),
    "an approval edited": ("approvals", _edited, "decisions that released candidate .* are missing"),
    "audit/ emptied": ("audit", _emptied, "records of audit/ are missing"),
    "audit/ removed": ("audit", shutil.rmtree, "records of audit/ are missing"),
    "audit/ cut at its end": ("audit", _cut, "records of audit/ are missing"),
    "an entry of audit/ replaced": ("audit", _replaced, "records of audit/ are (broken|missing)"),
    "policies/ emptied": ("policies", _emptied, "(policies of .* are missing|the gate policy that released)"),
    "policies/ removed": ("policies", shutil.rmtree, "(policies of .* are missing|the gate policy that released)"),
}


def test_a_champion_is_loaded_only_with_what_it_rests_on(
    ctx: Context, line: Any, mlflow: Any, tmp_path: Path, own_trust: Path
) -> None:
    """On the machine that released it, and on one that has seen nothing and has the head of the releases alone."""
    release(ctx, line)
    target, root = f"{name_of(line)}@champion", ctx.workspace.root
    assert verified.verify_model(ctx, target).release == f"{name_of(line)}/1"
    for machine in ("the same", "a new one"):
        for folder, attack, reason in ATTACKS.values():
            shutil.copytree(root / folder, tmp_path / "kept")
            attack(root / folder)
            if machine == "a new one":
                (own_trust / SEEN).unlink(missing_ok=True)
            with pytest.raises(SignatureError, match=reason):
                verified.verify_model(ctx, target)
            shutil.rmtree(root / folder, ignore_errors=True)
            (tmp_path / "kept").rename(root / folder)
            assert verified.verify_model(ctx, target).release == f"{name_of(line)}/1"
