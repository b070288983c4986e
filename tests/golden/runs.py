"""Run configurations drawn over every key of `training`, and the identities of the runs that they give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from plinth.errors import RecipeError
from plinth.tokens.order.steps import schedule
from plinth.training.config import UNIDENTIFIED, RunConfig, identity, run_key
from plinth.training.parameters.initial import InitialState
from plinth.training.parameters.run import Training
from plinth.training.preparation import RESOLVED
from plinth_extras.distillation import TeacherState
from plinth_extras.privacy import PrivacyState

COUNT = 200
#: Attempts at a configuration that sets one key.
TRIES = 4000
MIXTURE, TOKENIZER, PARENT, TEACHER, SECRET = ("".join(letter * 64) for letter in "abcde")
SEQUENCES, SEQUENCE_TOKENS = 4096, 64
#: Values of choices that a validator of `Training` refuses in every combination.
REFUSED = {
    "guard.activations=skip", "guard.layer_gradient=skip", "guard.idle_experts=skip",
    "guard.throughput=lower_lr", "guard.throughput=rollback", "guard.throughput=skip",
    "extensions",  # an installed package has each
}  # fmt: skip
#: Values of keys whose schema is free.
KNOWN: dict[str, list[Any]] = {
    "model.experts": [
        {"count": 4, "active": 2, "ffn_dim": 16, "shared": 1, "dense_first": 1, "normalize_top_k": True}
        | {"score": "sigmoid", "scale": 2.5, "balancing": "loss_free", "bias_rate": 0.01},
        {"every": 2, "score": "softmax", "balancing": "auxiliary", "auxiliary_coefficient": 0.5}
        | {"z_loss_coefficient": 0.0},
        {"ffn_dim": 704, "normalize_top_k": False},  # of olmoe, whose layers are all sparse
    ],
    "model.rotary_fraction": [0.5],
    "model.window.layers": [["sliding", "full"], ["full", "sliding", "sliding"]],
    "optimizer.kind": ["muon"],
    "optimizer.options": [{"momentum": 0.9, "scale": "spectral"}],
    "optimizer.horizons": [[0.5]],
    "checkpoints.average": [{"ema": True}, {"last": 3, "ema": False}, {"steps": [4, 8]}],
    "deepspeed": [{"gradient_predivide_factor": 2.0}, {"wall_clock_breakdown": True}],
    "launch.kind": ["local", "slurm", "ray", "kubernetes"],
    "launch.options": [{"partition": "long"}],
    "federated.sites": [["north", "south"]],
    "federated.site": ["north"],
    "federated.exchange": ["/exchange"],
    "checkpoints.upload": ["s3://bucket/runs"],
    "launch.ray.address": ["https://ray.example:8265"],
    "launch.kubernetes.user": ["1000:1000"],
    "distillation.teacher": ["parent@champion", "parent-0123456789ab:20"],
    "telemetry.profile_steps": [[3, 5]],
}
#: Sections that another section requires.
COMPANIONS: dict[str, dict[str, Any]] = {
    "privacy": {"guard": {"enabled": False}},
    "stopping": {"validation": {}},
    "checkpoints": {"optimizer": {"ema_decay": 0.99}},
    "replay_checks": {"launch": {"ranks": 2}},
}

#: Values that a run states differently from its recipe.
STATED = (*RESOLVED, "distillation", "privacy")

Given = dict[str, Any]


def identities(given: Given) -> str:
    """Identity of the run of a `training` section, and of its checkpoints before the first and after the last step."""
    training = Training.model_validate(given)
    initial = PARENT if training.initial else ""
    teacher = TEACHER if training.distillation else ""
    config = bound(training)
    found = (
        run_key(training, MIXTURE, TOKENIZER, initial, teacher),
        identity(config),
        identity(config, config.total_steps),
    )
    return " ".join(each[:12] for each in found)


def bound(training: Training) -> RunConfig:
    """The run of a `training` section on data that is only named, as `plinth.training.preparation` resolves it."""
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    steps = schedule(SEQUENCES, SEQUENCE_TOKENS, training.global_batch_sequences, *changes)
    own, taught, private = training.initial, training.distillation, training.privacy
    return RunConfig(
        **{name: getattr(training, name) for name in Training.model_fields if name not in STATED},
        **{"run_id": "golden", "key": "f" * 64, "recipe": "golden", "workspace": "/workspace"},
        **{"vocab_size": 512, "end_of_text": 0, "sequences": SEQUENCES, "sequence_tokens": SEQUENCE_TOKENS},
        **{"total_steps": steps.total, "mixture": MIXTURE, "tokenizer": TOKENIZER, "shards": {"web": "9" * 64}},
        initial=own and InitialState(manifest=PARENT, **own.model_dump(include={"optimizer", "vocabulary"})),
        distillation=taught and TeacherState(manifest=TEACHER, **taught.model_dump(include={"share", "temperature"})),
        privacy=private
        and PrivacyState(
            **private.model_dump(exclude={"noise_multiplier"}),
            noise_multiplier=private.noise_multiplier or 1.0,
            sample_rate=1 / steps.total,
            secret_sha256=SECRET,
        ),
    )


def lacking(recorded: list[Given]) -> list[str]:
    """Keys of `training` that no configuration sets, and values of choices that none has."""
    seen = {item for given in recorded for item in _items(given, "")}
    return sorted({want for want in _wanted() if want not in seen})


def renewed(recorded: list[Given]) -> list[Given]:
    """The recorded configurations that are still valid, with further ones until all keys are covered.

    What `lacking` still names then is refused by `Training` in every combination that was drawn.
    """
    kept = [given for given in recorded if _is_valid(given)]
    rng = random.Random(f"golden {len(kept)}")
    schema = Training.model_json_schema()
    for want in lacking(kept):
        if want not in REFUSED and want in lacking(kept):
            kept += _drawn(want, schema, rng)
    while len(kept) < COUNT:
        kept += _drawn("", schema, rng)
    return kept


def _drawn(want: str, schema: Given, rng: random.Random) -> list[Given]:
    """A valid configuration that has the wanted item, if one is found."""
    section = want.partition("=")[0].partition(".")[0].removesuffix("[]")
    identified = [name for name in schema["properties"] if name not in UNIDENTIFIED]
    for _ in range(TRIES):
        others = rng.sample(identified, rng.choice((1, 2, 3) if section in UNIDENTIFIED or not want else (0, 0, 1)))
        names = sorted({*others, section} - {""})
        given = {name: _value(schema, schema["properties"][name], name, rng) for name in names}
        for name in names:
            given = COMPANIONS.get(name, {}) | given
        if (not want or want in set(_items(given, ""))) and _is_valid(given):
            return [given]
    return []


def _is_valid(given: Given) -> bool:
    try:
        identities(given)
    except (ValueError, TypeError, RecipeError):  # the last: an extension that is not installed
        return False
    return True


def _node(schema: Given, node: Given) -> Given:
    """A part of the schema without references and without null as an alternative."""
    while "$ref" in node or "anyOf" in node:
        if "anyOf" in node:
            node = next((one for one in node["anyOf"] if one.get("type") != "null"), node["anyOf"][0])
        else:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _value(schema: Given, node: Given, path: str, rng: random.Random) -> Any:
    node = _node(schema, node)
    if path in KNOWN:
        return rng.choice(KNOWN[path])
    if "enum" in node or "const" in node:
        return rng.choice(node.get("enum") or [node["const"]])
    if "properties" in node:
        needed = set(node.get("required", ()))
        names = [name for name in node["properties"] if name in needed or rng.random() < 0.3]
        names = names or [rng.choice(list(node["properties"]))]
        return {name: _value(schema, node["properties"][name], f"{path}.{name}", rng) for name in names}
    if node["type"] == "array":
        return [_value(schema, node["items"], f"{path}[]", rng)]
    return _plain(node, rng)


def _plain(node: Given, rng: random.Random) -> Any:
    """A value of a type without parts."""
    match node["type"]:
        case "integer":
            return rng.randint(*map(int, _bounds(node)))
        case "number":
            return float(f"{rng.uniform(*_bounds(node)):.3g}")
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return rng.choice(["alpha", "beta"])
        case "object":
            inner = node.get("additionalProperties")
            return {"alpha": _plain(inner, rng) if isinstance(inner, dict) and "type" in inner else "beta"}
    return None


def _bounds(node: Given) -> tuple[float, float]:
    low = node.get("minimum", node.get("exclusiveMinimum", 0))
    return low, node.get("maximum", node.get("exclusiveMaximum", 2 * max(abs(node.get("default") or 0), low, 4)))


def _wanted() -> Iterator[str]:
    """Every key of `training` as `section.key`, and each choice of it as `section.key=value`."""
    schema = Training.model_json_schema()

    def walk(node: Given, path: str) -> Iterator[str]:
        node = _node(schema, node)
        if "properties" in node:
            for name, inner in node["properties"].items():
                yield from walk(inner, f"{path}.{name}")
        elif "items" in node and path not in KNOWN:
            yield from walk(node["items"], f"{path}[]")
        elif "enum" in node or node.get("type") == "boolean":
            yield from (f"{path}={value}" for value in node.get("enum", (False, True)))
        elif "const" not in node and node.get("type") != "null":
            yield path

    for name, node in schema["properties"].items():
        yield from walk(node, name)


def _items(given: Any, path: str) -> Iterator[str]:
    """The keys that a configuration sets, each also with its value."""
    yield from (path, f"{path}={given}")
    if isinstance(given, dict):
        for name, inner in given.items():
            yield from _items(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(given, list) and path not in KNOWN:
        for inner in given:
            yield from _items(inner, f"{path}[]")
