"""Asset `proxies`: generated items of five families, the answers of a checkpoint, and the stage that measures them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute import context
from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, by_name, part_table
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.measurement import ModelScores, Stats
from plinth.evaluation.statistics import Estimate, mean, ratio, share
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import BITS, Section, group, measure
from plinth.sections import of
from plinth.storage.parts import write_table
from plinth.storage.store import Store
from plinth_assets.framework import Stage, shared_owner
from plinth_assets.framework.present import interval, markdown, table
from plinth_extras.proxies import Proxies

# Items of the five families, each a pure function of seed, family and number, and the checks of their answers.
#
# A prompt has two solved examples and another question of the same kind. The broken answer is the right one with two
# neighboring characters exchanged, or the case of one changed, so that it no longer passes.

TOOL_CALL = re.compile(r"<call>(.*)</call>", re.DOTALL)

#: An answer ends at the first empty line.
END = "\n\n"

NAMES = ("Ada", "Ben", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kai", "Lea")
CITIES = ("Oslo", "Lima", "Cairo", "Accra", "Perth", "Quito", "Turin", "Hanoi", "Leeds", "Kyoto")
THINGS = ("apple", "stone", "river", "lamp", "bread", "cloud", "horse", "spoon", "violin", "garden", "ticket", "anchor")
MONTHS = ("January", "March", "April", "June", "July", "August", "October", "November")
MONTH_NUMBER = {"January": 1, "March": 3, "April": 4, "June": 6, "July": 7, "August": 8, "October": 10, "November": 11}
LETTERS = "bdfgklmnprstvz"
VOWELS = "aeiou"


@dataclass(frozen=True)
class Proxy:
    """Test item: a prompt, a correct and a broken answer, and the check with its arguments."""

    family: str
    number: int
    prompt: str
    answer: str
    broken: str
    check: str
    asked: Mapping[str, Any]


@dataclass(frozen=True)
class _Question:
    """Question with its correct answer. Also used for the examples in a prompt."""

    text: str
    answer: str
    check: str
    asked: Mapping[str, Any]

    @property
    def continuation(self) -> str:
        """Text that continues the question: the answer after a space, or unchanged if it starts with a line break."""
        return self.answer if self.answer.startswith("\n") else f" {self.answer}"


Asks = Callable[[Random], _Question]


def proxies(items: int, seed: int) -> list[Proxy]:
    """Return `items` generated test items per family, sorted by family."""
    return [_proxy(family, number, seed) for family in sorted(FAMILIES) for number in range(items)]


def _proxy(family: str, number: int, seed: int) -> Proxy:
    draw = Random(f"{seed}/{family}/{number}")
    asks = FAMILIES[family][number % len(FAMILIES[family])]
    examples = (asks(draw), asks(draw))
    last = asks(draw)
    while last.text in [one.text for one in examples]:
        last = asks(draw)
    prompt = "".join(f"{one.text}{one.continuation}\n\n" for one in examples) + last.text
    return Proxy(family, number, prompt, last.continuation, _broken(draw, last), last.check, last.asked)


def _broken(draw: Random, question: _Question) -> str:
    """Return a broken answer: the correct answer with one small change at a random position that makes the check fail.

    Raises:
        ValueError: no change of this kind breaks the answer. This is an error in the question.
    """
    answer = question.continuation
    places = list(range(1, len(answer) - 1))
    draw.shuffle(places)
    exchanged = [answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :] for at in places]
    recased = [answer[:at] + answer[at].swapcase() + answer[at + 1 :] for at in places]
    for changed in (*exchanged, *recased):
        if not passes(question.check, question.asked, changed):
            return changed
    raise ValueError(f"nothing breaks {answer!r}")


def _record(draw: Random) -> _Question:
    value = {"name": draw.choice(NAMES), "age": draw.randrange(8, 99)}
    kinds = {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}}
    text = f"Record: {value['name']}, {value['age']} years\nJSON:"
    return _Question(text, json.dumps(value), "valid_json", {"schema": _object(kinds)})


def _order(draw: Random) -> _Question:
    things = draw.sample(THINGS, 2)
    kinds = {"city": {"enum": list(CITIES)}, "items": {"type": "array", "items": {"type": "string"}, "minItems": 2}}
    value = {"city": draw.choice(CITIES), "items": things}
    text = f"Order: {' and '.join(things)} to {value['city']}\nJSON:"
    return _Question(text, json.dumps(value), "valid_json", {"schema": _object(kinds)})


def _bullets(draw: Random) -> _Question:
    things = draw.sample(THINGS, 3)
    text = f"List: {', '.join(things)}\nBullets:"
    answer = "\n".join(f"- {thing}" for thing in things)
    return _Question(text, f"\n{answer}", "pattern", {"pattern": r"(- [a-z]+\n){2}- [a-z]+"})


def _date(draw: Random) -> _Question:
    day, month, year = draw.randrange(1, 29), draw.choice(MONTHS), draw.randrange(1900, 2030)
    answer = f"{year:04d}-{MONTH_NUMBER[month]:02d}-{day:02d}"
    pattern = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    return _Question(f"Date: {day} {month} {year}\nISO:", answer, "pattern", {"pattern": pattern})


def _weather(draw: Random) -> _Question:
    city = draw.choice(CITIES)
    return _call(f"User: How is the weather in {city}?", "weather", {"city": city})


def _timer(draw: Random) -> _Question:
    minutes = draw.randrange(2, 90)
    return _call(f"User: Wake me in {minutes} minutes.", "timer", {"minutes": minutes})


def _call(text: str, name: str, arguments: Mapping[str, Any]) -> _Question:
    answer = f"<call>{json.dumps({'name': name, 'arguments': arguments})}</call>"
    return _Question(f"{text}\nTool:", answer, "tool_call", {"tools": TOOLS})


def _capitals(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    return _Question(f"In capitals: {thing}\nAnswer:", thing.upper(), "pattern", {"pattern": "[A-Z]+"})


def _quoted(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    return _Question(f"In double quotes: {thing}\nAnswer:", f'"{thing}"', "pattern", {"pattern": '"[a-z]+"'})


def _polite(draw: Random) -> _Question:
    thing = draw.choice(THINGS)
    text = f"Begin with Yes and end with a full stop: {thing}\nAnswer:"
    return _Question(text, f"Yes, the {thing}.", "pattern", {"pattern": r"Yes[ ,][^.!?]*\."})


def _copy(draw: Random) -> _Question:
    word = _word(draw)
    return _Question(f"Copy: {word}\nCopied:", word, "exactly", {"text": word})


def _look_up(draw: Random) -> _Question:
    table = {thing: _word(draw) for thing in draw.sample(THINGS, 3)}
    thing = draw.choice(sorted(table))
    rows = "; ".join(f"{key} = {value}" for key, value in table.items())
    return _Question(f"{rows}\n{thing} =", table[thing], "exactly", {"text": table[thing]})


def _word(draw: Random) -> str:
    """Return a random made-up word. A model can only copy the word from the prompt."""
    return "".join(draw.choice(LETTERS) + draw.choice(VOWELS) for _ in range(3))


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


TOOLS = {
    "weather": _object({"city": {"type": "string", "minLength": 1}}),
    "timer": _object({"minutes": {"type": "integer", "minimum": 1}}),
}

#: Kinds of question of each family, taken in turn.
FAMILIES: Mapping[str, tuple[Asks, ...]] = {
    "copying": (_copy, _look_up),
    "format": (_bullets, _date),
    "instruction": (_capitals, _quoted, _polite),
    "json": (_record, _order),
    "tool_call": (_weather, _timer),
}


def passes(check: str, asked: Mapping[str, Any], text: str) -> bool:
    """Return True if the text before the first empty line passes the check."""
    return _CHECKS[check](asked, text.split(END)[0].strip(" \n"))


def valid_json(asked: Mapping[str, Any], text: str) -> bool:
    """Return True if the whole text is JSON that matches the JSON Schema in `schema`."""
    try:
        return _fits(asked["schema"], json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return False


def tool_call(asked: Mapping[str, Any], text: str) -> bool:
    """Return True if the text is a `<call>` of one of `tools`, with arguments that match the tool's schema."""
    found = TOOL_CALL.fullmatch(text)
    try:
        call = json.loads(found[1], parse_constant=_refuse) if found else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        return False
    schema = asked["tools"].get(call["name"])
    return schema is not None and _fits(schema, call["arguments"])


