"""Artifact repository of MLflow for `plinth://` sources: `models:/demo@champion` loads in any MLflow client.

MLflow imports this module by its entry point (`mlflow.artifact_repository`). A model is verified before its first byte
is returned. The client gets a Hugging Face folder with an `MLmodel` of the flavors `transformers` and
`python_function`. The model is read from the first of these places that has it:

    PLINTH_WORKSPACE   the workspace (default: ./workspace). The model is verified down to its sources. It is refused
                       if it is tainted or rolled back, or if MLflow differs from the signed history
    PLINTH_EXPORTS     an export of the model (`plinth export model`), in this folder or s3:// prefix. Every file is
                       verified against the pinned root in PLINTH_ROOT. It is refused if the workspace on this machine
                       knows that the release is tainted or rolled back

The repository is read-only: models enter the registry through `registration`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

# MLflow loads this module when it is imported itself.
from mlflow.exceptions import MlflowException  # noqa: TID253
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST  # noqa: TID253
from mlflow.store.artifact.artifact_repo import ArtifactRepository  # noqa: TID253
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository  # noqa: TID253

from plinth.errors import GateError, LineageError, MissingError, PlinthError

EXPORTS, ROOT, EXPORT = "PLINTH_EXPORTS", "PLINTH_ROOT", "EXPORT.json"
#: Parameters of `predict`, with their defaults.
PARAMETERS = {"max_new_tokens": ("long", 64), "do_sample": ("boolean", False), "temperature": ("double", 1.0)}


class PlinthArtifacts(ArtifactRepository):
    """Artifact repository with the model of one source, `plinth:///models/<first 12 digits of the checkpoint>`.

    Raises:
        MlflowException: the model is absent (RESOURCE_DOES_NOT_EXIST) or refused (PERMISSION_DENIED), with the reason.
    """

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._kept = ExitStack()
        self._local: LocalArtifactRepository | None = None

    def download_artifacts(self, artifact_path: str, dst_path: str | None = None) -> str:
        """Write the model, or a part of it, into a folder, and return the path. By default, the folder is a new
        temporary folder."""
        if artifact_path or self._local:
            return str(super().download_artifacts(artifact_path, dst_path))  # type: ignore[no-untyped-call]
        folder = Path(dst_path or tempfile.mkdtemp(prefix="plinth-model-"))
        self._write(folder)
        return str(folder)

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """Return the list of the model's files, after the model is verified."""
        return list(self._copy.list_artifacts(path))  # type: ignore[no-untyped-call]

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        self._copy._download_file(remote_file_path, local_path)  # type: ignore[no-untyped-call]

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> NoReturn:
        """Raise an error, because only `plinth run` registers models."""
        raise MlflowException("models of Plinth are read-only in MLflow; `plinth run` registers them")

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> NoReturn:
        """Raise an error, because only `plinth run` registers models."""
        self.log_artifact(local_dir)

    @property
    def _copy(self) -> LocalArtifactRepository:
        """Verified copy of the model in a temporary folder, for clients that read single files."""
        if self._local is None:
            folder = self._kept.enter_context(tempfile.TemporaryDirectory(prefix="plinth-model-"))
            self._write(Path(folder))
            self._local = LocalArtifactRepository(folder)
        return self._local

    def _write(self, folder: Path) -> None:
        try:
            write(self.artifact_uri, folder, self.registry_uri or self.tracking_uri)
        except PlinthError as error:
            code = RESOURCE_DOES_NOT_EXIST if isinstance(error, MissingError) else PERMISSION_DENIED
            raise MlflowException(f"{self.artifact_uri}: {error}", error_code=code) from error


