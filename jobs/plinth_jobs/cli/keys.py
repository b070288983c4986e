"""`plinth keys`: the root of trust of a workspace, its signing roles, and the private keys of this machine."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import SignatureError, TrustError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import F, Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.storage.workspace import Workspace
    from plinth.trust.root import Trust
    from plinth.trust.versions import Proposing, RootProposal
    from plinth_registry.audit_log import AuditedAction

#: Approver of a demo root; the demo recipe names the same person.
DEMO_APPROVER = "demo-approver@example.org"

file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))

instead_option = click.option(
    "--instead",
    is_flag=True,
    help="Sign even if this machine has signed a different proposal for this version of the root.",
)


def propose_option(function: F) -> F:
    """Add `--propose FILE`, which writes the change to a file for other root holders to sign."""

    @click.option("--propose", "file", default=None, metavar="FILE", type=click.Path(path_type=Path),
                  help="Write the next version of the root to FILE for other root holders to sign.")  # fmt: skip
    @instead_option
    @wraps(function)
    def run(*args: Any, file: Path | None, instead: bool, **given: Any) -> Any:
        from plinth.trust.versions import Proposing

        return function(*args, propose=Proposing(file=file, instead=instead) if file else None, **given)

    return run  # type: ignore[return-value]


@group(
    epilog=examples(
        "plinth keys init --demo",
        "plinth keys init --name acme --person ada@example.org --person ben@example.org",
        "plinth keys show",
    )
)
def keys() -> None:
    """Manage the root of trust: the keys, roles and expiry of signers.

    The root and the private keys are stored outside the workspace, in $PLINTH_TRUST or ~/.config/plinth/trust. Other
    commands never create keys; they fail if one is missing.
    """


@keys.command()
@click.option("--name", default=None, metavar="NAME", help="Name of the root (default: the workspace's folder).")
@click.option(
    "--person", "people", multiple=True, metavar="PERSON", help="Approver: name or e-mail address; repeatable."
)
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3650), help="Days until expiry.")
@click.option(
    "--demo", is_flag=True, help="Create a demo root without prompts; everything signed under it is labeled as demo."
)
@shared
def init(settings: Settings, name: str | None, people: tuple[str, ...], days: int, demo: bool) -> None:
    """Create a root of trust with one key per role and approver, and pin the root on this machine.

    With --demo, an existing demo root stays unchanged.
    """
    from plinth.compute.context import Context
    from plinth.trust import enrolment, root
    from plinth_registry.audit_log import AUDIT

    workspace = workspace_of(settings)
    if demo and (workspace.trust_folder / root.ROOT_FILE).exists():
        trust = root.Trust.of(workspace)
        if trust.root.demo:
            AUDIT.records(Context(workspace))  # reject a deleted log now, before the harvest
            return output.say(f"{trust.root.title} is already pinned: {trust.folder}")
    everybody = people or ((DEMO_APPROVER,) if demo else ())
    called = name or settings.workspace.absolute().name
    with noted_change(settings, f"init {called}") as asked:
        trust = enrolment.initialise(workspace, called, everybody, demo=demo, days=days)
        asked.subject = f"init {trust.root.title}, SHA-256 {trust.root.digest()}"
    made = f"root of trust {trust.root.name} (the keys whose signatures count), version {trust.root.version}"
    output.say(f"{made}{', demo keys' if demo else ''}: {trust.folder}")
    if not demo:
        output.say(
            "Give root.json to all verifiers. Move each key to the machine of its role, and the root key to a safe."
        )
    return None


@keys.command()
@shared
@json_option
def show(settings: Settings, as_json: bool) -> None:
    """List roles, keys, owners, revocations, and the private keys on this machine."""
    trust = _trust(settings)
    if as_json:
        return output.emit_json(trust.root)
    rows = []
    for role, known in trust.root.roles.items():
        for key_id in known.keys:
            key = trust.root.keys[key_id]
            rows.append([role, key.owner, key_id[:12], _state(trust, role, key_id)])
    output.say(f"{trust.root.title}, until {trust.root.expires}, SHA-256 {trust.root.digest()}")
    needs = {role: known.threshold for role, known in trust.root.roles.items()}
    several = [f"{role} needs {count} keys" for role, count in needs.items() if count > 1]
    output.table(["role", "owner", "key", ""], rows)
    if several:
        output.say("; ".join(several))
    for role, those in trust.root.identities.items():
        for each in those:
            output.say(output.plain_markup(f"{role} by Sigstore: {each.identity} of {each.issuer}"))
    return None


@keys.command()
@click.argument("role")
@click.argument("owner")
@click.option("--source", default=None, metavar="SOURCE", help="Existing key: hsm:ID?label=TOKEN.")
@shared
def new(settings: Settings, role: str, owner: str, source: str | None) -> None:
    """Create a private key for OWNER as ROLE on this machine, and print the public key for a root holder to enroll.

    With --source, only the location of an existing key is recorded. Its PIN comes from PLINTH_PIN_FILE or a prompt.
    """
    from plinth.trust import enrolment

    folder = workspace_of(settings).trust_folder
    if source is not None:
        return output.say(enrolment.note_key(folder, role, owner, source).strip())
    return output.say(enrolment.new_key(folder, role, owner).strip())


@keys.command()
@click.argument("role")
@click.argument("public", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--owner", required=True, metavar="OWNER", help="Person or service that holds the private key.")
@propose_option
@shared
def enrol(settings: Settings, role: str, public: Path, owner: str, propose: Proposing | None) -> None:
    """Allow the key in the PEM file PUBLIC to sign as ROLE. This needs the root key."""
    from plinth.trust import enrolment

    with audited_change(settings, f"enrol {role} {owner}", proposed=bool(propose)):
        tell_change(enrolment.enrol(workspace_of(settings), role, owner, public.read_text(), propose=propose), propose)


@keys.command()
@click.argument("key")
@click.option(
    "--from",
    "since",
    type=click.DateTime(),
    default=None,
    help="Time from which the key is revoked (UTC); default: now.",
)
@propose_option
@shared
def revoke(settings: Settings, key: str, since: datetime | None, propose: Proposing | None) -> None:
    """Revoke KEY (a prefix of its ID) from a date on. Earlier signatures stay valid."""
    from plinth.trust import enrolment

    when = datetime.now(UTC) if since is None else since.replace(tzinfo=UTC)
    with audited_change(settings, f"revoke {key} from {when.isoformat(timespec='seconds')} on", proposed=bool(propose)):
        tell_change(enrolment.revoke(workspace_of(settings), key, when, propose=propose), propose)


@keys.command()
@click.argument("role")
@click.argument("owner")
@shared
def rotate(settings: Settings, role: str, owner: str) -> None:
    """Create a new key for OWNER as ROLE and revoke the old key."""
    from plinth.trust import enrolment

    with audited_change(settings, f"rotate {role} {owner}"):
        tell_change(enrolment.rotate(workspace_of(settings), role, owner))


@keys.command()
@click.argument("role")
@click.argument("count", type=click.IntRange(min=1))
@propose_option
@shared
def threshold(settings: Settings, role: str, count: int, propose: Proposing | None) -> None:
    """Require signatures by COUNT different keys for ROLE."""
    from plinth.trust import enrolment

    with audited_change(settings, f"threshold of {role} {count}", proposed=bool(propose)):
        tell_change(enrolment.threshold(workspace_of(settings), role, count, propose=propose), propose)


@keys.command()
@click.argument("role")
@click.argument("name", metavar="IDENTITY")
@click.option("--issuer", required=True, metavar="URL", help="OpenID Connect issuer of the identity.")
@click.option("--remove", is_flag=True, help="Stop accepting bundles signed by the identity.")
@propose_option
@shared
def identity(settings: Settings, role: str, name: str, issuer: str, remove: bool, propose: Proposing | None) -> None:
    """Accept Sigstore bundles of IDENTITY for ROLE. IDENTITY is an e-mail address or a workflow URI, as in the
    certificate."""
    from plinth.trust import enrolment
    from plinth.trust.dsse import SigstoreIdentity

    given = SigstoreIdentity(identity=name, issuer=issuer)
    change = enrolment.drop if remove else enrolment.name
    said = f"{'no more ' if remove else ''}{name} of {issuer} as {role}"
    with audited_change(settings, f"identity {said}", proposed=bool(propose)):
        tell_change(change(workspace_of(settings), role, given, propose=propose), propose)


@keys.command()
@file_argument
@instead_option
@click.option("--yes", is_flag=True, help="Sign without confirmation.")
@shared
def sign(settings: Settings, file: Path, instead: bool, yes: bool) -> None:
    """Show the changes in the proposal FILE and sign it with this machine's root key."""
    from plinth.trust import versions
    from plinth.trust.root import Trust

    workspace = workspace_of(settings)
    proposal = versions.read(Trust.newest(workspace), file)
    tell(proposal, file)
    if not (yes or click.confirm("Sign it?")):
        return
    with audited_change(settings, f"sign {_named(proposal)}", proposed=True):
        tell(versions.sign(workspace, file, expected=proposal.record, instead=instead), file)


