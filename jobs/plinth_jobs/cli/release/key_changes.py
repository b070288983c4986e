"""A change of the root: its record, what is printed; `--propose`, `plinth keys sign` and `plinth keys publish` for a
root that several holders sign."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import F, Settings, shared

if TYPE_CHECKING:
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import Trust
    from plinth.trust.versions import Proposing, RootProposal
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

    if propose is not None:
        return tell(versions.read(trust, propose.file), propose.file)
    return output.say(f"{trust.root.title}, until {trust.root.expires}")


file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
instead_option = click.option("--instead", is_flag=True, help="This machine signed another such version; give that up.")


def propose_option(function: F) -> F:
    """`--propose FILE`, as `propose`: the change is written there for other holders of the root to sign."""

    @click.option("--propose", "file", default=None, metavar="FILE", type=click.Path(path_type=Path),
                  help="Write the next version of the root to FILE, for its other holders to sign.")  # fmt: skip
    @instead_option
    @wraps(function)
    def run(*args: Any, file: Path | None, instead: bool, **given: Any) -> Any:
        from plinth.trust.versions import Proposing

        return function(*args, propose=Proposing(file=file, instead=instead) if file else None, **given)

    return run  # type: ignore[return-value]


@click.command()
@file_argument
@instead_option
@click.option("--yes", is_flag=True, help="Sign without a question.")
@shared
def sign(settings: Settings, file: Path, instead: bool, yes: bool) -> None:
    """Show what the proposal FILE changes, and add the signature of this machine's root key."""
    from plinth.trust import versions
    from plinth.trust.root import Trust

    workspace = workspace_of(settings)
    proposal = versions.read(Trust.newest(workspace), file)
    tell(proposal, file)
    if not (yes or click.confirm("Sign it?")):
        return
    with audited_change(settings, f"sign {_named(proposal)}", proposed=True):
        tell(versions.sign(workspace, file, expected=proposal.record, instead=instead), file)


@click.command()
@file_argument
@shared
def publish(settings: Settings, file: Path) -> None:
    """Publish the proposal FILE, when enough holders of the root signed it; needs no key."""
    from plinth.trust import versions

    with noted_change(settings, f"publish {file.name}") as asked:
        trust = versions.publish_proposal(workspace_of(settings), file)
        asked.subject = f"publish {trust.root.title}, SHA-256 {trust.root.digest()}"
    tell_change(trust)


def tell(proposal: RootProposal, file: Path) -> None:
    """Print what a proposal changes, who signed it, and what it lacks."""
    from plinth.trust import root
    from plinth_jobs.cli import output

    keys = {**proposal.record.keys, **proposal.before.keys}
    by = sorted({keys[key_id].owner for key_id in (*proposal.signed_old, *proposal.signed_new)})
    rest = f"missing: {proposal.missing}" if proposal.missing else "ready: `plinth keys publish FILE`"
    changes = (f"  {line}" for line in root.changes(proposal.before, proposal.record))
    lines = (f"{file}: {_named(proposal)}", *changes, f"signed by {', '.join(by) or 'nobody'}; {rest}")
    output.say(output.plain_markup("\n".join(lines)))


def _named(proposal: RootProposal) -> str:
    return f"version {proposal.record.version} of root {proposal.record.name}, SHA-256 {proposal.record.digest()}"
