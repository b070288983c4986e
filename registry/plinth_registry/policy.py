"""Gate policy of a release: a log signed by the release owner. The newest version applies.

    policies/<release>/00001.json    DSSE envelope of the policy, signed as `policy`

Trainers, approvers and promoters cannot replace the policy, because no recipe, option or environment variable overrides
it. Verdicts, approvals and release records include the digest of the policy, so a decision under one policy is not
valid under another policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pydantic import SerializeAsAny, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.entry_points import not_here
from plinth.errors import GateError, RecipeError, SignatureError, TrustError
from plinth.evaluation.measurement import GATES, MEASUREMENTS
from plinth.recipe import yaml_lines
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.trust.dsse import POLICY
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import SignedLog
from plinth_registry import audit_log, releases
from plinth_registry.audit_log import POLICY_PREDICATE, AuditedAction, policies
from plinth_registry.gates import by_name
from plinth_registry.gates.settings import (
    GatePolicy,
    absent_gates,
    absent_key,
    gate_policy,
    policy_model,
    release_gates,
)

PREDICATE: Final = POLICY_PREDICATE


class SignedPolicy(Frozen):
    """Verified gate policy with its digest, its signing time and its signers."""

    policy: SerializeAsAny[GatePolicy]
    digest: str
    at: str
    signers: tuple[str, ...]

    @property
    def title(self) -> str:
        """Release, version and digest of the policy as text."""
        return f"{self.policy.release} version {self.policy.version} ({self.digest[:12]})"


def load(path: Path) -> GatePolicy:
    """Load a gate policy from a YAML file.

    Raises:
        RecipeError: the file cannot be read or is invalid; the error lists every problem with its line and key.
    """
    return load_signed(path, policy_model(), "gate policy", "docs/gates.md", _extensions, _absent)


def digest(policy: GatePolicy) -> str:
    """Return the SHA-256 of a policy with its defaults filled in. Comments and the order of keys do not affect the
    digest."""
    return fingerprint.digest(policy.model_dump(mode="json"))


def sign(ctx: Context, policy: GatePolicy, owner: str | None = None) -> SignedPolicy:
    """Sign the next version of a release's policy. Signing the same policy again changes nothing.

    Raises:
        SignatureError: no `policy` key is on this machine, or an earlier version was changed.
        GateError: the policy does not have the next version number.
        RecipeError: the policy names a gate that is not installed, or a gate that no policy may name.
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
            f"version {policy.version} is not the next version of the policy of {policy.release}",
            found=f"{len(earlier)} signed versions",
            expected=f"version: {len(earlier) + 1}",
            remedy="set the next version; `plinth gates show` shows the current version",
        )
    body, about = {"policy": policy.model_dump(mode="json")}, {policy.release: digest(policy)}
    log = policies(policy.release)
    return _signed(log, log.append(ctx, body, about, POLICY, owner, number=policy.version), policy.release)


def history(ctx: Context, release: str) -> tuple[SignedPolicy, ...]:
    """Return all signed versions of a release's policy, oldest first.

    Raises:
        SignatureError: a version is missing, was changed, or was not signed as `policy`. A missing newest version is
            detected if this machine has seen it, or if a head of the release history was signed after it.
    """
    log = policies(release)
    return tuple(_signed(log, record, release) for record in releases.log_records(ctx, log))


def current(ctx: Context, release: str) -> SignedPolicy:
    """Return the current policy of a release, which is the newest signed version.

    Raises:
        GateError: no policy was signed.
        SignatureError: a version was changed, removed, or not signed as `policy`.
    """
    found = history(ctx, release)
    if not found:
        raise GateError(
            f"no signed gate policy for {release}",
            expected="a policy signed by the owner of the release",
            remedy="write a policy (start from the packaged policy `default`) and sign it: `plinth gates sign FILE`",
        )
    return found[-1]


def governing(ctx: Context, release: str) -> str:
    """Return the digest of the current policy of a release. If no policy verifies, nothing can be released, and the
    result is an empty string."""
    try:
        return current(ctx, release).digest
    except TrustError:
        return ""


def unmeasured(policy: GatePolicy, recipe: Recipe) -> tuple[str, ...]:
    """Return the gates that must fail because the recipe produces no evidence for them, each with the recipe key that
    is missing."""
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
    """Return True if a recipe has a value for a dotted key."""
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
        raise SignatureError(f"{where} is about another policy", found=record.subjects, expected=one.digest)
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
    """Return the path of a signed version of the policy."""
    return policies(release).path(ctx, version)


# Differences between two gate policies, key by key: weaker, stronger or other.
#
# Weaker: candidates can pass that were blocked before. The owner sees the list before signing.

Direction = Literal["weaker", "stronger", "changed"]

#: Keys without effect on gates.
_APART: Final = ("release", "version", "description", "without", "extensions")
#: Limits that weaken a gate when raised; a higher minimum n skips more samples.
_WEAKER_UP: Final = re.compile(
    r"(^|\.)(max_\w+|margin|margins\..+|min_(documents|windows|templates|items)|silence_s|"
    r"\w+_(s|rise|bound)|cost_per_million_tokens)$"
)
#: Limits that strengthen a gate when raised.
_STRONGER_UP: Final = re.compile(r"(^|\.)(min_p\..+|min_steps|people|two_person|clean_commit|objectives\.\w+)$")
#: Neither: window, level of a trial, streams and feeds.
_NEUTRAL: Final = re.compile(r"^(.*\.window_days|trial\.(level|least|promote|higher_is_better|feeds.*))$")
#: Choices, weakest first.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "first_release": ("allowed", "refused"),
    "tainted_champion": ("stays", "goes back"),
    "papers": ("unsigned", "signed"),
    "probes.none_decides": ("passes", "fails"),
}
#: Lists in which more entries weaken or strengthen a gate.
_MORE_IS_WEAKER: Final = ("approvals.accepted", "approvals.proxies", "resume.classes", "licences.permitted")
_MORE_IS_STRONGER: Final = ("licences.uses", "cost.amounts", "error_budget.indicators", "error_budget.required")
#: Empty means everyone; more entries weaken the restriction.
_EMPTY_IS_ALL: Final = "approvals.approvers"


