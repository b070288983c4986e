"""MLflow: its model registry over REST, and confinement of its artifacts.

    settings    login settings, stored with the keys: password or reverse proxy
    server      start, find and stop the local server; its process
    workspaces  MLflow's own workspaces on the local server: separate models for several teams
    login       authentication inside that process, and decisions by logged-in people
    database    registered models and accounts in the SQLite databases when no server runs
    connection  the connection for callers of this package, with named errors; accounts of people

MLflow authenticates users but does not record who set a tag. Therefore, the server has its own key, enrolled as
`approver` and named in the gate policy (`approvals.proxies`), with which it signs the author of each tag. A tag that
was written without this key, in the database or through a server without login, has no such statement and is only a
request.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from plinth.errors import RegistryError

# MLflow's artifacts must be in the destination of its own server, regardless of its database.
#
# Anyone who writes the database, or creates an experiment, sets the location of artifacts, and MLflow trusts it: the
# server would serve or replace files of this user, and a client would write to arbitrary folders.
#
#     confine(destination)   in the server's process: other locations are refused, and links are not followed
#     guard(client, uri)     in a client's process: nothing is sent anywhere but to its own server, or a bucket

PROXIED_SCHEME = "mlflow-artifacts"


def confine(destination: str) -> None:
    """Restrict MLflow's artifact repositories in this process to the folder with the server's artifacts."""
    from mlflow.server import handlers
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry as made

    original, validated = made.get_artifact_repository, handlers._validate_storage_location_uri

    def get_artifact_repository(artifact_uri: str, *args: Any, **kwargs: Any) -> Any:
        place = _local(artifact_uri)
        if place is not None and _local(destination) is not None:
            return _below(Path(_local(destination) or ""), place)
        if artifact_uri != destination and not _prefixed(artifact_uri, destination) and not is_proxied(artifact_uri):
            raise _refused_place(artifact_uri)
        return original(artifact_uri, *args, **kwargs)

    def validate(value: str, field_name: str) -> Any:
        if not is_proxied(value):
            raise _refused_place(value)
        return validated(value, field_name)

    made.get_artifact_repository = get_artifact_repository  # type: ignore[method-assign]
    handlers._validate_storage_location_uri = validate


def guard(client: Any, uri: str) -> Any:
    """Make a client refuse runs and models if their artifacts would bypass its server.

    Args:
        uri: address of the server. If it names a database, artifacts are in folders and nothing is refused.
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
                f"artifacts of {resource_id} in MLflow would not be read through the MLflow server",
                found=found.artifact_uri,
                expected=f"{PROXIED_SCHEME}:/…",
                remedy="find out who changed the location in MLflow's database; delete the run or experiment",
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
    """Return True if an artifact location is served by the MLflow server."""
    parts = urlsplit(uri)
    return parts.scheme == PROXIED_SCHEME and not parts.netloc and ".." not in PurePosixPath(unquote(parts.path)).parts


def _prefixed(uri: str, root: str) -> bool:
    return uri.startswith(root.rstrip("/") + "/") and ".." not in PurePosixPath(unquote(uri)).parts


def _refused_place(place: object) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    return MlflowException(f"{place} is not inside the artifacts of this server", error_code=INVALID_PARAMETER_VALUE)


def _below(root: Path, place: str) -> Any:
    """Return MLflow's repository for a folder in `root`. The repository follows no links and serves no hard-linked
    files."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.utils import uri as uris

    safe: Any = uris.validate_path_is_safe

    class Confined(LocalArtifactRepository):
        download_artifacts = ArtifactRepository.download_artifacts
        download_trace_data = ArtifactRepository.download_trace_data

        def get_local_path(self, artifact_path: str) -> None:  # type: ignore[override]
            """Return None, so that MLflow copies files from an open descriptor and does not reopen them by name."""
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
    """Return a path relative to `root`. The path must be inside `root`, even after links are followed.

    Raises:
        MlflowException: the path is outside `root`.
    """
    below = Path(os.path.relpath(path, root))
    if ".." in below.parts or root.is_symlink() or (root.resolve() / below).resolve() != root.resolve() / below:
        raise _refused_place(path)
    return below


def _open_below(root: Path, below: Path) -> int:
    """Open a regular file without hard links, folder by folder, so that a link that is created in the meantime is not
    followed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in below.parts:
            opened = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = opened
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.ELOOP, "not a regular file without hard links")
    except OSError as error:
        os.close(fd)
        if error.errno == errno.ENOENT:
            raise _absent(below) from error
        raise _refused_place(below) from error
    return fd


def _absent(path: Path) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    return MlflowException(f"No such artifact: '{path}'", error_code=RESOURCE_DOES_NOT_EXIST)


# MLflow's model registry over REST, without MLflow's library, whose import takes longer than a command.
#
# `Server`, and `ModelDatabase` when no server runs (`model_database`), have the interface of `MlflowClient`: names,
# arguments, errors with `error_code`. `connection` chooses between them; the library does everything else.

API: Final = "/api/2.0/mlflow"
ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts"
PROXIED: Final = "mlflow-artifacts:/"
ABSENT: Final = "RESOURCE_DOES_NOT_EXIST"
#: Response timeout in seconds.
TIMEOUT_S = 120.0


