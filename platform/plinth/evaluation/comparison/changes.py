"""What differs between two models: in recipe, data and steps, read from the manifests that they came of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plinth.errors import PlinthError
from plinth.model.hugging_face import TOKENIZER
from plinth.records import Frozen, Manifest
from plinth.storage.state import Refs
from plinth.storage.store import Store
from plinth.tokens.tokenizer.template import same_tokenizer

RECIPE, DATA, STEPS = "recipe", "data", "steps"
ABSENT = "-"
#: Identities that differ whenever anything does.
_IDENTITIES = frozenset({"key", "run_id"})
#: Assets from which a stage was chosen: enough is said by their own parameters.
_SAID_ELSEWHERE = frozenset({"checkpoint", "run"})


class ModelChange(Frozen):
    """One difference. `sort` is recipe, data or steps; `where` names an asset and its parameter."""

    sort: str
    where: str
    a: str
    b: str


def changes(refs: Refs, a: Manifest, b: Manifest) -> list[ModelChange]:
    """Differences between two checkpoints, steps first, then recipe, then data.

    An asset that differs only because what it reads differs has no line of its own.
    """
    ours, theirs = ancestry(refs, a), ancestry(refs, b)
    if not a.inputs or not b.inputs:
        return [ModelChange(sort=DATA, where="origin", a=_origin(a), b=_origin(b)), *_steps(ours, theirs)]
    return [*_steps(ours, theirs), *_recipe(ours, theirs), *_data(ours, theirs)]


def cut_alike(store: Store, a: Manifest, b: Manifest) -> bool:
    """True if two checkpoints have the same tokenizer."""
    ours, theirs = (one.named(TOKENIZER) for one in (a, b))
    if not (ours and theirs):
        return ours == theirs
    return same_tokenizer(store, ours[0].blob, theirs[0].blob)


def ancestry(refs: Refs, manifest: Manifest) -> dict[str, Manifest]:
    """Manifests that a checkpoint came of, itself too, by asset; those that are gone are left out."""
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
    """Parameters of every stage that differ."""
    for asset in sorted(set(a) & set(b)):
        ours, theirs = (dict(flat(side[asset].params)) for side in (a, b))
        for name in sorted(set(ours) | set(theirs)):
            if name not in _IDENTITIES and ours.get(name) != theirs.get(name):
                yield ModelChange(
                    sort=RECIPE, where=f"{asset}: {name}", a=_shown(ours.get(name)), b=_shown(theirs.get(name))
                )


def _data(a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[ModelChange]:
    """Assets that only one has, sources whose files differ, and stages of another version."""
    for asset in sorted(set(a) ^ set(b)):
        yield ModelChange(sort=DATA, where=asset, a=_held(a.get(asset)), b=_held(b.get(asset)))
    for asset in sorted((set(a) & set(b)) - _SAID_ELSEWHERE):
        ours, theirs = a[asset], b[asset]
        if ours.version != theirs.version or ours.libraries != theirs.libraries:
            yield ModelChange(sort=DATA, where=f"{asset}: version", a=_version(ours), b=_version(theirs))
        elif ours.digest != theirs.digest and _reads_the_same(ours, theirs, a, b) and ours.params == theirs.params:
            yield ModelChange(sort=DATA, where=asset, a=_held(ours), b=_held(theirs))


def _reads_the_same(ours: Manifest, theirs: Manifest, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> bool:
    """Whether what two manifests read is the same, so that they differ by themselves; or differs outside."""
    shared = [name for name in set(ours.inputs) & set(theirs.inputs) if name in a and name in b]
    return all(ours.inputs[name] == theirs.inputs[name] for name in shared)


def _held(manifest: Manifest | None) -> str:
    return ABSENT if manifest is None else f"{manifest.digest[:12]}, {manifest.rows:,} rows"


def _version(manifest: Manifest) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(manifest.libraries.items()))
    return f"{manifest.version}; {libraries}" if libraries else manifest.version


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists with their dotted names."""
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