def pattern(asked: Mapping[str, Any], text: str) -> bool:
    """Return True if the whole answer matches the regular expression `pattern`."""
    return re.fullmatch(asked["pattern"], text) is not None


def exactly(asked: Mapping[str, Any], text: str) -> bool:
    """Return True if the answer equals `text`."""
    return bool(text == asked["text"])


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    return bool(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


_CHECKS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    "valid_json": valid_json,
    "tool_call": tool_call,
    "pattern": pattern,
    "exactly": exactly,
}

ASSET = "proxies"
VERSION = "2"
FILE = "items.parquet"

#: One row per item: `passed` is True if the model's answer passes, `bits` and `broken_bits` are the -log2 p of the
#: correct and of the broken answer, which have `bytes` each.
ITEMS = pa.schema(
    [
        pa.field("family", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("output", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("broken_bits", pa.float64(), nullable=False),
    ]
)

Rows = Sequence[Mapping[str, Any]]


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage of the asset `proxies`, or an empty list if the recipe does not enable it."""
    given = of(recipe.evaluation, "proxies", Proxies)
    if given is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=("checkpoint",),
            make=lambda ctx, inputs, _: run(ctx, given, inputs["checkpoint"]),
            version=VERSION,
            params=given.model_dump(mode="json"),
            libraries=fingerprint.libraries("jsonschema"),
            group="evaluation",
            description="Product proxies, checked by code: JSON that follows a schema, formats, tool calls, "
            "instructions.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            schema=ITEMS,
            present=_present,
            pool="training",
        )
    ]


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    families = made.stats["families"] | {"all": made.stats["overall"]}
    rows = [
        [family, name, found["value"], interval(found), found["n"]]
        for family, own in families.items()
        for name, found in own.items()
    ]
    return {"scores": markdown(table(["family", "score", "value", "95% interval", "items"], rows))}


def run(ctx: Context, params: Proxies, checkpoint: Manifest) -> Manifest:
    """Measure a checkpoint on all items. The manifest has one part: a table with the columns of `ITEMS`.

    Stats: `families` (family -> `passed`, `prefers`, `margin` in bits, `bits_per_byte`, each with interval and n),
    `overall` (these metrics over all families), `seed`.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or evaluated.
    """
    libraries = fingerprint.libraries("jsonschema")
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"), libraries=libraries)

    def made() -> list[Part]:
        asked = proxies(params.items, params.seed)
        with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:
            rows = answered(engine, asked, params.max_tokens)
        table = pa.Table.from_pylist(rows, schema=ITEMS)
        return [write_table(ctx.store, FILE, table, stats=summary(rows, params.seed))]

    parts = context.cached(ctx, step, [checkpoint], made)
    return context.manifest(ASSET, step, {"checkpoint": checkpoint}, parts, parts[0].stats)


def answered(engine: ModelEngine, asked: Sequence[Proxy], max_tokens: int) -> list[dict[str, Any]]:
    """Return a row of `ITEMS` for each item: the model's answer, and the likelihoods of the correct and the broken
    answer."""
    pairs = [Request(one.prompt, answer) for one in asked for answer in (one.answer + END, one.broken + END)]
    bits = engine.likelihoods(pairs).bits.reshape(-1, 2)
    written = engine.generate([one.prompt for one in asked], Sampling(max_tokens=max_tokens, stop=(END,)))
    return [
        {
            "family": one.family,
            "number": one.number,
            "prompt": one.prompt,
            "answer": one.answer,
            "output": found.text,
            "passed": passes(one.check, one.asked, found.text),
            "bytes": len((one.answer + END).encode()),
            "bits": float(right),
            "broken_bits": float(broken),
        }
        for one, found, (right, broken) in zip(asked, written, bits, strict=True)
    ]


def summary(rows: Rows, seed: int) -> dict[str, Any]:
    """Return the estimates of pass rate, preference, margin and bits per byte, by family and overall."""
    families = sorted({row["family"] for row in rows})
    found = {family: _estimates([row for row in rows if row["family"] == family], seed) for family in families}
    return {"families": found, "overall": _estimates(rows, seed), "seed": seed}


def _estimates(rows: Rows, seed: int) -> dict[str, Any]:
    margins = [row["broken_bits"] - row["bits"] for row in rows]
    made: dict[str, Callable[[], Estimate]] = {
        "passed": lambda: share(sum(row["passed"] for row in rows), len(rows)),
        "prefers": lambda: share(sum(margin > 0 for margin in margins), len(rows)),
        "margin": lambda: mean(margins),
        "bits_per_byte": lambda: ratio([row["bits"] for row in rows], [row["bytes"] for row in rows], seed=seed),
    }
    return {name: make().model_dump(mode="json") for name, make in made.items()}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the paired results of two models for each family: passed items, and bits of the correct answers."""
    sides = [part_table(store, made, FILE) for made in (a, b)]
    for what, value, weight in (("passed", "passed", None), (BITS, "bits", "bytes")):
        yield from by_name(ASSET, "family", what, sides, value, weight, item="number", text="prompt")


def scores(made: Manifest) -> ModelScores:
    """Return a model's scores on the product proxies, by family."""
    groups = {f"{ASSET}/{family}": found for family, found in made.stats["families"].items()}
    return ModelScores(dataset=ASSET, digest=fingerprint.digest(made.params), groups=groups)


def section(_: str, stats: Stats) -> Section:
    """Return the page section on product proxies."""
    families = stats["families"] | {"all": stats["overall"]}
    passed = [measure(name, own["passed"]) for name, own in families.items()]
    prefers = [measure(name, own["prefers"], reference=0.5) for name, own in families.items()]
    return Section(
        key=ASSET,
        title="Product proxies",
        lead="Generated items, checked by code: pass rate, and preference for the correct answer over a broken one.",
        groups=(
            group("Pass rate", "share", "higher", "", passed),
            group("Preference accuracy", "share", "higher", "chance", prefers),
        ),
    )