@keys.command()
@file_argument
@shared
def publish(settings: Settings, file: Path) -> None:
    """Publish the proposal FILE once enough root holders have signed it. This needs no key."""
    from plinth.trust import versions

    with noted_change(settings, f"publish {file.name}") as asked:
        trust = versions.publish_proposal(workspace_of(settings), file)
        asked.subject = f"publish {trust.root.title}, SHA-256 {trust.root.digest()}"
    tell_change(trust)


@keys.command()
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3650))
@propose_option
@shared
def renew(settings: Settings, days: int, propose: Proposing | None) -> None:
    """Sign a new version of the root with a later expiry date."""
    from plinth.trust import enrolment

    with audited_change(settings, f"renew for {days} days", proposed=bool(propose)):
        tell_change(enrolment.renew(workspace_of(settings), days, propose=propose), propose)


@keys.command()
@shared
def adopt(settings: Settings) -> None:
    """Seal the artifacts that this workspace published before it had a root of trust. Use it only if you trust them."""
    from plinth.trust.dsse import TRAINER
    from plinth_registry.audit_log import AuditedAction, audited, may_record

    ctx = settings.context()
    with audited(ctx, AuditedAction("adopt", "what was published before the root existed", getpass.getuser())) as asked:
        if not may_record(ctx, "adopt"):
            _trust(settings).signer(TRAINER)  # fails on a missing key before anything is sealed
        asked.subject = f"{ctx.refs.adopt()} references and {ctx.cache.adopt()} step records"
    output.say(f"sealed {asked.subject}")


