"""Sliding windows in Hugging Face configurations: window, kind of each layer, rotary positions by kind. No torch.

    mistral, phi3           every layer slides, unless `sliding_window` is null
    ministral, qwen2/3      `layer_types` names the kind of each layer; all layers share their rotary positions
    granite_swa             as ministral; `layer_rope_theta` may give each layer its own rotary base
    olmo3                   as ministral; rotary scaling belongs to the full layers, and `rope_parameters` may give
                            each kind its own positions

Files without `layer_types` have the default of their family, as in `transformers`. A window counts the key of the
token itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from plinth.model.parameters import Model, SlidingWindow

Kind = Literal["sliding", "full"]

_KINDS: Final[Mapping[str, Kind]] = {"sliding_attention": "sliding", "full_attention": "full"}

#: Window of files of these families that do not mention it.
_TOKENS: Final[Mapping[str, int | None]] = {
    **dict.fromkeys(("mistral", "ministral", "qwen2", "qwen3", "olmo3"), 4096),
    "granite_swa": 128,
    "phi3": None,
}

#: Families whose layers are all alike.
_ALIKE: Final = ("mistral", "phi3")


def fields(model: Model, model_type: str, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of `config.json` that describe a model's sliding windows; none without windows.

    Args:
        scaling: the model's rotary scaling in Hugging Face's names.
    """
    kinds = ["full_attention" if window is None else "sliding_attention" for window in model.windows]
    if model_type == "granite_swa":
        bases = [model.with_positions_of(window).rope_theta for window in model.windows]
        tokens = {} if model.window is None else {"sliding_window": model.window.tokens}
        return tokens | {"layer_types": kinds, "layer_rope_theta": bases}
    if model.window is None:
        return {}
    if model_type in _ALIKE:
        return {"sliding_window": model.window.tokens}
    found = {"sliding_window": model.window.tokens, "layer_types": kinds}
    if model_type == "olmo3":
        return found | {"rope_parameters": _positions(model, model.window, scaling)}
    return found | ({"use_sliding_window": True} if model_type.startswith("qwen") else {})


def _positions(model: Model, window: SlidingWindow, scaling: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the rotary parameters of both kinds of layers."""
    full = {"rope_type": "default", "rope_theta": model.rope_theta, **(scaling or {})}
    sliding = {"rope_type": "default", "rope_theta": window.rope_theta} if window.rope_theta else full
    return {"full_attention": full, "sliding_attention": sliding}


def window_of(config: Mapping[str, Any]) -> SlidingWindow | None:
    """Return the sliding windows that a configuration describes, or None if every layer attends to all keys.

    Raises:
        ValueError: Plinth's decoder does not support the layers of the model.
    """
    family, tokens, kinds = config["model_type"], _tokens(config), _kinds(config)
    if len(kinds) != config["num_hidden_layers"]:
        raise ValueError(f"{len(kinds)} layer_types for {config['num_hidden_layers']} layers")
    if "sliding" not in kinds:
        return None
    if tokens is None or (family in _ALIKE and "full" in kinds):
        raise ValueError(f"layer_types sliding_attention in a model of type {family} without windows by layer")
    return SlidingWindow(tokens=tokens, layers=_shortest(kinds), rope_theta=_local_theta(config))


def _tokens(config: Mapping[str, Any]) -> int | None:
    """Return the number of keys in a configuration's window, or None if the family or the file has no window."""
    family = config["model_type"]
    if family not in _TOKENS or (family.startswith("qwen") and not config.get("use_sliding_window", False)):
        return None
    found: int | None = config.get("sliding_window", _TOKENS[family])
    return found


def _kinds(config: Mapping[str, Any]) -> list[Kind]:
    """Return the kinds of a configuration's layers, by the family's default if the file does not list them."""
    given, family, layers = config.get("layer_types"), config["model_type"], range(config["num_hidden_layers"])
    if given:
        if other := set(given) - _KINDS.keys():
            raise ValueError(f"layer_types {', '.join(sorted(other))}, expected {' or '.join(sorted(_KINDS))}")
        return [_KINDS[one] for one in given]
    if _tokens(config) is None:
        return ["full" for _ in layers]
    if family.startswith("qwen"):
        return ["sliding" if layer >= config.get("max_window_layers", 28) else "full" for layer in layers]
    if family == "granite_swa":
        return ["sliding" if layer % 4 else "full" for layer in layers]
    if family == "olmo3":
        return ["full" if layer % 4 == 3 else "sliding" for layer in layers]
    return ["sliding" for _ in layers]


def _shortest(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return the shortest pattern whose repetition begins with `kinds`."""
    lengths = range(1, len(kinds) + 1)
    period = next(n for n in lengths if all(kind == kinds[layer % n] for layer, kind in enumerate(kinds)))
    return tuple(kinds[:period])


def rope_parameters(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rotary parameters of full and of sliding layers."""
    base, given = {"rope_theta": config["rope_theta"]}, config.get("rope_parameters") or {}
    if given.keys() & _KINDS.keys():
        return {name: base | (given.get(name) or {}) for name in _KINDS}
    full = base | (config.get("rope_scaling") or {}) | given
    if bases := config.get("layer_rope_theta"):
        return {name: full | {"rope_theta": _common(bases, config, name)} for name in _KINDS}
    plain = {"rope_theta": full["rope_theta"]}
    return {"full_attention": full, "sliding_attention": plain if config["model_type"] == "olmo3" else full}


def _common(bases: Sequence[float], config: Mapping[str, Any], name: str) -> float:
    """Return the rotary base that all layers of a kind share; of all layers if there are none of the kind."""
    own = {base for base, kind in zip(bases, _kinds(config), strict=True) if kind == _KINDS[name]}
    found = own or set(bases)
    if len(found) > 1 or not all(found):
        raise ValueError(f"layer_rope_theta {sorted(found)} in layers of {name}, expected one positive base")
    return found.pop()


def rope_type(rope: Mapping[str, Any]) -> str:
    """Return the kind of rotary scaling; old files have it as `type`."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def _local_theta(config: Mapping[str, Any]) -> float | None:
    """Return the rotary base of sliding layers with positions of their own, else None."""
    full, sliding = (rope_parameters(config)[name] for name in ("full_attention", "sliding_attention"))
    if sliding == full:
        return None
    if (kind := rope_type(sliding)) != "default":
        raise ValueError(f"rope_type {kind!r} in sliding layers only, expected default")
    return float(sliding["rope_theta"])
