"""Where MLflow's artifacts may lie: in the destination of its own server, whatever its database says.

Who writes the database, or makes an experiment, names the location of artifacts. MLflow believes it: the server would
hand out files of this user, or replace them, and a client would write to folders of somebody's choice.

    confine(destination)   in the server's process: other locations are refused, and links are not followed
    guard(client, uri)     in a client's process: nothing is sent anywhere but to its own server, or a bucket
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from plinth.errors import RegistryError

PROXIED = "mlflow-artifacts"


def confine(destination: str) -> None:
    """Let MLflow in this process make repositories of artifacts below the server's destination alone."""
    from mlflow.server import handlers
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry as made

    original, validated = made.get_artifact_repository, handlers._validate_storage_location_uri

    def get_artifact_repository(artifact_uri: str, *args: Any, **kwargs: Any) -> Any:
        place = _local(artifact_uri)
        if place is not None and _local(destination) is not None:
            return _below(Path(_local(destination) or ""), place)
        if artifact_uri != destination and not _prefixed(artifact_uri, destination) and not is_proxied(artifact_uri):
            raise _refused(artifact_uri)
        return original(artifact_uri, *args, **kwargs)

    def validate(value: str, field_name: str) -> Any:
        if not is_proxied(value):
            raise _refused(value)
        return validated(value, field_name)

    made.get_artifact_repository = get_artifact_repository  # type: ignore[method-assign]
    handlers._validate_storage_location_uri = validate


def guard(client: Any, uri: str) -> Any:
    """The client, which refuses runs and models whose artifacts would go past its server to a folder or another host.

    Args:
        uri: of the server. A database without one has its artifacts in folders: nothing is refused.
    """
    if not uri.startswith(("http://", "https://")):
        return client
    tracking = client._tracking_client
    original = tracking._get_artifact_repo

    def get_artifact_repo(resource_id: str, **kwargs: Any) -> Any:
        found = original(resource_id, **kwargs)
        scheme = urlsplit(found.artifact_uri).scheme
        if scheme in ("", "file") or (scheme.startswith("http") and not _prefixed(found.artifact_uri, uri)):
            raise RegistryError(
                f"the artifacts of {resource_id} in MLflow are to go past its server",
                found=found.artifact_uri,
                expected=f"{PROXIED}:/…",
                remedy="find out who changed the location in MLflow's database; delete that run or experiment",
            )
        return found

    tracking._get_artifact_repo = get_artifact_repo
    return client


def _local(uri: str) -> str | None:
    from mlflow.utils.file_utils import local_file_uri_to_path

    if urlsplit(uri).scheme not in ("", "file"):
        return None
    return str(local_file_uri_to_path(uri))  # type: ignore[no-untyped-call]


def is_proxied(uri: str) -> bool:
    """True if a location is below the artifacts of the server that has it."""
    parts = urlsplit(uri)
    return parts.scheme == PROXIED and not parts.netloc and ".." not in PurePosixPath(unquote(parts.path)).parts


def _prefixed(uri: str, root: str) -> bool:
    return uri.startswith(root.rstrip("/") + "/") and ".." not in PurePosixPath(unquote(uri)).parts


def _refused(place: object) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    return MlflowException(f"{place} is not below the artifacts of this server", error_code=INVALID_PARAMETER_VALUE)


def _below(root: Path, place: str) -> Any:
    """MLflow's repository of a folder at or below `root`, which follows no link and serves no file of two names."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.utils import uri as uris

    safe: Any = uris.validate_path_is_safe

    class Confined(LocalArtifactRepository):
        download_artifacts = ArtifactRepository.download_artifacts
        download_trace_data = ArtifactRepository.download_trace_data

        def get_local_path(self, artifact_path: str) -> None:  # type: ignore[override]
            """None: a file is copied from its open descriptor, and not opened again by name."""
            if self._is_directory(artifact_path):  # type: ignore[no-untyped-call]
                raise MlflowException.invalid_parameter_value(f"a directory, not a file: '{artifact_path}'")

        def _download_file(self, remote_file_path: str, local_path: str) -> None:
            path = os.path.join(self.artifact_dir, safe(remote_file_path))
            with os.fdopen(_open_below(root, inside(root, path)), "rb") as source, open(local_path, "wb") as copy:
                shutil.copyfileobj(source, copy)

        def _get_destination_artifact_path(self, *args: Any, **kwargs: Any) -> tuple[str, str]:
            folder, path = super()._get_destination_artifact_path(*args, **kwargs)
            inside(root, folder)
            return folder, path

        def _get_or_create_artifact_dir(self, artifact_path: str | None = None) -> str:
            inside(root, os.path.join(self.artifact_dir, artifact_path or ""))
            return str(super()._get_or_create_artifact_dir(artifact_path))

        def list_artifacts(self, path: str | None = None) -> Any:
            inside(root, os.path.join(self.artifact_dir, path or ""))
            return super().list_artifacts(path)  # type: ignore[no-untyped-call]

        def delete_artifacts(self, artifact_path: str | None = None) -> None:
            inside(root, os.path.join(self.artifact_dir, artifact_path or ""))
            super().delete_artifacts(artifact_path)  # type: ignore[no-untyped-call]

    inside(root, place)
    return Confined(place)


def inside(root: Path, path: str | Path) -> Path:
    """A path relative to `root`, which it is below; no link leads anywhere else.

    Raises:
        MlflowException: it is elsewhere.
    """
    below = Path(os.path.relpath(path, root))
    if ".." in below.parts or root.is_symlink() or (root.resolve() / below).resolve() != root.resolve() / below:
        raise _refused(path)
    return below


def _open_below(root: Path, below: Path) -> int:
    """Open a plain file of one name, from folder to folder: a link that appears meanwhile is not followed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in below.parts:
            opened = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = opened
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.ELOOP, "no plain file of one name")
    except OSError as error:
        os.close(fd)
        if error.errno == errno.ENOENT:
            raise _absent(below) from error
        raise _refused(below) from error
    return fd


def _absent(path: Path) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    return MlflowException(f"No such artifact: '{path}'", error_code=RESOURCE_DOES_NOT_EXIST)