def write(uri: str, folder: Path, registry_uri: str | None = None) -> None:
    """Verify the model that a source URI names, and write it into an empty folder.

    Args:
        registry_uri: MLflow registry whose aliases and versions are compared with the signed history.

    Raises:
        MissingError: neither the workspace nor the exports have the model.
        GateError: the model is tainted or rolled back, or MLflow differs from the signed history.
        SignatureError, LineageError: the model, or a statement about it, was changed, or the source is invalid.
    """
    from plinth.storage.workspace import Workspace, folder_of
    from plinth_registry.candidate import source_directory, source_uri

    workspace = Workspace(folder_of(os.environ.get("PLINTH_WORKSPACE") or "workspace"))
    directory = source_directory(workspace, uri)
    if uri != source_uri(workspace, directory) or not re.fullmatch(r"[0-9a-f]{12}", directory.name):
        expected = "plinth:///models/<first 12 digits of the checkpoint>"  # one source per model, to find its versions
        raise LineageError(f"{uri} is not the source of a model", expected=expected)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".plinth-model-") as staging:
        staged = Path(staging) / "model"
        if directory.is_dir():
            _write_of_workspace(workspace, directory, uri, staged, registry_uri)
        else:
            _write_of_export(workspace, directory.name, staged)
        add_mlmodel(staged, uri)
        for path in staged.iterdir():
            path.rename(folder / path.name)


def add_mlmodel(folder: Path, name: str) -> None:
    """Add the file `MLmodel` to a Hugging Face folder, and copy the tokenizer into the subfolder that the
    `transformers` flavor reads."""
    from importlib.metadata import PackageNotFoundError, version

    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    tokenizer = folder / "components" / "tokenizer"
    tokenizer.mkdir(parents=True)
    for path in folder.glob("tokenizer*.json"):
        shutil.copyfile(path, tokenizer / path.name)
    try:
        library = version("transformers")
    except PackageNotFoundError:  # the files are read by something else
        library = ""
    text = Schema([ColSpec("string")])
    params = ParamSchema([ParamSpec(name, kind, default) for name, (kind, default) in PARAMETERS.items()])
    made = Model(signature=ModelSignature(text, text, params))
    config = json.loads((folder / "config.json").read_text())
    made.add_flavor(
        "transformers",
        task="text-generation",
        instance_type="TextGenerationPipeline",
        pipeline_model_type=config["architectures"][0],
        source_model_name=name,
        model_binary=".",
        torch_dtype=None,
        components=["tokenizer"],
        tokenizer_type="PreTrainedTokenizerFast",
        transformers_version=library,
    )
    made.add_flavor("python_function", loader_module="mlflow.transformers", python_version=platform.python_version())
    made.save(str(folder / "MLmodel"))


def _write_of_workspace(workspace: Any, directory: Path, uri: str, folder: Path, registry_uri: str | None) -> None:
    from plinth.compute.context import Context
    from plinth.model.export import export_model
    from plinth.model.hugging_face import TOKENIZER
    from plinth_registry import exports, verified

    ctx = Context(workspace)
    found = verified.verify_model(ctx, str(directory))
    if not found.checkpoint.startswith(directory.name):
        remedy = "the folder was replaced: restore it from a backup, or register the checkpoint again"
        raise LineageError(f"{directory} has another checkpoint", found=found.checkpoint, remedy=remedy)
    _require_current(ctx, found.checkpoint, uri, registry_uri)
    export_model(directory, directory / TOKENIZER, folder)
    exports.require_plain(ctx, directory, folder)  # the files may have changed since they were verified


def _require_current(ctx: Any, checkpoint: str, uri: str, registry_uri: str | None) -> None:
    """Check that a model was not rolled back, and that MLflow agrees with the signed history about it.

    MLflow passes only the source, and not the version that was requested. Therefore, all versions of a release with
    this source must be versions in the signed history, and all aliases on these versions must agree with the history.
    A checkpoint that was never released may only be shown as a candidate, under any name.
    """
    from plinth_registry import releases
    from plinth_registry.candidate import SUFFIX

    history = releases.history(ctx)
    if not any(record.version and record.candidate.get("checkpoint") == checkpoint for record in history):
        for name, version in _copies(uri, registry_uri):
            if not name.endswith(SUFFIX):
                raise releases.never_released(name, version)
    for name in dict.fromkeys(record.model for record in history):
        records = history.of(name)
        own = [record for record in records if record.version and record.candidate.get("checkpoint") == checkpoint]
        versions = {str(record.version) for record in own}
        places = {version: records.standing.place(version) for version in versions}
        if places and all(place == "rolled back" for place in places.values()):
            raise GateError(
                f"{name} version {', '.join(sorted(places))} was rolled back", remedy=f"load models:/{name}@champion"
            )
        for version, aliases in _shown(name, uri, registry_uri):
            if version not in versions:
                raise releases.never_released(name, version)
            signed = {which for which, held in records.standing.aliases.items() if held == version}
            if wrong := sorted(set(aliases) & set(records.standing.aliases) - signed):
                raise GateError(
                    f"MLflow shows {name} version {version} as {', '.join(wrong)}",
                    found=f"{', '.join(sorted(signed)) or 'no alias'} in the signed history",
                    remedy="`plinth release mirror` syncs MLflow from the history; find out who set the alias",
                )


