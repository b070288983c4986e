"""The S3 server of game days: the one that `PLINTH_GAMEDAY_S3` names, or one that is started for them.

    PLINTH_GAMEDAY_S3=s3://bucket/prefix with AWS_ENDPOINT_URL=http://host:port and credentials   a server of yours
    without it, moto (`pip install moto[server]`) on loopback, in this process, with an empty bucket

Does not belong here: the line to it (`faulty_line`).
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from plinth.errors import RequestError

VARIABLE = "PLINTH_GAMEDAY_S3"
_ENDPOINT = "AWS_ENDPOINT_URL"
_MOTO = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class S3Server:
    """A place on an S3 server: host and port, bucket, and the prefix below which everything lies."""

    endpoint: str
    bucket: str
    prefix: str
    client: Any

    @property
    def uri(self) -> str:
        """Where everything lies."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}".lstrip("/"), Body=data)


def missing() -> str | None:
    """Why there is no server, or None."""
    if os.environ.get(VARIABLE):
        if not os.environ.get(_ENDPOINT, "").startswith("http://"):
            return f"{VARIABLE} needs {_ENDPOINT}=http://host:port: a proxy cannot stand before TLS"
        return None
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        return f"no S3 server: name one by {VARIABLE}, or install moto[server]"
    return None


def credentials() -> dict[str, str]:
    """Variables by which a job reaches the server, but for its endpoint."""
    return {} if os.environ.get(VARIABLE) else dict(_MOTO)


def found() -> S3Server:
    """The server, started when it is first asked for.

    Raises:
        RequestError: there is none.
    """
    if why := missing():
        raise RequestError("no S3 server for this game day", found=why)
    named = os.environ.get(VARIABLE)
    if not named:
        return _started()
    import boto3

    endpoint = os.environ[_ENDPOINT].removeprefix("http://").rstrip("/")
    bucket, _, prefix = named.removeprefix("s3://").rstrip("/").partition("/")
    return S3Server(endpoint, bucket, prefix, boto3.client("s3"))


@lru_cache(maxsize=1)
def _started() -> S3Server:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="gameday")
    return S3Server(f"{host}:{port}", "gameday", "", client)
