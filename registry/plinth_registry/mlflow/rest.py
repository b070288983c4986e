"""MLflow's model registry without MLflow's library, whose import takes longer than a command: over a server's REST.

`Server`, and `ModelDatabase` where no server runs (`model_database`), answer as `MlflowClient` does: names, arguments,
errors with `error_code`. `connection` chooses between them; the library does everything else.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from plinth.errors import RegistryError

API: Final = "/api/2.0/mlflow"
ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts"
PROXIED: Final = "mlflow-artifacts:/"
ABSENT: Final = "RESOURCE_DOES_NOT_EXIST"
#: Longest wait for an answer.
TIMEOUT_S = 120.0


class Refused(Exception):
    """MLflow's answer to what it does not do; `error_code` as in MLflow's own exceptions."""

    def __init__(self, message: str, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass
class RegisteredModel:
    """A registered model and the versions that its aliases name."""

    name: str
    description: str = ""
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass
class ModelVersion:
    """A version of a registered model; `version` is a number in digits, times are in milliseconds."""

    name: str
    version: str
    source: str
    run_id: str
    description: str = ""
    creation_timestamp: int = 0
    tags: dict[str, str] = field(default_factory=dict)


class ModelPage(list[Any]):
    """Part of a list; `token` asks for the next part."""

    def __init__(self, items: list[Any], token: str | None = None) -> None:
        super().__init__(items)
        self.token = token


class Server:
    """The model registry of a server of this machine.

    Args:
        uri: of the server.
        headers: sent with each request.
        library: makes the `MlflowClient` that does what is not here.
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
        """Copy a version into another model, which exists."""
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
        """Keep a value as an artifact of a run, in JSON."""
        place = self._get("runs/get", run_id=run_id)["run"]["info"]["artifact_uri"]
        if not place.startswith(PROXIED) or place.startswith(f"{PROXIED}/"):  # not through this server
            self._library().log_dict(run_id, dictionary, artifact_file)
            return
        path = quote(f"{ARTIFACTS}/{place.removeprefix(PROXIED)}/{artifact_file}")
        self.request("PUT", path, json.dumps(dictionary, indent=2).encode())

    def _get(self, path: str, **given: Any) -> dict[str, Any]:
        asked = urlencode({key: value for key, value in given.items() if value is not None})
        return dict(json.loads(self.request("GET", f"{API}/{path}?{asked}")))

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        body = {key: value for key, value in given.items() if value is not None}
        return dict(json.loads(self.request(method, f"{API}/{path}", json.dumps(body).encode())))

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request to the server alone: no proxy, no redirect.

        Raises:
            Refused: the server does not do it.
            RegistryError: it does not answer.
        """
        try:
            with closing(http.client.HTTPConnection(self._place, timeout=TIMEOUT_S)) as connection:
                connection.request(method, path, body, {"Content-Type": "application/json", **self._headers})
                answer = connection.getresponse()
                data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(
                "the connection to MLflow broke", found=error, remedy="run the command again"
            ) from error
        if answer.status != 200:
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