def _shown(name: str, uri: str, registry_uri: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the versions of a release that MLflow lists with this source, and their aliases."""
    from mlflow import MlflowClient

    client = MlflowClient(registry_uri=registry_uri)
    try:
        aliases = client.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    for found in client.search_model_versions(f"name = '{name}'"):
        if client.get_model_version_download_uri(name, found.version) == uri:
            yield str(found.version), [which for which, held in aliases.items() if str(held) == str(found.version)]


def _copies(uri: str, registry_uri: str | None) -> Iterator[tuple[str, str]]:
    """Yield the name and number of each version in MLflow with this source, and of each copy of such a version."""
    from mlflow import MlflowClient

    client, sources = MlflowClient(registry_uri=registry_uri), [uri]
    for source in sources:  # grows in the loop
        for found in client.search_model_versions(f'source_path = "{source}"'):
            yield found.name, str(found.version)
            if (copied := f"models:/{found.name}/{found.version}") not in sources:
                sources.append(copied)


def _write_of_export(workspace: Any, short: str, folder: Path) -> None:
    """Copy the export of a checkpoint, given by the first 12 digits of its digest, and verify the copy."""
    from plinth.compute.context import Context
    from plinth.trust import dsse
    from plinth_registry import exports
    from plinth_registry.exports.models import require_standing

    place, root = os.environ.get(EXPORTS, ""), os.environ.get(ROOT, "")
    if not place or not root:
        raise MissingError(
            f"no model {short} on this machine",
            expected=f"a workspace with the model in PLINTH_WORKSPACE, or an export in {EXPORTS} and a root in {ROOT}",
            remedy=f"set {EXPORTS} to a folder or s3:// prefix with the export, and {ROOT} to the pinned root.json",
        )
    if not (_copy_from_bucket if "://" in place else _copy_from_folder)(place, short, folder):
        raise MissingError(
            f"{place} has no export of model {short}",
            remedy="write an export of the model with `plinth export model NAME@champion FOLDER`",
        )
    proved = exports.verify(folder, Path(root))
    if not _is_of(dsse.bytes_of(folder / EXPORT), short, place):  # exchanged after its statement was read
        raise LineageError(f"{place} has another model", found=proved["name"], expected=f"checkpoint {short}")
    if workspace.releases.is_dir():  # a model that was removed from the workspace may have been rolled back
        require_standing(Context(workspace), proved)


def _is_of(statement: bytes, short: str, where: str) -> bool:
    """Return True if the unverified statement of an export is about this checkpoint, and the export was not quantized
    or pruned."""
    from plinth.trust import dsse

    claim = dsse.unverified(dsse.parsed(statement, where), where)["predicate"]
    return str(claim.get("checkpoint", "")).startswith(short) and not claim.get("form")


def _copy_from_folder(place: str, short: str, staged: Path) -> bool:
    from plinth.trust import dsse

    for statement in sorted({*Path(place).glob(EXPORT), *Path(place).glob(f"*/{EXPORT}")}):
        if _is_of(dsse.bytes_of(statement), short, str(statement)):
            shutil.copytree(statement.parent, staged, symlinks=True)
            return True
    return False


def _copy_from_bucket(place: str, short: str, staged: Path) -> bool:
    from plinth.storage.objects import S3Objects

    bucket = S3Objects(place.rstrip("/"))
    every = bucket.every()
    for statement in (one for one in every if one.name.rpartition("/")[2] == EXPORT):
        if not _is_of(bucket.read(statement.name, 0, statement.bytes), short, bucket.where(statement.name)):
            continue
        prefix = statement.name.removesuffix(EXPORT)
        for found in (one for one in every if one.name.startswith(prefix)):
            path = staged / found.name.removeprefix(prefix)
            if ".." in path.parts:
                raise MissingError(f"the export has the invalid file {found.name}", remedy="export the model again")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                bucket.read_into(found.name, found.bytes, stream.write)
        return True
    return False
