"""Checks of the workspace's storage: file modes, disk space, clocks, encryption, connections."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plinth import private
from plinth.storage.atomic import named_failures
from plinth_ops.checklists.review import (
    Check,
    CheckAnswer,
    CheckScope,
    failed,
    not_applicable,
    passed,
    undetermined,
    warned,
)
from plinth_text.errors import PrivateFolderError

#: Timeout for a remote service, in seconds.
ANSWER_S: Final = 2.0

_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
#: `TIME_ERROR` and `STA_UNSYNC` of adjtimex(2).
_TIME_ERROR, _UNSYNC = 5, 0x40


def workspace_modes(scope: CheckScope) -> CheckAnswer:
    """Check that only the user can write to the workspace. If `PLINTH_UMASK` allows it, the user's group may also
    write."""
    root = scope.ctx.workspace.root
    shared = 0o002 if private.mask() & 0o020 == 0 else 0o022
    watched = [root, *(root / name for name in ("refs", "records", "manifests", "releases", "runs", "policies"))]
    open_ = [f"{path} {_mode(path):04o}" for path in watched if path.is_dir() and _mode(path) & shared]
    return failed("writable by other users: " + ", ".join(open_)) if open_ else passed(f"{root} {_mode(root):04o}")


def private_folder(scope: CheckScope) -> CheckAnswer:
    """Check that no other user can write to the folder of this user's pickled caches."""
    folder = private.root()
    try:
        private.required(folder)
    except PrivateFolderError as error:
        return failed(error.brief)
    return passed(f"{folder} 0700")


def room(scope: CheckScope) -> CheckAnswer:
    """Check that the disk has enough free space for the next checkpoints."""
    from plinth.training.checkpoint import checkpoint

    needed, what = 0, ""
    if scope.newest_run is not None:
        needed, what = checkpoint.size_of_last(scope.newest_run.directory), scope.newest_run.run_id
    elif scope.recipe is not None and scope.recipe.mixture is not None:
        needed, what = _planned_bytes(scope), "estimate for the recipe's model in FP32 with Adam's moments"
    if not needed:
        return undetermined("the checkpoint size is unknown: no checkpoint and no model in the recipe")
    folder = _existing(scope.ctx.workspace.runs)
    free, count = shutil.disk_usage(folder).free, scope.settings.free_checkpoints
    found = f"{free / 2**30:.1f} GiB free, required: {count} checkpoints of {needed / 2**30:.2f} GiB each ({what})"
    if not os.access(folder, os.W_OK):
        return failed(f"{folder} cannot be written; {found}")
    return passed(found) if free >= needed * count else failed(found)


def clock(scope: CheckScope) -> CheckAnswer:
    """Check that the machine's clock is synchronized and agrees with the clock of the file system."""
    folder = _existing(scope.ctx.workspace.tmp)
    with named_failures(folder), tempfile.NamedTemporaryFile(dir=folder) as file:
        before = time.time()
        os.utime(file.fileno())
        skew = os.fstat(file.fileno()).st_mtime - (before + time.time()) / 2
    if abs(skew) > scope.settings.clock_s:
        return failed(f"the file system's clock differs by {skew:+.2f} s")
    state = _kernel_clock()
    if state is None:
        return undetermined("the kernel does not report if its clock is synchronized")
    return passed("synchronized, according to the kernel") if state else warned("the clock is not synchronized")


def encrypted(scope: CheckScope) -> CheckAnswer:
    """Check that storage is encrypted at rest: a bucket by its encryption setting, a disk by dm-crypt."""
    if scope.ctx.workspace.uri:
        return _bucket_encrypted(scope.ctx.workspace.uri)
    device = _device(scope.ctx.workspace.root)
    if device is None:
        return undetermined("the block device of the workspace is not visible on this machine")
    chain = list(_below(device))
    crypt = [name for name in chain if _dm_kind(name).startswith("CRYPT")]
    if crypt:
        return passed(f"{device}: dm-crypt on {crypt[0]}")
    return undetermined(f"{device} is not encrypted by this machine; its storage may be encrypted")


def in_transit(scope: CheckScope) -> CheckAnswer:
    """Check that remote services are reached over TLS only."""
    remote = [(name, url) for name, url in endpoints(scope) if not _local(url)]
    if not remote:
        return not_applicable("no remote S3, PostgreSQL or MLflow is configured")
    plain = [f"{name} {_without_password(url)}" for name, url in remote if not _by_tls(url)]
    return failed("no TLS: " + ", ".join(plain)) if plain else passed(", ".join(sorted({name for name, _ in remote})))