@keys.command()
@click.argument("root", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Replace the pinned root.")
@shared
def pin(settings: Settings, root: Path, replace: bool) -> None:
    """Trust the file ROOT for this workspace. Obtain it over a channel you trust."""
    from plinth.trust import enrolment

    with noted_change(settings, f"pin {root.name}") as asked:
        trust = enrolment.pin_root(workspace_of(settings), root, replace=replace)
        asked.subject = f"pin {trust.root.title}, SHA-256 {trust.root.digest()}{', replacing' if replace else ''}"
    tell_change(trust)


def workspace_of(settings: Settings) -> Workspace:
    """Return the workspace that a command names, without creating or reading it."""
    from plinth.storage.workspace import Workspace

    return Workspace(settings.workspace)


def audited_change(settings: Settings, change: str, *, proposed: bool = False) -> AbstractContextManager[object]:
    """Return a context manager that records a change of the root in the decision log, whether the change succeeds or is
    refused."""
    from plinth.compute.context import Context
    from plinth.trust.root import Trust
    from plinth_registry.audit_log import AuditedAction, audited

    workspace = workspace_of(settings)
    if proposed and Trust.newest(workspace).root.expired():
        return nullcontext()  # an expired root cannot sign log entries, but its renewal is itself signed
    return audited(
        Context(workspace), AuditedAction("keys", f"{change}{', proposed' if proposed else ''}", getpass.getuser())
    )


@contextmanager
def noted_change(settings: Settings, change: str) -> Iterator[AuditedAction]:
    """Record a change that needs no root key in the decision log. Nothing is recorded if this machine has no root.

    A pin changes only this machine, and a published root is signed by its holders. A log signed under an earlier root
    cannot be continued, and the command reports this.
    """
    from plinth.compute.context import Context
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
        output.say(output.plain_markup(f"not recorded in the decision log: {error}"))


def tell_change(trust: Trust, propose: Proposing | None = None) -> None:
    """Print the current root of trust, or the proposal that was written to a file."""
    from plinth.trust import versions

    if propose is not None:
        return tell(versions.read(trust, propose.file), propose.file)
    return output.say(f"{trust.root.title}, until {trust.root.expires}")


def tell(proposal: RootProposal, file: Path) -> None:
    """Print the changes, signers and missing signatures of a proposed root."""
    from plinth.trust import root

    keys = {**proposal.record.keys, **proposal.before.keys}
    by = sorted({keys[key_id].owner for key_id in (*proposal.signed_old, *proposal.signed_new)})
    rest = f"missing: {proposal.missing}" if proposal.missing else "ready to publish: `plinth keys publish FILE`"
    changes = (f"  {line}" for line in root.changes(proposal.before, proposal.record))
    lines = (f"{file}: {_named(proposal)}", *changes, f"signed by {', '.join(by) or 'no one'}; {rest}")
    output.say(output.plain_markup("\n".join(lines)))


def _named(proposal: RootProposal) -> str:
    return f"version {proposal.record.version} of root {proposal.record.name}, SHA-256 {proposal.record.digest()}"


def _trust(settings: Settings) -> Trust:
    from plinth.trust.root import Trust

    return Trust.of(workspace_of(settings))


def _state(trust: Trust, role: str, key_id: str) -> str:
    key = trust.root.keys[key_id]
    if key.revoked_from:
        return f"revoked from {key.revoked_from} on"
    try:
        return "private key here" if trust.signer(role, key.owner).key_id == key_id else ""
    except SignatureError:
        return ""
