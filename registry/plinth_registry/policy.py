"""The gate policy that governs a release: a log signed by its owner; the newest version governs.

    policies/<release>/00001.json    DSSE envelope of the policy, signed as `policy`

Nobody who trains, approves or promotes can give another: no recipe, option or environment names one. The digest of the
policy stands in verdicts, approvals and release records, so that what was decided under one is not read under another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import SerializeAsAny, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.entry_points import not_here
from plinth.errors import GateError, RecipeError, SignatureError, TrustError
from plinth.evaluation.gate import GATES
from plinth.evaluation.measurement import MEASUREMENTS
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.trust.authority import POLICY
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import SignedLog
from plinth_registry import audit_log, releases, signed_file
from plinth_registry.audit_log import AuditedAction
from plinth_registry.gates.all_gates import by_name
from plinth_registry.gates.settings import (
    GatePolicy,
    absent_gates,
    absent_key,
    gate_policy,
    policy_model,
    release_gates,
)
from plinth_registry.signed_log import POLICY_PREDICATE, policies

PREDICATE: Final = POLICY_PREDICATE


class SignedPolicy(Frozen):
    """A policy that verifies, its identity, when it was signed and by whom."""

    policy: SerializeAsAny[GatePolicy]
    digest: str
    at: str
    signers: tuple[str, ...]

    @property
    def title(self) -> str:
        """Release, version and digest for people."""
        return f"{self.policy.release} version {self.policy.version} ({self.digest[:12]})"


def load(path: Path) -> GatePolicy:
    """The policy in a YAML file.

    Raises:
        RecipeError: it cannot be read or is wrong; lists every problem with its line and key.
    """
    return signed_file.load(path, policy_model(), "gate policy", "docs/gates.md", _extensions, _absent)


def digest(policy: GatePolicy) -> str:
    """SHA-256 of a policy with its defaults filled in: comments and the order of keys do not count."""
    return fingerprint.digest(policy.model_dump(mode="json"))


def sign(ctx: Context, policy: GatePolicy, owner: str | None = None) -> SignedPolicy:
    """Sign the next version of a release's policy; the same one signed again changes nothing.

    Raises:
        SignatureError: no key as `policy` on this machine, or an earlier version was changed.
        GateError: not the next version.
        RecipeError: it names a gate that is not installed, or is not asked by name.
    """
    subject = f"{policy.release} version {policy.version} {digest(policy)[:12]}"
    asked = AuditedAction("policy", subject, owner or "", policy.description, owner)
    with audit_log.audited(ctx, asked, once=True):
        return _sign(ctx, policy, owner)


def _sign(ctx: Context, policy: GatePolicy, owner: str | None) -> SignedPolicy:
    for error in _extensions(policy):
        raise error
    earlier = history(ctx, policy.release)
    if earlier and earlier[-1].digest == digest(policy):
        return earlier[-1]
    if policy.version != len(earlier) + 1:
        raise GateError(
            f"version {policy.version} is not the next policy of {policy.release}",
            found=f"{len(earlier)} signed versions",
            expected=f"version: {len(earlier) + 1}",
            remedy="`plinth gates show` prints the one that governs; number yours after it",
        )
    body, about = {"policy": policy.model_dump(mode="json")}, {policy.release: digest(policy)}
    log = policies(policy.release)
    return _signed(log, log.append(ctx, body, about, POLICY, owner, number=policy.version), policy.release)


def history(ctx: Context, release: str) -> tuple[SignedPolicy, ...]:
    """Every signed version, oldest first.

    Raises:
        SignatureError: one is missing, was changed, or was not signed as `policy`; the newest too, where this machine
            has seen it or a head of the release history was signed since.
    """
    log = policies(release)
    return tuple(_signed(log, record, release) for record in releases.log_records(ctx, log))


def current(ctx: Context, release: str) -> SignedPolicy:
    """The policy that governs a release: the newest signed version.

    Raises:
        GateError: none was signed.
        SignatureError: one was changed or removed, or not signed as `policy`.
    """
    found = history(ctx, release)
    if not found:
        raise GateError(
            f"no gate policy is signed for {release}",
            expected="one signed by the owner of the release",
            remedy="write one (the packaged `default` is a start) and sign it: `plinth gates sign FILE`",
        )
    return found[-1]


def governing(ctx: Context, release: str) -> str:
    """Digest of the policy that governs a release now; empty where none holds, and then nothing is released."""
    try:
        return current(ctx, release).digest
    except TrustError:
        return ""


def unmeasured(policy: GatePolicy, recipe: Recipe) -> tuple[str, ...]:
    """Gates that must fail because the recipe measures nothing for them, each with the key that is absent."""
    gates = {name: gate for name, gate in release_gates().items() if name not in policy.without}
    made = {name: MEASUREMENTS[name] for gate in gates.values() for name in gate.counted if name in MEASUREMENTS}
    lacking = {name: one.key for name, one in made.items() if one.key and not one.stages(recipe)}
    keys = (
        f"{name}: needs {key}"
        for name, gate in gates.items()
        for key in (
            *(lacking[one] for one in gate.counted if one in lacking),
            *(key for key in gate.keys if not _is_set(recipe, key)),
        )
    )
    gone = absent_gates().items()
    return (*keys, *(f"{name}: needs the package {package}" for name, package in gone if name not in policy.without))


def _is_set(recipe: Recipe, key: str) -> bool:
    """True if a recipe has a value at a dotted key."""
    found: Any = recipe.model_dump()
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found is not None


def _signed(log: SignedLog, record: LogRecord, release: str) -> SignedPolicy:
    where = f"{log.name}/{record.number:05d}.json"
    try:
        policy = gate_policy(record.body["policy"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{where} is not a gate policy", found=error) from error
    if (policy.release, policy.version) != (release, record.number):
        found = f"{policy.release} version {policy.version}"
        raise log.broken(where, found, f"{release} version {record.number}")
    stated = fingerprint.digest(record.body["policy"])  # with the defaults of the installation that signed it
    one = SignedPolicy(policy=policy, digest=stated, at=record.at, signers=record.owners)
    if record.subjects != {policy.release: one.digest}:
        raise SignatureError(f"{where} speaks of another policy", found=record.subjects, expected=one.digest)
    return one


def _absent(key: str) -> str:
    package = absent_key(key)
    return not_here(f"`{key}`", package).brief if package else ""


def _extensions(policy: GatePolicy) -> Iterator[RecipeError]:
    for name, raw in policy.extensions.items():
        try:
            by_name(name)
            GATES.parameters(name, raw, f"extensions.{name}")
        except RecipeError as error:
            yield error


def path_of(ctx: Context, release: str, version: int) -> Path:
    """The file of a signed version."""
    return policies(release).path(ctx, version)
