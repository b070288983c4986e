"""Access to a bucket by role, as the files of `infra/s3` state it, for any bucket and prefix.

The files are written for the bucket `plinth`, its prefix `workspace` and the bucket of backups `plinth-backups`;
`policy` puts others in their place. Nothing here sends a request but `encrypted`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from plinth.errors import MissingError

INFRA: Final = Path(__file__).resolve().parents[3] / "infra"
BUCKET, PREFIX = "plinth", "workspace"


def roles() -> tuple[str, ...]:
    """Roles that have a policy."""
    return tuple(sorted(path.stem for path in (infra("s3") / "policies").glob("*.json")))


def policy(role: str, bucket: str = BUCKET, prefix: str = PREFIX) -> dict[str, Any]:
    """The IAM policy of a role for a workspace at `s3://BUCKET/PREFIX`.

    Raises:
        MissingError: no policy of that name.
    """
    path = infra("s3") / "policies" / f"{role}.json"
    if role not in roles():
        raise MissingError(f"no access policy {role!r}", expected=", ".join(roles()))
    text = path.read_text().replace(f":::{BUCKET}", f":::{bucket}").replace(f"{PREFIX}/", f"{prefix}/")
    found: dict[str, Any] = json.loads(text)
    return found


def backup_bucket(bucket: str = BUCKET) -> str:
    """The bucket of backups of a workspace's bucket, as the policies name it."""
    return f"{bucket}-backups"


def encryption() -> dict[str, Any]:
    """The default encryption of a bucket, as `aws s3api put-bucket-encryption` takes it."""
    found: dict[str, Any] = json.loads((infra("s3") / "encryption.json").read_text())
    return found


def encrypted(uri: str) -> str:
    """How the bucket of an `s3://` URI encrypts what is written to it by default; empty where it does not.

    Needs `s3:GetEncryptionConfiguration`, which the role `backup` has.

    Raises:
        StorageError: the bucket cannot be asked.
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
        raise StorageError(f"cannot ask how {bucket} is encrypted", found=error) from error
    except BotoCoreError as error:
        raise StorageError(f"cannot ask how {bucket} is encrypted", found=error) from error
    rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
    return str(rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]) if rules else ""


def infra(name: str) -> Path:
    """A folder of `infra/`, which a checkout has and an installed package has not.

    Raises:
        MissingError: this is not a checkout.
    """
    path = INFRA / name
    if not path.is_dir():
        raise MissingError(f"no infra/{name} beside the packages", remedy="run it in a checkout of the repository")
    return path
