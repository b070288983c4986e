"""Lines about releases: what is asked of one, where it comes from, what can be returned to, what stops it now."""

from __future__ import annotations

from plinth.errors import GateError, LineageError, MissingError, TrustError
from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed, undetermined, warned
from plinth.operation.checklists.scope import CheckScope
from plinth_registry import consumers, incidents, policy, released, releases, taint

#: The assets of a run, the last first: from which the walk to the sources begins.
_LAST = ("candidate", "evaluation", "run", "mixture", "funnel")


def policy_signed(scope: CheckScope) -> CheckAnswer:
    """A signed policy says what a release must pass."""
    if scope.recipe is None or scope.recipe.release is None:
        return not_applicable("the recipe releases nothing")
    try:
        found = policy.current(scope.ctx, scope.recipe.release.name)
    except GateError as error:
        return failed(error.what)
    return passed(f"{found.title}, signed {found.at} by {', '.join(found.signers)}")


def policy_measured(scope: CheckScope) -> CheckAnswer:
    """The recipe has evidence for every gate that the policy asks."""
    if scope.recipe is None or scope.recipe.release is None:
        return not_applicable("the recipe releases nothing")
    try:
        found = policy.current(scope.ctx, scope.recipe.release.name)
    except TrustError as error:  # the line `gate-policy` fails of it
        return undetermined(error.what)
    absent = policy.unmeasured(found.policy, scope.recipe)
    return failed("; ".join(absent)) if absent else passed(f"{len(found.policy.asked)} gates")


def lineage_complete(scope: CheckScope) -> CheckAnswer:
    """From the last published asset every manifest down to the raw sources is there and unchanged."""
    from plinth.provenance import statements

    last = next((asset for asset in _LAST if scope.ctx.refs.ref(asset) is not None), None)
    if last is None:
        return undetermined(f"none of {', '.join(_LAST)} is published")
    try:
        found = statements.chain(scope.ctx.refs, scope.ctx.refs.current(last))
        found.require_sources()
    except (LineageError, MissingError) as error:
        return failed(f"{last}: {error.what}")
    return passed(f"{last}: {len(found.links)} manifests down to {len(found.sources)} sources")


def champion_holds(scope: CheckScope) -> CheckAnswer:
    """The champion verifies, is not marked and was not taken back."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    released.verify_release(scope.ctx, name, champion)
    return passed(f"{name} version {champion}, its records and model; `plinth verify champion` reads all behind it")


def way_back(scope: CheckScope) -> CheckAnswer:
    """There is a version to return to."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    good = released.last_good(scope.ctx, name, releases.history(scope.ctx, name).standing)
    return passed(f"{name} version {good}") if good else warned(f"none before {name} version {champion}")


def consumers_known(scope: CheckScope) -> CheckAnswer:
    """Whoever uses the champion is enrolled, with an owner."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    found = consumers.concerned(scope.ctx, (), {name})
    words = ", ".join(f"{one.name} ({one.owner})" for one in found)
    return passed(words) if found else warned(f"no consumer of {name} is enrolled, so no one is notified of a rollback")


def nothing_marked(scope: CheckScope) -> CheckAnswer:
    """No mark of unfit data or models stands."""
    found = taint.records(scope.ctx)
    words = "; ".join(f"{one.kind} {one.target[:16]} by {one.by}: {one.reason}" for one in found)
    return warned(words) if found else passed("none")


def no_incident(scope: CheckScope) -> CheckAnswer:
    """No incident is open."""
    found = incidents.open_ones(scope.ctx)
    words = "; ".join(f"incident {one.number} since {one.opened}: {one.title}" for one in found)
    return failed(f"promotions are frozen by {words}") if found else passed("none is open")


def _champion(scope: CheckScope) -> tuple[str, str | None]:
    if scope.recipe is None or scope.recipe.release is None:
        return "", None
    name = scope.recipe.release.name
    return name, releases.history(scope.ctx, name).standing.champion


CHECKS = (
    Check(
        "gate-policy", "a signed policy says what a release must pass", "release",
        ("preproduction", "readiness", "security"), "`plinth gates sign FILE` (docs/gates.md)", policy_signed,
    ),
    Check(
        "gates-measured", "the recipe measures what the policy asks", "evaluation", ("preproduction",),
        "add what is named to the recipe, or agree another policy with its owner", policy_measured,
    ),
    Check(
        "lineage", "everything published is traced to raw sources", "data", ("preproduction", "readiness"),
        "`plinth verify ASSET` names the first broken link; run the pipeline again", lineage_complete,
    ),
    Check(
        "champion", "the champion verifies and is not marked", "release", ("readiness", "incident"),
        "`plinth release rollback --by PERSON --reason TEXT`", champion_holds,
    ),
    Check(
        "way-back", "there is a good version to return to", "release", ("readiness", "incident"),
        "release a second version; until then only `plinth release rollback --withdraw --by PERSON --reason TEXT` "
        "takes back a bad one",
        way_back,
    ),
    Check(
        "consumers", "every user of the champion is enrolled with an owner", "release", ("readiness", "incident"),
        "`plinth release consumer add NAME --owner PERSON --model RELEASE`", consumers_known,
    ),
    Check(
        "marks", "no mark of unfit data or models stands", "compliance", ("incident",),
        "`plinth release impact TARGET` lists what came of it", nothing_marked,
    ),
    Check(
        "no-incident", "no incident is open", "on-call", ("preproduction", "readiness"),
        "`plinth ops incident show`; `plinth ops incident close --reason TEXT`", no_incident,
    ),
)  # fmt: skip
