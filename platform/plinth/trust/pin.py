"""The root that this machine has pinned for a workspace, and the private keys that lie beside it.

    $PLINTH_TRUST, or ~/.config/plinth/trust/<workspace>/     mode 700, outside every workspace
        root.json                   the newest root that was proved here
        keys/ROLE/OWNER.key         a private key; or OWNER.source: one line that says where it is kept (`signers`)
        seal                        the secret of this workspace's workers (`storage.seal`)
        seen.json                   the newest of every counted record, by number and SHA-256: less shows a removal

A role's key can also come from `PLINTH_KEY_<ROLE>`, so that a process holds only what it needs. The workspace keeps a
copy of every root version; a copy counts only when it follows from the pinned one.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plinth.errors import SignatureError
from plinth.storage import locks
from plinth.storage.atomic import write_bytes
from plinth.storage.off_limits import KEY_VARIABLE
from plinth.storage.workspace import Workspace
from plinth.trust import dsse, root, signers
from plinth.trust.authority import Authority
from plinth.trust.root import Root
from plinth.trust.signers import Signer

ROOT_FILE = "root.json"
SEEN = "seen.json"


class Proof(NamedTuple):
    """A record that was verified here: its number, the SHA-256 of its file, and the digest of the root that did it."""

    number: int
    sha256: str = ""
    root: str = ""


@dataclass(frozen=True)
class Trust:
    """A proved root, and the folder with this machine's private keys."""

    folder: Path
    root: Root

    @classmethod
    def of(cls, workspace: Workspace) -> Trust:
        """The root pinned for a workspace, or the newest version that follows from it.

        Raises:
            SignatureError: none is pinned, it does not verify, or it has expired.
        """
        found = cls.newest(workspace)
        found.root.require_current()
        return found

    @classmethod
    def newest(cls, workspace: Workspace) -> Trust:
        """As `of`, also where that version has expired: for whoever renews it.

        Raises:
            SignatureError: none is pinned, it does not verify, or this machine has had a newer version.
        """
        folder = workspace.trust_folder
        pinned = folder / ROOT_FILE
        if not pinned.exists():
            raise SignatureError(
                f"no root of trust is pinned for {workspace.uri or workspace.root}",
                found=f"no {pinned}",
                expected="a root that says who may sign what",
                remedy="make one with `plinth keys init` (`--demo` to try), or pin yours with `plinth keys pin FILE`",
            )
        known = root.first(dsse.envelope_of(pinned.resolve()), str(pinned))  # the user's own, which may be a link
        newest = known
        for path in _versions(workspace, known.version + 1):
            data = dsse.bytes_of(path)
            newest = root.following(newest, dsse.parsed(data, str(path)), str(path))
            write_bytes(pinned, data, mode=0o600)
            cls(folder, newest).remember(_counted(newest), newest.version)
        return cls(folder, newest).not_older()

    def not_older(self) -> Trust:
        """This trust, unless this machine has had a newer version of its root.

        Raises:
            SignatureError: it has: what the newer one revoked would count again.
        """
        had = self.seen(_counted(self.root))
        if self.root.version < had:
            raise SignatureError(
                f"an older version of root {self.root.name} was put back",
                found=f"{self.root.title} in {self.folder / ROOT_FILE}",
                expected=f"version {had}, which this machine has had",
                remedy=f"restore it, or trust/{had}.root.json in the workspace; or say `keys pin --replace`",
            )
        return self

    def pinned(self, *, replaced: bool = False) -> Trust:
        """This trust, when its root was just written as this machine's: an older one of that name is refused later.

        Args:
            replaced: by somebody's word, which may also be for an older one.
        """
        if replaced:
            self._forget(_counted(self.root))
        self.remember(_counted(self.root), self.root.version)
        return self

    def authority(self, role: str) -> Authority:
        """Who may sign as a role."""
        return self.root.authority(role)

    def signer(self, role: str, owner: str | None = None) -> Signer:
        """This machine's private key for a role; no key is made.

        Raises:
            SignatureError: there is none, there are several and no owner was named, or the root does not list it.
        """
        authority = self.authority(role) if owner is None else self.authority(role).owned_by(owner)
        valid = [(key.owner, key.public) for key in authority.keys.values() if key.revoked_from is None]
        source = os.environ.get(f"{KEY_VARIABLE}{role.upper()}") or self._kept(role, {name for name, _ in valid})
        return signers.match(source, role, valid)

    def seen(self, *names: str) -> int:
        """The highest number of a counted record, under one of its names, that was ever verified here; 0 before any."""
        return self.proved(*names).number

    def proved(self, *names: str) -> Proof:
        """The newest counted record, under one of its names, that was ever verified here."""
        seen = self._seen()
        return max((_proof(seen.get(name, 0), self.folder) for name in names), key=lambda proof: proof.number)

    def remember(self, what: str, number: int, sha256: str = "") -> None:
        """Keep the highest number of a counted record and, of one that was proved under this root, its SHA-256."""
        found = Proof(number, sha256, self.root.digest() if sha256 else "")
        known = self.proved(what)
        if number < known.number or found == known:
            return
        with locks.locked(self.folder / ".lock"):
            seen = self._seen()
            if number >= _proof(seen.get(what, 0), self.folder).number:
                seen[what] = list(found) if sha256 else number
                write_bytes(self.folder / SEEN, json.dumps(seen, indent=1, sort_keys=True).encode(), mode=0o600)

    def _forget(self, what: str) -> None:
        with locks.locked(self.folder / ".lock"):
            kept = {name: known for name, known in self._seen().items() if name != what}
            write_bytes(self.folder / SEEN, json.dumps(kept, indent=1, sort_keys=True).encode(), mode=0o600)

    def _seen(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / SEEN).read_bytes()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise SignatureError(f"{self.folder / SEEN} is damaged", found=error) from error

    def _kept(self, role: str, owners: set[str]) -> str:
        folder = self.folder / "keys" / role
        places = (folder / f"{owner_file(owner)}{suffix}" for owner in sorted(owners) for suffix in (".key", ".source"))
        found = [path for path in places if path.exists()]
        if len(found) != 1:
            whose = ", ".join(sorted(owners)) or "anybody"
            raise SignatureError(
                f"no private key of {whose} as {role} on this machine" if not found else f"several keys as {role}",
                found=", ".join(path.stem for path in found) or f"nothing in {folder}",
                expected=f"one key, or {KEY_VARIABLE}{role.upper()}",
                remedy="sign where that key is kept" if not found else "name the owner",
            )
        path = found[0]
        return path.read_text().strip() if path.suffix == ".source" else f"file:{path}"


def _proof(entry: Any, folder: Path) -> Proof:
    try:
        number, *rest = entry if isinstance(entry, list) else [entry]
        return Proof(int(number), *map(str, rest))
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{folder / SEEN} is damaged", found=error) from error


def owner_file(owner: str) -> str:
    """An owner's name as a file name; different owners never share one.

    Raises:
        SignatureError: for an empty name, one that starts with a dot, or one that is no text.
    """
    try:
        name = urllib.parse.quote(owner.strip(), safe="@+ ")
    except UnicodeEncodeError:
        name = ""
    if not name or name.startswith("."):
        raise SignatureError("a key needs the name of a person or service", found=repr(owner))
    return name


def version_path(workspace: Workspace, version: int) -> Path:
    """Where a workspace keeps its copy of a root version."""
    return workspace.trust / f"{version}.root.json"


def _counted(root: Root) -> str:
    return f"root {root.name}"


def _versions(workspace: Workspace, number: int) -> Iterator[Path]:
    while (path := version_path(workspace, number)).exists():
        yield path
        number += 1
