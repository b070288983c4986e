"""`plinth keys identity`: whose Sigstore bundles count for a role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import Settings, shared
from plinth_jobs.cli.release.key_changes import audited_change, propose_option, tell_change, workspace_of

if TYPE_CHECKING:
    from plinth.trust.versions import Proposing


@click.command()
@click.argument("role")
@click.argument("name", metavar="IDENTITY")
@click.option("--issuer", required=True, metavar="URL", help="OpenID Connect issuer that vouches for it.")
@click.option("--remove", is_flag=True, help="Its bundles count no more.")
@propose_option
@shared
def identity(
    settings: Settings, role: str, name: str, issuer: str, remove: bool, propose: Proposing | None
) -> None:
    """Let Sigstore bundles of IDENTITY count for ROLE: an e-mail address, or the URI of a workflow, as certified."""
    from plinth.trust import enrolment
    from plinth.trust.authority import SigstoreIdentity

    given = SigstoreIdentity(identity=name, issuer=issuer)
    change = enrolment.drop if remove else enrolment.name
    said = f"{'no more ' if remove else ''}{name} of {issuer} as {role}"
    with audited_change(settings, f"identity {said}", proposed=bool(propose)):
        tell_change(change(workspace_of(settings), role, given, propose=propose), propose)