class PolicyChange(NamedTuple):
    """Policy key with different values in two policies, and both values as text."""

    key: str
    before: str
    after: str
    direction: Direction


def changes(before: GatePolicy, after: GatePolicy) -> tuple[PolicyChange, ...]:
    """Return every setting that differs between two policies, weaker settings first."""
    found = [*_gates(before, after), *_changed_extensions(before, after), *_settings(before, after)]
    order: tuple[Direction, ...] = ("weaker", "stronger", "changed")
    return tuple(sorted(found, key=lambda one: (order.index(one.direction), one.key)))


def direction(key: str, before: Any, after: Any) -> Direction:
    """Return the direction of a change of a setting: `weaker`, `stronger` or `changed`. A value of None means that
    there is no limit or list."""
    if _NEUTRAL.match(key):
        return "changed"
    if key in _CHOICES:
        return _either(_CHOICES[key].index(after) < _CHOICES[key].index(before))
    if before is None or after is None:
        return _either(after is None)
    if key == _EMPTY_IS_ALL:
        return _either(not after) if not (before and after) else _of_lists(set(before), set(after), more_is_weaker=True)
    if key in (*_MORE_IS_WEAKER, *_MORE_IS_STRONGER):
        return _of_lists(set(before), set(after), more_is_weaker=key in _MORE_IS_WEAKER)
    if _WEAKER_UP.search(key):
        return _either(after > before)
    return _either(after < before) if _STRONGER_UP.search(key) else "changed"


def settings(policy: Frozen, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting of a policy, including defaults, with its dotted key."""
    for name in type(policy).model_fields:
        if not prefix and name in _APART:
            continue
        value, key = getattr(policy, name), f"{prefix}{name}"
        if isinstance(value, Frozen):
            yield from settings(value, f"{key}.")
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


def _settings(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    old, new = dict(settings(before)), dict(settings(after))
    for key in sorted(old.keys() | new.keys()):
        was, now = _value(old, key), _value(new, key)
        if was != now:
            yield PolicyChange(key, _words(was), _words(now), direction(key, was, now))


def _value(known: Mapping[str, Any], key: str) -> Any:
    """Return the value of a policy setting. A slice without its own margin has the common margin."""
    head, own, _ = key.partition(".margins.")
    return known.get(key, known[f"{head}.margin"] if own else None)


def _gates(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    """Yield the gates that only one of the two policies requires."""
    for name in before.without.keys() | after.without.keys():
        old, new = before.without.get(name), after.without.get(name)
        if (old is None) != (new is None):
            was, now = (f"not required: {one}" if one else "required" for one in (old, new))
            yield PolicyChange(f"gate {name}", was, now, _either(old is None))


def _changed_extensions(before: GatePolicy, after: GatePolicy) -> Iterator[PolicyChange]:
    for name in before.extensions.keys() | after.extensions.keys():
        old, new = before.extensions.get(name), after.extensions.get(name)
        if old != new:
            known: Direction = "changed" if old is not None and new is not None else _either(new is None)
            yield PolicyChange(f"extension {name}", _words(old), _words(new), known)


def _of_lists(before: set[Any], after: set[Any], *, more_is_weaker: bool) -> Direction:
    if not (before < after or after < before):
        return "changed"
    return _either((before < after) == more_is_weaker)


def _either(weaker: bool) -> Direction:
    return "weaker" if weaker else "stronger"


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


# YAML files to be signed, parsed into records; every problem is reported with line and key.

M = TypeVar("M", bound=Frozen)


def load_signed(
    path: Path,
    record: type[M],
    what: str,
    page: str,
    more: Callable[[M], Iterable[Exception]] = lambda _: (),
    unknown: Callable[[str], str] = lambda _: "",
) -> M:
    """Read a YAML file and return its record, which the caller then signs.

    Args:
        what: kind of file, for errors.
        page: document that describes the keys of the file.
        more: function that finds problems that the record itself cannot find.
        unknown: function that explains an unknown key, or returns an empty string.

    Raises:
        RecipeError: the file cannot be read or is invalid; the error lists every problem with its line and key.
    """
    lined = yaml_lines.read(path, str(path))
    problems = [str(problem) for problem in lined.problems]
    if not problems:
        try:
            found = record.model_validate(lined.data)
        except ValidationError as error:
            problems = [_problem(lined, path, detail, unknown) for detail in error.errors(include_url=False)]
        else:
            problems = [str(error) for error in more(found)]
    if problems:
        raise RecipeError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in the {what} {path}\n"
            + "\n".join(f"  {one}" for one in problems),
            remedy=f"correct the lines listed above; {page} describes every key",
        )
    return found


def _problem(lined: yaml_lines.Lined, path: Path, detail: Any, unknown: Callable[[str], str]) -> str:
    key = tuple(step for step in detail["loc"] if step != "[key]")
    mark = lined.mark(key, yaml_lines.Position(str(path), 1))
    dotted = yaml_lines.dotted(key)
    why = unknown(dotted) if detail["type"] == "extra_forbidden" else ""
    return f"{mark}  {dotted}: {why or detail['msg']}"