def endpoints(scope: CheckScope) -> Iterator[tuple[str, str]]:
    """Yield the name and URL of each service that the environment or the settings of this workspace name."""
    from plinth.operation import spending

    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        if os.environ.get(name):
            yield name, os.environ[name]
    ledger = spending.load(scope.ctx.workspace).ledger
    if "://" in ledger:
        yield "ledger of budgets", ledger
    if scope.recipe is not None and scope.recipe.training.launch.kind == "ray":
        yield "training.launch.ray.address", scope.recipe.training.launch.ray.address
    for name in ("PLINTH_POSTGRES", "DAGSTER_POSTGRES_URL"):
        if os.environ.get(name):
            yield name, os.environ[name]


def _by_tls(url: str) -> bool:
    found = urllib.parse.urlsplit(url)
    if found.scheme.startswith("postgres"):
        mode = urllib.parse.parse_qs(found.query).get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[0]
        return mode in ("require", "verify-ca", "verify-full")
    return found.scheme == "https"


def _local(url: str) -> bool:
    found = urllib.parse.urlsplit(url)
    return found.scheme in ("sqlite", "file", "") or (found.hostname or "") in _LOOPBACK


def _without_password(url: str) -> str:
    found = urllib.parse.urlsplit(url)
    return f"{found.scheme}://{found.hostname}{f':{found.port}' if found.port else ''}"


def _bucket_encrypted(uri: str) -> CheckAnswer:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    bucket = urllib.parse.urlsplit(uri).netloc
    quick = Config(connect_timeout=ANSWER_S, read_timeout=ANSWER_S, retries={"max_attempts": 1})
    try:
        rules = boto3.client("s3", config=quick).get_bucket_encryption(Bucket=bucket)
        kinds = [
            rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]
            for rule in rules["ServerSideEncryptionConfiguration"]["Rules"]
        ]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ServerSideEncryptionConfigurationNotFoundError":
            return failed(f"bucket {bucket} has no default encryption")
        return undetermined(f"bucket {bucket}: {error}")
    except (BotoCoreError, KeyError, ValueError) as error:
        return undetermined(f"bucket {bucket}: {error}")
    return passed(f"bucket {bucket}: {', '.join(kinds)}")


def _kernel_clock() -> bool | None:
    """Return True if the kernel's clock is synchronized, or None if the state is unknown (Linux only)."""
    buffer = ctypes.create_string_buffer(512)  # struct timex, all zero: `modes` 0 only reads
    try:
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[40:44], "little")  # after modes, offset, freq, maxerror, esterror on 64 bits
    return state != _TIME_ERROR and not status & _UNSYNC


def _device(path: Path) -> str | None:
    number = _existing(path).stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return found.resolve().name if found.exists() else None


def _below(device: str) -> Iterator[str]:
    """Yield a block device and its underlying devices."""
    yield device
    for slave in sorted(Path(f"/sys/class/block/{device}/slaves").glob("*")):
        yield from _below(slave.name)


def _dm_kind(device: str) -> str:
    try:
        return Path(f"/sys/class/block/{device}/dm/uuid").read_text()
    except OSError:
        return ""


def _planned_bytes(scope: CheckScope) -> int:
    from plinth.model import architectures

    assert scope.recipe is not None
    vocabulary = scope.recipe.tokenizer.vocab_size
    return 12 * architectures.parameters(scope.recipe.training.model, vocabulary).total


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


CHECKS = (
    Check(
        "workspace-modes", "no other user can write to the workspace", "security", ("security",),
        "chmod -R go-w; for a group that shares the workspace, set PLINTH_UMASK=007", workspace_modes,
    ),
    Check(
        "private-folder", "no other user can write to the folder of pickled caches", "security",
        ("security",), "delete the folder (it is rebuilt), or set PLINTH_PRIVATE to another folder", private_folder,
    ),
    Check(
        "disk-room", "the disk has space for more checkpoints", "platform", ("preproduction", "readiness", "incident"),
        "free disk space, lower training.checkpoints.keep_last, or move the workspace", room,
    ),
    Check(
        "clock", "the clock is synchronized and agrees with the clock of the file system", "platform",
        ("preproduction", "readiness", "security"), "start chrony or another NTP client on the host", clock,
    ),
    Check(
        "encryption-at-rest", "the workspace is encrypted at rest", "security", ("security",),
        "set the bucket's default encryption, or put the workspace on a LUKS volume", encrypted,
    ),
    Check(
        "encryption-in-transit", "connections to remote S3, PostgreSQL, MLflow and Ray use TLS", "security",
        ("preproduction", "security"), "use https:// URLs, and sslmode=verify-full for PostgreSQL", in_transit,
    ),
)  # fmt: skip
