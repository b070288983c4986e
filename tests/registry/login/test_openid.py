"""People log in at an OpenID Connect provider; Apache with the settings of infra/oidc tells MLflow who they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

from plinth_registry import api, approval
from plinth_registry.candidate import Candidate
from plinth_registry.mlflow import settings
from tests.registry.login import openid
from tests.registry.login.conftest import ADA, BEN, EVE, Served, registered
from tests.registry.login.openid import Provider

pytestmark = [pytest.mark.slow, pytest.mark.needs("mod_auth_openidc")]
PATH = "/ajax-api/2.0/mlflow/model-versions/set-tag"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with openid.running() as found:
        yield found


@pytest.fixture(scope="module")
def front(login_server: Served, provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    secret = (login_server.trust / settings.FOLDER / settings.SECRET).read_text()
    with openid.apache(tmp_path_factory.mktemp("apache"), provider, login_server.uri, secret) as origin:
        yield origin


def logged_in(front: str, provider: Provider, person: str) -> tuple[requests.Session, str]:
    """A session in which a person has gone to the provider, and the page that it showed in the end."""
    provider.person = person
    session = requests.Session()
    return session, session.get(front, timeout=120).text


def write(
    session: requests.Session, front: str, candidate: Candidate, tag: str, value: str, **headers: str
) -> requests.Response:
    """Send the request that a page of MLflow sends from a browser when a tag is set."""
    body = {"name": candidate.model, "version": candidate.version, "key": tag, "value": value}
    sent = {"Origin": front} | headers
    return session.post(f"{front}{PATH}", json=body, headers=sent, timeout=120, allow_redirects=False)


@pytest.mark.exhaustive
def test_two_people_who_logged_in_release_and_one_does_not(
    served: Served, front: str, provider: Provider, make_line: Any
) -> None:
    line = make_line(people=2, two_person=True)
    candidate = registered(served, line, requested_by="carl@example.org")
    for person, tag, released in ((ADA, "approval", 0), (ADA, "approval.2", 0), (BEN, "approval.2", 1)):
        session, page = logged_in(front, provider, person)
        assert "<title>MLflow" in page
        for key, value in ((tag, "approved"), (f"{tag}.reason", "read it")):
            answer = write(session, front, candidate, key, value, **{"X-Forwarded-Email": EVE})
            assert answer.status_code == 200, answer.text
        assert len(api.promote_if_approved(served.ctx, line.recipe)) == released
    assert {one.by for one in approval.login_decisions(served.ctx, candidate)} == {ADA, BEN}


@pytest.mark.exhaustive
def test_who_has_not_logged_in_is_nobody(served: Served, front: str, provider: Provider, candidate: Candidate) -> None:
    unknown, with_a_password = requests.Session(), requests.Session()
    with_a_password.auth = (ADA, served.passwords[ADA])
    (stranger, _), (ada, _) = (logged_in(front, provider, one) for one in ("stranger@example.org", ADA))
    provider.key = rsa.generate_private_key(65537, 2048)
    try:
        forged, page = logged_in(front, provider, ADA)
    finally:
        provider.key = provider.published
    assert "<title>MLflow" not in page
    for session, headers, status in (
        (unknown, {"X-Forwarded-Email": ADA}, 302),
        (with_a_password, {}, 302),
        (forged, {}, 302),
        (stranger, {}, 403),
        (ada, {"Origin": "https://evil.example.org"}, 403),
    ):
        assert write(session, front, candidate, "approval", "approved", **headers).status_code == status
    assert approval.login_decisions(served.ctx, candidate) == ()
