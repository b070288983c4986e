"""Record by which the nodes of a job find node 0, before any connection exists.

Node 0 publishes one record per job. The other nodes read it until they are connected, and never again: a node serves
one job of the run. A record of an earlier job is harmless, because no process at its address knows its secret.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import ValidationError

from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training.directory import RunDirectory


class RendezvousRecord(Frozen):
    """Address (`host:port`) and secret of a job's node 0. `session` is different for each job of the run."""

    session: str
    address: str
    secret: str


class Rendezvous(Protocol):
    """Place of a run's record. Only this user, and those who may act for the run, can read it."""

    def publish(self, record: RendezvousRecord) -> None:
        """Replace the record, so that readers find either the old record or the new one. Node 0 calls this once per
        job, while it alone may act for the run.

        Raises:
            LaunchError: another node 0 may act for the run now. The caller ends without starting a rank.
        """

    def read(self) -> RendezvousRecord | None:
        """Return the newest record, or None if there is none yet or it cannot be read now. Nodes call this several
        times per second until they are connected."""


class FileRendezvous:
    """Record in a file of the run's directory, which all nodes read. Node 0 holds the run's lock."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.rendezvous

    def publish(self, record: RendezvousRecord) -> None:
        """Replace the file."""
        write_bytes(self._path, record.model_dump_json().encode(), mode=0o600)

    def read(self) -> RendezvousRecord | None:
        """Return the record in the file, or None. The file is opened for each read, as NFS requires."""
        try:
            return RendezvousRecord.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None


def rendezvous_of(run: RunDirectory) -> Rendezvous:
    """Return the place of a run's record."""
    return FileRendezvous(run)
