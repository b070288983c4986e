"""Each role does its work on a bucket and is refused what it may not, by a server that evaluates its policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from plinth.errors import MissingError, StorageError, WorkspaceError
from plinth.storage.objects import S3Objects
from plinth_assets import catalog
from plinth_jobs import object_store
from plinth_jobs.recipes import load
from tests.jobs.conftest import RECIPE
from tests.s3_server import Bucket, serving

pytestmark = pytest.mark.slow

WORKSPACE = "s3://plinth/workspace"
#: Permissions of a role: read, add and delete below these places, which are keys of PLACES.
PLACES = {
    "content": "s3://plinth/workspace/store/files/md5/ab/cd.json",
    "staging": "s3://plinth/workspace/store/staging/a.json",
    "record": "s3://plinth/workspace/records/ab/abcd.json",
    "manifest": "s3://plinth/workspace/manifests/abcd.json",
    "corpus": "s3://plinth/workspace/refs/web/documents.json",
    "mixture": "s3://plinth/workspace/refs/mixture.json",
    "run": "s3://plinth/workspace/refs/run.json",
    "probe": "s3://plinth/workspace/refs/memorisation/canaries.json",
    "release": "s3://plinth/workspace/refs/release.json",
    "exclusion": "s3://plinth/workspace/exclusions/00001.json",
    "job": "s3://plinth/workspace/runs/r/head.json",
    "source": "s3://plinth/workspace/input/a.json",
    "pin": "s3://plinth/workspace/pins/abcd.json",
    "hold": "s3://plinth/workspace/retention/holds/a.json",
    "checkpoint": "s3://plinth/runs/r/a.json",
    "artifact": "s3://plinth/mlflow/0/a.json",
    "backup": "s3://plinth-backups/a.json",
}
INSIDE = set(PLACES) - {"checkpoint", "artifact", "backup"}
CONTENT = {"content", "record", "manifest"}
READS = {
    "curator": INSIDE,
    "trainer": INSIDE | {"checkpoint"},
    "promoter": INSIDE | {"checkpoint", "artifact"},
    "compliance": INSIDE,
    "reader": INSIDE,
    "backup": INSIDE | {"artifact", "backup"},
    "retention": INSIDE,
}
ADDS = {
    "curator": CONTENT | {"staging", "corpus", "mixture"},
    "trainer": CONTENT | {"staging", "run", "probe", "checkpoint", "hold", "job"},
    "promoter": CONTENT | {"staging", "release", "artifact", "hold"},
    "compliance": {"content", "staging", "manifest", "exclusion"},
    "reader": set(),
    "backup": {"backup"},
    "retention": {"pin", "hold"},
}
DELETES = {
    "curator": {"staging"},
    "trainer": {"staging", "checkpoint", "job"},
    "promoter": set(),
    "compliance": {"content", "staging"},
    "reader": set(),
    "backup": set(),
    "retention": CONTENT | {"staging", "pin"},
}


@pytest.fixture(scope="module")
def accounts() -> Iterator[tuple[Bucket, dict[str, dict[str, str]]]]:
    """A server that asks every request for an account and its policy; keys of each role."""
    with serving() as bucket:
        yield bucket, object_store.prepare(f"http://{bucket.endpoint}", None, object_store.BUCKET, object_store.PREFIX)


def acting(monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]) -> None:
    for name, value in keys.items():
        monkeypatch.setenv(name, value)


def parted(uri: str) -> tuple[S3Objects, str]:
    folder, _, name = uri.rpartition("/")
    return S3Objects(folder), name


def permitted(action: Callable[[], object]) -> bool:
    """Return True if a request is answered; anything but a denial is a failure of the test."""
    try:
        action()
    except WorkspaceError as error:
        if "AccessDenied" not in str(error.found):
            raise
        return False
    return True


@pytest.mark.parametrize("role", READS)
def test_a_role_may_do_its_work_and_nothing_else(accounts, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    acting(monkeypatch, accounts[1][object_store.ADMINISTRATOR])
    for uri in PLACES.values():
        objects, name = parted(uri)
        objects.remove(name)
        assert objects.put(name, b"{}", None)
    acting(monkeypatch, accounts[1][role])
    found: dict[str, set[str]] = {"read": set(), "add": set(), "delete": set()}
    for place, uri in PLACES.items():
        objects, name = parted(uri)
        new = name if "/refs" in uri else f"new-{name}"
        asked = {
            "read": partial(objects.get, name),
            "add": partial(objects.put, new, b"{}", None),
            "delete": partial(objects.remove, name),
        }
        for kind, action in asked.items():
            if permitted(action):
                found[kind].add(place)
    assert found == {"read": READS[role], "add": ADDS[role], "delete": DELETES[role]}


def test_a_denied_write_changes_nothing_and_a_wrong_key_is_nobody(accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from botocore.exceptions import ClientError

    bucket, keys = accounts
    acting(monkeypatch, keys[object_store.ADMINISTRATOR])
    objects = S3Objects(f"{WORKSPACE}/refs/prose")
    objects.remove("documents.json")
    assert objects.put("documents.json", b"[1]", None)
    acting(monkeypatch, keys["reader"])
    found = objects.get("documents.json")
    assert found is not None
    with pytest.raises(WorkspaceError, match="cannot write"):
        objects.put("documents.json", b"[2]", found.tag)
    again = objects.get("documents.json")
    assert again is not None
    assert (again.data, again.tag) == (found.data, found.tag)
    for key, secret in (
        (keys["reader"]["AWS_ACCESS_KEY_ID"], "guessed"),
        ("AKIAUNKNOWN", keys["reader"]["AWS_SECRET_ACCESS_KEY"]),
    ):
        account = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        client = boto3.client("s3", endpoint_url=f"http://{bucket.endpoint}", **account)
        with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|InvalidAccessKeyId"):
            client.get_object(Bucket="plinth", Key="workspace/refs/prose/documents.json")


def test_the_encryption_of_a_bucket_is_read(accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    _, keys = accounts
    acting(monkeypatch, keys["backup"])
    assert object_store.encrypted(WORKSPACE) == "AES256"
    acting(monkeypatch, {"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN", "AWS_SECRET_ACCESS_KEY": "guessed"})
    with pytest.raises(StorageError, match="cannot query"):  # could not tell: no pass
        object_store.encrypted(WORKSPACE)
    acting(monkeypatch, keys[object_store.ADMINISTRATOR])
    from plinth.storage.objects import client

    client().create_bucket(Bucket="plain")
    client().delete_bucket_encryption(Bucket="plain")
    assert object_store.encrypted("s3://plain/x") == ""


def allowed(policy: dict[str, object], action: str, name: str) -> bool:
    """Return True if a policy permits an action below the prefix, read here without the server."""
    from fnmatch import fnmatchcase

    resource, found = f"arn:aws:s3:::plinth/workspace/{name}", False
    for each in policy["Statement"]:  # type: ignore[attr-defined]
        if action in each["Action"] and any(fnmatchcase(resource, pattern) for pattern in each["Resource"]):
            if each["Effect"] == "Deny":
                return False
            found = True
    return found


def test_every_asset_is_published_by_one_role() -> None:
    """A new stage after the mixture must be in the policy of the role that publishes it."""
    recipe = load(RECIPE)
    publishers = {role: object_store.policy(role) for role in ("curator", "trainer", "promoter")}
    trained = {
        stage.asset
        for make in (catalog.training.stages, catalog.measurements.stages, catalog.candidate.page_stages)
        for stage in make(recipe)
    }
    promoted = {stage.asset for stage in catalog.candidate.release_stages(recipe)}
    for stage in catalog.stages(recipe):
        ref = f"refs/{stage.asset}.json"
        found = {role for role, policy in publishers.items() if allowed(policy, "s3:PutObject", ref)}
        wanted = "promoter" if stage.asset in promoted else "trainer" if stage.asset in trained else "curator"
        assert found == {wanted}, stage.asset


def test_policies_of_another_bucket_and_prefix() -> None:
    found = json.dumps(object_store.policy("backup", "corp", "teams/text"))
    assert "arn:aws:s3:::corp/teams/text/*" in found
    assert "arn:aws:s3:::corp-backups/*" in found
    assert '"teams/text/*"' in found
    assert "plinth" not in found
    with pytest.raises(MissingError, match="no access policy 'owner'"):
        object_store.policy("owner")
