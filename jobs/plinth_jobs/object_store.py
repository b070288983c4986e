"""Process of the trial installation's S3 server: `python -m plinth_jobs.object_store FOLDER PORT BUCKET`.

The process runs moto's server over HTTPS, with rules like those of a real server. Every request must be signed by a
known account and permitted by the account's policy. Conditional writes are atomic. The bucket encrypts by default.
Objects are in memory and are lost when the process ends. Unlike Amazon S3, moto does not evaluate policy conditions
(`s3:prefix` of lists).

The policies come from `infra/s3`. The policy files name the bucket `plinth`, its prefix `workspace` and the backup
bucket `plinth-backups`; `policy` replaces these names.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from plinth.errors import MissingError
from plinth.storage.atomic import write_bytes

INFRA: Final = Path(__file__).resolve().parents[2] / "infra"
BUCKET, PREFIX = "plinth", "workspace"


def roles() -> tuple[str, ...]:
    """Return the names of the roles that have an IAM policy."""
    return tuple(sorted(path.stem for path in (infra("s3") / "policies").glob("*.json")))


def policy(role: str, bucket: str = BUCKET, prefix: str = PREFIX) -> dict[str, Any]:
    """Return the IAM policy of a role for a workspace at `s3://BUCKET/PREFIX`.

    Raises:
        MissingError: no policy has the role's name.
    """
    path = infra("s3") / "policies" / f"{role}.json"
    if role not in roles():
        raise MissingError(f"no access policy {role!r}", expected=", ".join(roles()))
    text = path.read_text().replace(f":::{BUCKET}", f":::{bucket}").replace(f"{PREFIX}/", f"{prefix}/")
    found: dict[str, Any] = json.loads(text)
    return found


def backup_bucket(bucket: str = BUCKET) -> str:
    """Return the name that the policies give to the backup bucket of a workspace's bucket."""
    return f"{bucket}-backups"


def encryption() -> dict[str, Any]:
    """Return the default encryption of a bucket, in the format of `aws s3api put-bucket-encryption`."""
    found: dict[str, Any] = json.loads((infra("s3") / "encryption.json").read_text())
    return found


def encrypted(uri: str) -> str:
    """Return the default encryption of the bucket in an `s3://` URI, or an empty string if the bucket is not encrypted.

    This needs the permission `s3:GetEncryptionConfiguration`, which the role `backup` has.

    Raises:
        StorageError: the bucket cannot be queried.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from plinth.errors import StorageError
    from plinth.storage.objects import client

    bucket = uri.removeprefix("s3://").partition("/")[0]
    try:
        answer = client().get_bucket_encryption(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ServerSideEncryptionConfigurationNotFoundError":
            return ""
        raise StorageError(f"cannot query the encryption of {bucket}", found=error) from error
    except BotoCoreError as error:
        raise StorageError(f"cannot query the encryption of {bucket}", found=error) from error
    rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
    return str(rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]) if rules else ""


def infra(name: str) -> Path:
    """Return the path of a folder in `infra/`, which exists in a checkout but not in an installed package.

    Raises:
        MissingError: this is not a checkout.
    """
    path = INFRA / name
    if not path.is_dir():
        raise MissingError(f"infra/{name} not found", remedy="run this command in a checkout of the repository")
    return path


#: File with the access key and secret of each role. It is written once the server is ready.
ACCOUNTS: Final = "accounts.json"
ADMINISTRATOR: Final = "administrator"
EVERYTHING: Final = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


def atomic_conditions(app: WsgiApp) -> WsgiApp:
    """Wrap the server's app so that conditional writes run one at a time, because S3 compares and writes in one atomic
    step."""
    lock = threading.Lock()

    def serialised(environment: dict[str, Any], respond: Any) -> Iterable[bytes]:
        conditions = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environment.keys()
        conditional = conditions and environment["REQUEST_METHOD"] == "PUT"
        with lock if conditional else nullcontext():
            return app(environment, respond)

    return serialised


def prepare(endpoint: str, authority: Path | None, bucket: str, prefix: str) -> dict[str, dict[str, str]]:
    """Create a bucket that encrypts by default and an account for each role, and return the accounts' keys.

    After this call, the server authenticates and authorizes every request in this process.
    """
    import boto3
    from moto import settings

    session = boto3.Session("test", "test", region_name="us-east-1")
    place: dict[str, Any] = {"endpoint_url": endpoint, "verify": str(authority) if authority else None}
    s3, iam = session.client("s3", **place), session.client("iam", **place)
    for name in (bucket, backup_bucket(bucket)):
        s3.create_bucket(Bucket=name)
        s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration=encryption())
    found = {}
    policies = {role: policy(role, bucket, prefix) for role in roles()}
    for role, allowed in ((ADMINISTRATOR, EVERYTHING), *policies.items()):
        iam.create_user(UserName=role)
        iam.put_user_policy(UserName=role, PolicyName=role, PolicyDocument=json.dumps(allowed))
        key = iam.create_access_key(UserName=role)["AccessKey"]
        found[role] = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    return found


def without_controls(app: WsgiApp) -> WsgiApp:
    """Wrap the server's app to disable moto's own pages, which can reset the server or disable its authorization."""

    def guarded(environment: dict[str, Any], respond: Any) -> Iterable[bytes]:
        if environment["PATH_INFO"].startswith("/moto-api"):
            respond("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"no pages of moto here\n"]
        return app(environment, respond)

    return guarded


def serve(folder: Path, port: int, bucket: str) -> None:
    """Serve S3 on a loopback port until a signal arrives."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    app = without_controls(atomic_conditions(DomainDispatcherApplication(create_backend_app)))
    certificate = (str(folder / "server.pem"), str(folder / "server.key"))
    server = make_server(
        "127.0.0.1", port, app, threaded=True, request_handler=MotoRequestHandler, ssl_context=certificate
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    accounts = prepare(f"https://localhost:{port}", folder / "authority.pem", bucket, PREFIX)
    write_bytes(folder / ACCOUNTS, json.dumps(accounts).encode(), mode=0o600)
    thread.join()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
