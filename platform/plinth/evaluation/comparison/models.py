"""Models in a comparison: import of a folder of weights, and the differences between two models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from plinth.compute.context import Context
from plinth.errors import MissingError, PlinthError, SourceError
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER
from plinth.records import Frozen, Manifest, Part
from plinth.storage.state import Refs
from plinth.storage.store import Store
from plinth.storage.uris import open_local, readable
from plinth.tokens.tokenizer.template import same_tokenizer

RECIPE, DATA, STEPS = "recipe", "data", "steps"
ABSENT = "-"
#: Parameters that change whenever anything else differs; they are not listed.
_IDENTITIES = frozenset({"key", "run_id"})
#: Assets that another stage selects from. Only the parameters of the selecting stage are listed.
_SAID_ELSEWHERE = frozenset({"checkpoint", "run"})


class ModelChange(Frozen):
    """One difference between two models. `sort` is recipe, data or steps; `where` names the asset and the parameter."""

    sort: str
    where: str
    a: str
    b: str


def changes(refs: Refs, a: Manifest, b: Manifest) -> list[ModelChange]:
    """Return the differences between two checkpoints: steps first, then recipe, then data.

    An asset that differs only because its inputs differ is not listed.
    """
    ours, theirs = ancestry(refs, a), ancestry(refs, b)
    if not a.inputs or not b.inputs:
        return [ModelChange(sort=DATA, where="origin", a=_origin(a), b=_origin(b)), *_steps(ours, theirs)]
    return [*_steps(ours, theirs), *_recipe(ours, theirs), *_data(ours, theirs)]


def cut_alike(store: Store, a: Manifest, b: Manifest) -> bool:
    """Return True if two checkpoints have the same tokenizer."""
    ours, theirs = (one.named(TOKENIZER) for one in (a, b))
    if not (ours and theirs):
        return ours == theirs
    return same_tokenizer(store, ours[0].blob, theirs[0].blob)


def ancestry(refs: Refs, manifest: Manifest) -> dict[str, Manifest]:
    """Return a checkpoint's manifest and the manifests of all its ancestors, by asset. Missing manifests are
    omitted."""
    found, waiting = {manifest.asset: manifest}, [manifest]
    while waiting:
        for name, digest in sorted(waiting.pop().inputs.items()):
            if name in found:
                continue
            try:
                found[name] = refs.load(digest)
            except PlinthError:
                continue  # a source's inventory, or a manifest that was removed
            waiting.append(found[name])
    return found


def _origin(checkpoint: Manifest) -> str:
    return "a run of this workspace" if checkpoint.inputs else "weights from elsewhere, of unknown data"


def _steps(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    for asset, names in (("checkpoint", ("step", "tokens")), ("run", ("final_loss_ema",))):
        ours, theirs = (side[asset].stats if asset in side else {} for side in (a, b))
        for name in names:
            if ours.get(name) != theirs.get(name):
                yield ModelChange(sort=STEPS, where=name, a=_shown(ours.get(name)), b=_shown(theirs.get(name)))


def _recipe(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    """Yield the recipe parameters that differ between two models, by stage."""
    for asset in sorted(set(a) & set(b)):
        ours, theirs = (dict(flat(side[asset].params)) for side in (a, b))
        for name in sorted(set(ours) | set(theirs)):
            if name not in _IDENTITIES and ours.get(name) != theirs.get(name):
                yield ModelChange(
                    sort=RECIPE, where=f"{asset}: {name}", a=_shown(ours.get(name)), b=_shown(theirs.get(name))
                )


def _data(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    """Yield the differences in data: assets that only one model has, changed sources, and changed stage versions."""
    for asset in sorted(set(a) ^ set(b)):
        yield ModelChange(sort=DATA, where=asset, a=_held(a.get(asset)), b=_held(b.get(asset)))
    for asset in sorted((set(a) & set(b)) - _SAID_ELSEWHERE):
        ours, theirs = a[asset], b[asset]
        if ours.version != theirs.version or ours.libraries != theirs.libraries:
            yield ModelChange(sort=DATA, where=f"{asset}: version", a=_version(ours), b=_version(theirs))
        elif ours.digest != theirs.digest and _reads_the_same(ours, theirs, a, b) and ours.params == theirs.params:
            yield ModelChange(sort=DATA, where=asset, a=_held(ours), b=_held(theirs))


def _reads_the_same(ours: Manifest, theirs: Manifest, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> bool:
    """Return True if the inputs that two manifests share have the same digests."""
    shared = [name for name in set(ours.inputs) & set(theirs.inputs) if name in a and name in b]
    return all(ours.inputs[name] == theirs.inputs[name] for name in shared)


def _held(manifest: Manifest | None) -> str:
    return ABSENT if manifest is None else f"{manifest.digest[:12]}, {manifest.rows:,} rows"


def _version(manifest: Manifest) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(manifest.libraries.items()))
    return f"{manifest.version}; {libraries}" if libraries else manifest.version


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings and lists with their dotted names."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from flat(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for i, below in enumerate(value):
            yield from flat(below, f"{name}[{i}]")
    else:
        yield name, value


def _shown(value: Any) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


MODEL_ASSET = "weights"
#: Folder in a Hugging Face Hub cache. It contains links into the neighboring folder `blobs/`.
SNAPSHOTS = "snapshots"


def weights(ctx: Context, folder: Path) -> Manifest:
    """Copy the model in a folder into the store.

    Raises:
        MissingError: the folder lacks weights in safetensors format, a configuration or a tokenizer.
        SourceError: a file is a link that leaves the folder, is off limits (`storage.off_limits`), or cannot be read.
    """
    found = {path.name for path in folder.glob("*.safetensors")}
    found |= {name for name in (CONFIG, INDEX, TOKENIZER) if (folder / name).is_file()}
    lacking = [name for name in (CONFIG, TOKENIZER) if name not in found]
    if lacking or not any(name.endswith(".safetensors") for name in found):
        raise MissingError(
            f"{folder} is not a complete model folder",
            found=", ".join(sorted(found)) or "none of its files",
            expected=f"*.safetensors, {CONFIG} and {TOKENIZER}",
            remedy="save the model and a fast tokenizer with `save_pretrained`",
        )
    parts = []
    for name in sorted(found):
        with ctx.store.staging() as copy:
            with open_file(folder, name) as stream, copy.open("wb") as target:
                shutil.copyfileobj(stream, target)
            parts.append(Part(name=name, blob=ctx.store.put_file(copy)))
    return Manifest(asset=MODEL_ASSET, step=MODEL_ASSET, version="1", params={}, inputs={}, parts=tuple(parts))


def open_file(folder: Path, name: str) -> IO[bytes]:
    """Open a file of a model folder. A link may point to a file in the same folder or in the download cache that
    contains it.

    Raises:
        SourceError: the link points elsewhere, or the file is off limits (`storage.off_limits`) or cannot be read.
    """
    path, real = folder / name, (folder / name).resolve()
    home = (folder.parents[1] if folder.parent.name == SNAPSHOTS else folder).resolve()
    if not real.is_relative_to(home):
        raise SourceError(
            f"{path} points outside the model folder",
            found=f"a link to {real}",
            expected=f"a file in {home}",
            remedy="replace the link with the file itself",
        )
    with readable(str(path), "open"):
        return open_local(str(real), len(real.relative_to(home).parts) - 1)
