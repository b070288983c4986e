"""Lines about the root of trust: pinned outside, valid, held by several, its private halves readable by nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from plinth.errors import SignatureError
from plinth.operation.checklists.check import (
    Check,
    CheckAnswer,
    failed,
    not_applicable,
    passed,
    undetermined,
    warned,
)
from plinth.operation.checklists.scope import CheckScope
from plinth.trust.authority import APPROVER, POLICY, PROMOTER, ROOT, TRAINER, time_of
from plinth.trust.root import Trust

#: Roles whose keys should not lie on one machine: who trains neither approves nor says what is asked.
APART = (TRAINER, APPROVER, POLICY, PROMOTER)


def root_pinned(scope: CheckScope) -> CheckAnswer:
    """A root is pinned, outside the workspace, and neither expired nor about to."""
    workspace = scope.ctx.workspace
    trust = Trust.newest(workspace)
    if trust.folder.resolve().is_relative_to(workspace.root.resolve()):
        return failed(f"{trust.folder} lies in the workspace, whose writers could exchange it")
    left = (time_of(trust.root.expires) - datetime.fromtimestamp(scope.now, UTC)).total_seconds() / 86400
    found = f"{trust.root.title}, expires {trust.root.expires}, pinned in {trust.folder}"
    if left <= 0:
        return failed(found)
    return warned(f"{found}: {left:.0f} days") if left < scope.settings.expiry_days else passed(found)


def roles_held(scope: CheckScope) -> CheckAnswer:
    """Every role has as many keys that count as its threshold asks for."""
    root = Trust.newest(scope.ctx.workspace).root
    short = []
    for name in root.roles:
        authority = root.authority(name)
        valid = sum(key.revoked_from is None for key in authority.keys.values())
        if valid < authority.threshold:
            short.append(f"{name}: {valid} of {authority.threshold}")
    if short:
        return failed("; ".join(short))
    return passed(f"{len(root.roles)} roles, {len(root.keys)} keys")


def root_shared(scope: CheckScope) -> CheckAnswer:
    """No demo root, and no single holder who can change it."""
    root = Trust.newest(scope.ctx.workspace).root
    if root.demo:
        return warned(f"{root.title}: whatever it signs is shown as made by a demo root")
    threshold = root.authority(ROOT).threshold
    found = f"{threshold} of {len(root.authority(ROOT).keys)} root keys change it"
    return warned(f"{found}: one holder alone") if threshold < 2 else passed(found)


def roles_apart(scope: CheckScope) -> CheckAnswer:
    """This machine does not hold the keys of all roles that check each other."""
    trust = Trust.newest(scope.ctx.workspace)
    here = [role for role in APART if _has_key(trust.folder, role)]
    found = f"private keys on this machine: {', '.join(here) or 'none'}"
    return warned(f"{found}; whoever holds it decides alone") if len(here) == len(APART) else passed(found)


def key_modes(scope: CheckScope) -> CheckAnswer:
    """The trust folder is its user's alone."""
    folder = scope.ctx.workspace.trust_folder
    if not folder.is_dir():
        return undetermined(f"no folder {folder}")
    open_ = list(_open_to_others(folder))
    if open_:
        return failed(", ".join(open_[:5]) + (f" and {len(open_) - 5} more" if len(open_) > 5 else ""))
    return passed(f"{folder} {_mode_of(folder)}, all of user {os.geteuid()}, keys and seal for no other")


def keys_outside(scope: CheckScope) -> CheckAnswer:
    """No private key lies in the workspace."""
    root = scope.ctx.workspace.root
    if not root.is_dir():
        return not_applicable(f"no folder {root}")
    found = [str(path.relative_to(root)) for path in _small_files(root) if b"PRIVATE KEY-----" in path.read_bytes()]
    return failed(", ".join(found)) if found else passed(f"none in the small files of {root}")


def _mode_of(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def _has_key(folder: Path, role: str) -> bool:
    return f"PLINTH_KEY_{role.upper()}" in os.environ or any((folder / "keys" / role).glob("*"))


#: What of a trust folder nobody else may read; the rest nobody else may write.
_SECRET = ("keys", "seal", "login")


def _open_to_others(folder: Path) -> Iterator[str]:
    for path in (folder, *sorted(folder.rglob("*"))):
        found = path.lstat()
        mode, secret = stat.S_IMODE(found.st_mode), path == folder or path.relative_to(folder).parts[0] in _SECRET
        if stat.S_ISLNK(found.st_mode):
            yield f"{path} is a link"
        elif found.st_uid != os.geteuid():
            yield f"{path} belongs to user {found.st_uid}"
        elif mode & (0o077 if secret else 0o022):
            yield f"{path} has mode {mode:04o}"


#: Folders of a workspace with content of others, which is data and too much to read here.
_DATA = {"store", "records", "manifests", "input", "runs", "mlflow", "dagster", "tmp", "reports", "costs"}
_SMALL = 1 << 16


def _small_files(root: Path) -> Iterator[Path]:
    for top in sorted(root.iterdir()):
        under = [top] if top.is_file() else top.rglob("*") if top.is_dir() and top.name not in _DATA else []
        yield from (path for path in under if path.is_file() and path.lstat().st_size <= _SMALL)


def _pinned(scope: CheckScope) -> CheckAnswer:
    try:
        return root_pinned(scope)
    except SignatureError as error:
        return failed(error.brief)


CHECKS = (
    Check(
        "root-pinned", "a root of trust is pinned outside the workspace and valid for weeks to come", "security",
        ("preproduction", "readiness", "security"), "`plinth keys pin FILE`, or `plinth keys renew`", _pinned,
        waivable=False,
    ),
    Check(
        "roles-held", "every role has as many valid keys as its threshold", "security", ("readiness", "security"),
        "`plinth keys enrol ROLE KEY.pub --owner NAME`", roles_held, waivable=False,
    ),
    Check(
        "root-shared", "the root is no demo root, and no single holder changes it", "security", ("security",),
        "`plinth keys init`; `plinth keys threshold root 2`", root_shared,
    ),
    Check(
        "roles-apart", "keys of trainer, approver, policy and promoter do not all lie on one machine", "security",
        ("security",), "keep each role's key where that role works (docs/keys.md)", roles_apart,
    ),
    Check(
        "key-modes", "the trust folder is its user's alone", "security", ("readiness", "security"),
        "chmod -R go= on the folder; exchange keys that others could read", key_modes,
    ),
    Check(
        "keys-outside", "no private key lies in the workspace", "security", ("security",),
        "move the key to the trust folder, revoke it and enrol another: others could read it", keys_outside,
    ),
)  # fmt: skip
