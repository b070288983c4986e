"""Record by which the nodes of a job find node 0, before any connection exists.

Node 0 publishes one record per job, and a spare that leads in its place another one. The other nodes read it until they
are connected, and again after the loss of node 0. A record of an earlier job is harmless, because no process at its
address knows its secret.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Protocol

from plinth import fingerprint
from plinth.errors import PlinthError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.storage.seal import load
from plinth.storage.workspace import Workspace
from plinth.training.directory import RunDirectory
from plinth.training.shared_run.head import SESSION, SharedRun, is_active

#: Seconds between two reads of the bucket.
EVERY_S = 1.0


class RendezvousRecord(Frozen):
    """Address (`host:port`) and secret of a job's node 0."""

    address: str
    secret: str


class Rendezvous(Protocol):
    """Place of a run's record. Only this user, and those who may act for the run, can read it."""

    def publish(self, record: RendezvousRecord) -> None:
        """Replace the record, so that readers find either the old record or the new one. A supervisor calls this once,
        while it alone may act for the run.

        Raises:
            LaunchError: another node 0 may act for the run now. The caller ends without starting a rank.
        """

    def read(self) -> RendezvousRecord | None:
        """Return the newest record, or None if there is none yet or it cannot be read now. Nodes call this several
        times per second until they are connected."""


class FileRendezvous:
    """Record in a file of the run's directory, which all nodes read. Node 0 holds the run's lock. The record is sealed,
    so no other writer of the workspace can give orders to the nodes."""

    def __init__(self, run: RunDirectory) -> None:
        self._path, self._run = run.rendezvous, run.root.name
        self._seal = load(Workspace(run.workspace).trust_folder)

    def publish(self, record: RendezvousRecord) -> None:
        """Replace the file."""
        content = {"record": record.model_dump(), "seal": self._seal.of(*self._sealed(record))}
        write_bytes(self._path, fingerprint.canonical(content), mode=0o600)

    def read(self) -> RendezvousRecord | None:
        """Return the record in the file, or None. The file is opened for each read, as NFS requires."""
        try:
            content = json.loads(self._path.read_bytes())
            record = RendezvousRecord.model_validate(content["record"])
            return record if self._seal.holds(content["seal"], *self._sealed(record)) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _sealed(self, record: RendezvousRecord) -> tuple[str, str, str]:
        return "rendezvous", self._run, fingerprint.digest(record.model_dump())


class BucketRendezvous:
    """Record in the head of a run in a shared workspace. Node 0 has claimed the run."""

    def __init__(self, shared: SharedRun) -> None:
        self._shared = shared
        self._read_at = float("-inf")
        self._record: RendezvousRecord | None = None

    def publish(self, record: RendezvousRecord) -> None:
        """Write the address into the head.

        Raises:
            LaunchError: another supervisor has claimed the run.
        """
        secret = self._shared.hidden(record.secret, self._shared.session)
        self._shared.change(lambda head: head.model_copy(update={"address": record.address, "secret": secret}))

    def read(self) -> RendezvousRecord | None:
        """Return the record of a job that is alive, or None. The bucket is read once per second."""
        if time.monotonic() - self._read_at > EVERY_S:
            self._read_at = time.monotonic()
            with suppress(PlinthError):
                self._record = self._asked()
        return self._record

    def _asked(self) -> RendezvousRecord | None:
        found = self._shared.read()
        if not is_active(found) or found is None or not found.head.address:
            return None
        head = found.head
        secret = self._shared.hidden(head.secret, head.session)
        return RendezvousRecord(address=head.address, secret=secret)


def rendezvous_of(run: RunDirectory) -> Rendezvous:
    """Return the place of a run's record."""
    shared = SharedRun.of(run, os.environ.get(SESSION, ""))
    return FileRendezvous(run) if shared is None else BucketRendezvous(shared)
