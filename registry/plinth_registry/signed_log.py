"""The signed logs of a workspace, each with who may sign it. The head of the releases names the newest of each.

Builds read `plinth.corpus.exclusions`: that log's form is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from plinth.compute.context import Context
from plinth.corpus.exclusions import EXCLUSIONS
from plinth.trust.authority import APPROVER, COMPLIANCE, POLICY, PROMOTER, ROLES
from plinth.trust.signed_log import SignedLog

#: Movements of releases (`releases`).
RELEASES: Final = SignedLog(
    "releases", (PROMOTER,), kind="urn:plinth:release:v1", title="release records", flat=True, readable=True
)
#: Marks of unfit data and models, and their lifting.
MARKS: Final = SignedLog("taint", (COMPLIANCE,))
#: What consumers must learn.
FEED: Final = SignedLog("feed", (COMPLIANCE, PROMOTER))
#: Services and models made of releases.
CONSUMERS: Final = SignedLog("consumers", (COMPLIANCE, PROMOTER))
#: Tags of approvals, by logged-in people (`login.log`).
LOGINS: Final = SignedLog("logins", (APPROVER,))
#: Decisions and refused ones (`audit_log`).
AUDIT: Final = SignedLog("audit", tuple(ROLES), keeps_revoked=True)
#: What providers state of themselves and their data (`papers.provider`).
PROVIDERS: Final = SignedLog("providers", (COMPLIANCE,))
#: Incidents: opened, noted, closed (`incidents`).
INCIDENTS: Final = SignedLog("incidents", (COMPLIANCE, PROMOTER))
#: Waivers of lines of checklists.
CHECK_WAIVERS: Final = SignedLog("check-waivers", (POLICY,))

LOGS: Final = (MARKS, FEED, CONSUMERS, LOGINS, AUDIT, PROVIDERS, EXCLUSIONS, INCIDENTS, CHECK_WAIVERS)
POLICY_PREDICATE: Final = "urn:plinth:gate-policy:v1"


def policies(release: str) -> SignedLog:
    """Versions of the gate policy of a release (`policy`)."""
    name, title = f"policies/{release}", f"policies of {release}"
    return SignedLog(name, (POLICY,), kind=POLICY_PREDICATE, title=title, flat=True)


def beside_releases(ctx: Context) -> Iterator[SignedLog]:
    """Every log whose newest record the head of the releases names."""
    yield from LOGS
    for folder in sorted(ctx.workspace.policies.glob("*/")):
        yield policies(folder.name)