class Refused(Exception):
    """Error response of MLflow. `error_code` has the same values as in MLflow's own exceptions."""

    def __init__(self, message: str, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass
class RegisteredModel:
    """Registered model of MLflow, with its versions by alias."""

    name: str
    description: str = ""
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass
class ModelVersion:
    """Version of a registered model. `version` is a number as text; times are in milliseconds."""

    name: str
    version: str
    source: str
    run_id: str
    description: str = ""
    creation_timestamp: int = 0
    tags: dict[str, str] = field(default_factory=dict)


class ModelPage(list[Any]):
    """Page of a list of MLflow's models or versions; `token` requests the next page."""

    def __init__(self, items: list[Any], token: str | None = None) -> None:
        super().__init__(items)
        self.token = token


class Server:
    """Client for the model registry of an MLflow server on this machine.

    Args:
        uri: address of the server.
        headers: headers that are sent with each request.
        library: function that returns the `MlflowClient` for all other calls.
    """

    def __init__(self, uri: str, headers: Mapping[str, str], library: Callable[[], Any]) -> None:
        self._place = urlsplit(uri).netloc
        self._headers = dict(headers)
        self._library = lru_cache(maxsize=1)(library)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library(), name)

    def search_registered_models(self, max_results: int = 100, page_token: str | None = None) -> ModelPage:
        found = self._get("registered-models/search", max_results=max_results, page_token=page_token)
        return ModelPage([_model(one) for one in found.get("registered_models", ())], found.get("next_page_token"))

    def search_model_versions(
        self, filter_string: str, max_results: int = 200, page_token: str | None = None
    ) -> ModelPage:
        asked = {"filter": filter_string, "max_results": max_results, "page_token": page_token}
        found = self._get("model-versions/search", **asked)
        return ModelPage([_version(one) for one in found.get("model_versions", ())], found.get("next_page_token"))

    def get_registered_model(self, name: str) -> RegisteredModel:
        return _model(self._get("registered-models/get", name=name)["registered_model"])

    def get_model_version(self, name: str, version: str) -> ModelVersion:
        return _version(self._get("model-versions/get", name=name, version=version)["model_version"])

    def create_registered_model(self, name: str, description: str | None = None) -> RegisteredModel:
        made = self._ask("POST", "registered-models/create", name=name, description=description)
        return _model(made["registered_model"])

    def copy_model_version(self, src_model_uri: str, dst_name: str) -> ModelVersion:
        """Copy a model version into another registered model, which must exist."""
        name, _, version = src_model_uri.removeprefix("models:/").rpartition("/")
        source = self._get("model-versions/get", name=name, version=version)["model_version"]
        copied = {
            key: source[key] for key in ("run_id", "tags", "run_link", "description", "model_id") if source.get(key)
        }
        made = self._ask("POST", "model-versions/create", name=dst_name, source=src_model_uri, **copied)
        return _version(made["model_version"])

    def update_model_version(self, name: str, version: str, description: str) -> None:
        self._ask("PATCH", "model-versions/update", name=name, version=version, description=description)

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self._ask("POST", "model-versions/set-tag", name=name, version=version, key=key, value=str(value))

    def delete_model_version_tag(self, name: str, version: str, key: str) -> None:
        self._ask("DELETE", "model-versions/delete-tag", name=name, version=version, key=key)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self._ask("POST", "registered-models/alias", name=name, alias=alias, version=version)

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        self._ask("DELETE", "registered-models/alias", name=name, alias=alias)

    def log_dict(self, run_id: str, dictionary: Mapping[str, Any], artifact_file: str) -> None:
        """Store a value as a JSON artifact of a run."""
        self.log_text(run_id, json.dumps(dictionary, indent=2), artifact_file)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """Store a text as an artifact of a run."""
        place = self._get("runs/get", run_id=run_id)["run"]["info"]["artifact_uri"]
        if not place.startswith(PROXIED) or place.startswith(f"{PROXIED}/"):  # not through this server
            self._library().log_text(run_id, text, artifact_file)
            return
        path = quote(f"{ARTIFACTS}/{place.removeprefix(PROXIED)}/{artifact_file}")
        self.request("PUT", path, text.encode())

    def _get(self, path: str, **given: Any) -> dict[str, Any]:
        asked = urlencode({key: value for key, value in given.items() if value is not None})
        return dict(json.loads(self.request("GET", f"{API}/{path}?{asked}")))

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        body = {key: value for key, value in given.items() if value is not None}
        return dict(json.loads(self.request(method, f"{API}/{path}", json.dumps(body).encode())))

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request directly to the MLflow server, without a proxy or redirects.

        Raises:
            Refused: the server returns an error.
            RegistryError: the server does not respond.
        """
        try:
            with closing(http.client.HTTPConnection(self._place, timeout=TIMEOUT_S)) as connection:
                connection.request(method, path, body, {"Content-Type": "application/json", **self._headers})
                answer = connection.getresponse()
                data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(
                "the connection to MLflow failed", found=error, remedy="run the command again"
            ) from error
        if answer.status not in (200, 201):
            raise _refused(answer.status, data)
        return data


def _refused(status: int, data: bytes) -> Refused:
    text = data.decode(errors="replace")[:500]
    try:
        found = json.loads(data)
        return Refused(str(found["message"]), str(found["error_code"]))
    except (ValueError, KeyError, TypeError):
        return Refused(f"{status}: {text}", str(status))


def _model(found: Mapping[str, Any]) -> RegisteredModel:
    aliases = {one["alias"]: str(one["version"]) for one in found.get("aliases", ())}
    return RegisteredModel(found["name"], found.get("description", ""), aliases)


def _version(found: Mapping[str, Any]) -> ModelVersion:
    return ModelVersion(
        name=found["name"],
        version=str(found["version"]),
        source=found.get("source", ""),
        run_id=found.get("run_id", ""),
        description=found.get("description", ""),
        creation_timestamp=int(found.get("creation_timestamp", 0)),
        tags={one["key"]: one.get("value", "") for one in found.get("tags", ())},
    )
