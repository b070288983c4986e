"""What commands about keys share: the workspace, the record of a change in the log of decisions, what is printed."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from plinth_jobs.cli.options import Settings

if TYPE_CHECKING:
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import Trust
    from plinth.trust.versions import Proposing
    from plinth_registry.audit_log import AuditedAction


def workspace_of(settings: Settings) -> Workspace:
    """The workspace of a command; nothing is made or looked at."""
    from plinth.storage.workspace import Workspace

    return Workspace(settings.workspace)


def audited_change(settings: Settings, change: str, *, proposed: bool = False) -> AbstractContextManager[object]:
    """Record a change of the root, or that it was refused, in the log of decisions."""
    from plinth.compute.context import Context
    from plinth.trust.root import Trust
    from plinth_registry.audit_log import AuditedAction, audited

    workspace = workspace_of(settings)
    if proposed and Trust.newest(workspace).root.expired():
        return nullcontext()  # nothing can be recorded under it; the version that renews it is signed itself
    return audited(
        Context(workspace), AuditedAction("keys", f"{change}{', proposed' if proposed else ''}", getpass.getuser())
    )


@contextmanager
def noted_change(settings: Settings, change: str) -> Iterator[AuditedAction]:
    """As `audited_change`, for what needs no root key: where none is here, what is done is not recorded.

    A pin changes this machine alone, and a published root is signed by its holders. A log that a root from before has
    signed cannot be continued; that is said.
    """
    from plinth.compute.context import Context
    from plinth.errors import SignatureError, TrustError
    from plinth_jobs.cli import output
    from plinth_registry.audit_log import AuditedAction, may_record, record

    ctx, asked = Context(workspace_of(settings)), AuditedAction("keys", change, getpass.getuser())
    try:
        yield asked
    except TrustError as error:
        record(ctx, asked, error.what)
        raise
    try:
        if may_record(ctx, "keys"):
            record(ctx, asked)
    except SignatureError as error:
        output.say(output.plain_markup(f"not recorded in the log of decisions: {error}"))


def tell_change(trust: Trust, propose: Proposing | None = None) -> None:
    """Print the root as it is now, or the proposal that was written."""
    from plinth.trust import versions
    from plinth_jobs.cli import output
    from plinth_jobs.cli.release import key_proposals

    if propose is not None:
        return key_proposals.tell(versions.read(trust, propose.file), propose.file)
    return output.say(f"{trust.root.title}, until {trust.root.expires}")
