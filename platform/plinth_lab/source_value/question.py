"""Key `source` in an experiment file, which asks if a source is worth its price.

The experiment has two arms, `without` and `with` the source. The sizes of the experiment are two uses of the source:

    proxy    from new weights, with a share of the source in every phase of the recipe's mixture
    anneal   from a mid-run checkpoint, with a share of the source in the last phase, while the rate falls to 0

In each use, both arms train on the same number of tokens, with the tokenizer of the text without the source.

A sample may decide the question before anything is trained. If a source is too small for its share, or contains the
test text, an error names the source. If a source has enough text but too little new text, the answer is no, because no
run could have its share of new text. The answer is also no if the tokenizer splits its text into too many tokens: the
pipeline would not publish a tokenizer for such a bucket, so no run with it could start.

`plinth corpus source value --train` writes the question as an experiment file,
`workspace/experiments/value-NAME/question.yaml`, which `plinth experiment run` and `show` also accept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field

from plinth.corpus.sources.parameters import Bucket, Source
from plinth.errors import MissingError, RecipeError, RequestError
from plinth.evaluation import statistics
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.tokens.mixture.parameters import Phase

WITHOUT, WITH = "without", "with"
PROXY, ANNEAL = "proxy", "anneal"
#: The bucket of the source in the recipe of the arm `with`.
BUCKET: Final = "new"
#: Keys that affect the verdict but no run.
PRICE = {"price", "currency", "least_gain"}
#: Keys of a phase that allow a share for the source.
PLAIN = {"name", "fraction", "weights", "to_weights"}


class Annealing(Frozen):
    """Second use of the source: both arms continue from a mid-run checkpoint while the learning rate falls to 0."""

    checkpoint: str = Field(min_length=1, description="Checkpoint to start from: `RUN:STEP` in this workspace.")
    tokens: int = Field(gt=0, description="Number of annealing tokens per arm.")
    share: float | None = Field(
        None, gt=0, lt=1, description="Share of the source in the annealing tokens (default: `source.share`)."
    )
    lr: float | None = Field(None, gt=0, description="Initial learning rate (default: the recipe's peak rate).")
    optimizer: Literal["kept", "fresh"] = Field("kept", description="Initial state (`training.initial.optimizer`).")


class SourceQuestion(Source):
    """Source as described in a recipe, with its price and its share of the training text."""

    policy: str = Field("default", description="Name of the recipe's policy for the source's documents.")
    price: float = Field(ge=0, allow_inf_nan=False, description="One-time price to pay for the whole source.")
    currency: str = Field("USD", min_length=1, max_length=8, description="Currency of the price.")
    share: float = Field(gt=0, lt=1, description="Share of the source in the training tokens of the arm `with`.")
    least_gain: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Minimum gain in bits per byte that is worth the price. With 0, any gain is enough.",
    )
    sample_mb: float = Field(32.0, gt=0, le=4096, description="Size of the sample to read from the source, in MB.")
    anneal: Annealing | None = Field(None, description="Also test the source by annealing a checkpoint.")

    def arms(self) -> dict[str, dict[str, Any]]:
        """Return the two arms with empty overlays. The method `overlay` returns the keys that each arm changes."""
        return {WITHOUT: {}, WITH: {}}

    def base(self) -> str:
        """Return the name of the base arm, which trains without the source."""
        return WITHOUT

    def sizes(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the sizes of the experiment: the sizes in the file or a single one, and `anneal` if annealing is
        requested."""
        return {**(given or {PROXY: {}}), **({ANNEAL: self._annealing()} if self.anneal else {})}

    def share_of(self, size: str) -> float:
        """Return the share of the source in the training tokens at a size of the experiment."""
        return (self.anneal.share if self.anneal and size == ANNEAL else None) or self.share

    def overlay(self, recipe: Recipe, size: str, arm: str) -> dict[str, Any]:
        """Return the recipe keys that an arm changes at a size of the experiment.

        Raises:
            RecipeError: the recipe has no mixture, a mixture in which no share can be set, or a bucket of this name.
        """
        phases = self._phases(recipe)
        if size == ANNEAL:
            phases = [phases[-1].model_copy(update={"fraction": 1.0})]
        if arm == WITHOUT:
            return {"mixture": {"phases": [_plain(one) for one in phases]}} if size == ANNEAL else {}
        given = written(self)
        known = recipe.tokenizer.sample_weights  # the tokenizer is that of the text that is there
        weights = {name: known.get(name, 1.0) for name in recipe.corpus.buckets} | {BUCKET: 0.0}
        bucket = {"description": "A source of which the value is asked.", "owner": "nobody yet", "sources": [given]}
        return {
            "corpus": {"buckets": {BUCKET: {**bucket, "policy": self.policy}}},
            "tokenizer": {"sample_weights": weights},
            "mixture": {"phases": [self._with_share(one, self.share_of(size)) for one in phases]},
        }

    def _annealing(self) -> dict[str, Any]:
        assert self.anneal is not None
        optimizer: dict[str, Any] = {"schedule": "linear", "warmup_fraction": 0, "min_lr": 0, "start_lr": 0}
        optimizer |= {"horizons": []} | ({"lr": self.anneal.lr} if self.anneal.lr else {})
        initial = {"checkpoint": self.anneal.checkpoint, "optimizer": self.anneal.optimizer}
        return {
            "tokenizer": {"kind": "initial"},
            "mixture": {"total_tokens": self.anneal.tokens},
            "training": {"initial": initial, "optimizer": optimizer},
        }

    def _phases(self, recipe: Recipe) -> list[Phase]:
        if recipe.mixture is None:
            raise RecipeError(
                f"the recipe {recipe.name} has no mixture in which the source could have a share",
                expected="a section `mixture` with phases and their weights",
            )
        if BUCKET in recipe.corpus.buckets:
            raise RecipeError(
                f"the recipe {recipe.name} has a bucket {BUCKET}; the source in the arm `{WITH}` needs this name",
                remedy="rename the bucket in a copy of the recipe",
            )
        for phase in recipe.mixture.phases:
            said = {name for name in phase.model_fields_set if getattr(phase, name) != Phase.model_fields[name].default}
            keys = [*(phase.weights or ()), *(phase.to_weights or ())]
            wide = [key for key in keys if key.partition("/")[0] not in recipe.corpus.buckets]
            if odd := sorted(said - PLAIN - {"upsample", "epochs", "tokens"}) + [
                name for name in ("upsample", "epochs", "tokens") if getattr(phase, name)
            ] + wide:  # fmt: skip
                raise RecipeError(
                    f"the share of the source cannot be set in phase {phase.name} of the recipe {recipe.name}",
                    found=", ".join(odd),
                    expected="a phase with only weights by bucket or stream",
                    remedy="set phases with plain weights under `common: {mixture: {phases: …}}`",
                )
        return list(recipe.mixture.phases)

    def _with_share(self, phase: Phase, share: float) -> dict[str, Any]:
        """Return a mixture phase with the source's share in which the other streams keep their relative weights."""
        found = _plain(phase)
        for name in ("weights", "to_weights"):
            if weights := found.get(name):
                whole = sum(weights.values())
                found[name] = {key: (1 - share) * weight / whole for key, weight in weights.items()} | {BUCKET: share}
        return found


def written(source: Source) -> dict[str, Any]:
    """Return a source as recipe keys, including fields that a plain dump leaves out."""
    found = source.model_dump(mode="json", include=set(Source.model_fields), exclude_unset=True)
    return found | ({"fields": dict(source.fields)} if source.fields else {})


def _plain(phase: Phase) -> dict[str, Any]:
    return phase.model_dump(mode="json", include=PLAIN, exclude_none=True)


def needed(share: float, tokens: int, max_epochs: float) -> int:
    """Return the number of new tokens that a source must have for its share of a run's text."""
    return math.ceil(share * tokens / max_epochs)


def require_meaning(found: Mapping[str, Any], needs: Mapping[str, int]) -> None:
    """Require that a source can be evaluated.

    Args:
        found: result of `assessment.assess`.
        needs: number of tokens that the source's share needs, by size.

    Raises:
        RequestError: the source contains test documents, or has too little text for its share.
    """
    if held := found.get("test", {}).get("held", 0):
        raise RequestError(
            "the source overlaps the test text",
            found=f"{held} of {found['test']['documents']} test documents are in the sample",
            expected="test text outside the source, because the arm with the source would train on it",
            remedy="use other test text, or remove these documents from the source",
        )
    nominal, most = found["effective"]["factors"]["nominal_tokens"], max(needs.values())
    if nominal < most:
        raise RequestError(
            "the source is too small for its share",
            found=f"{nominal:,.0f} tokens in the source, before any document is dropped",
            expected=f"at least {most:,}",
            remedy="lower `source.share`, train fewer tokens, or allow more passes with mixture.max_epochs",
        )


def refusal(found: Mapping[str, Any], needs: Mapping[str, int], least_rate: float) -> str:
    """Return the reason why a sample already decides against the source, or an empty string if arms must be trained.

    Args:
        least_rate: minimum bytes per token of every bucket in the tokenizer's audit.
    """
    most, need = most_new(found), max(needs.values())
    if most < need:
        nominal = found["effective"]["factors"]["nominal_tokens"]
        return (
            f"at most {most:,.0f} of the source's {nominal:,.0f} tokens pass the policy and are new (95%), but the "
            f"source's share of a run needs {need:,}"
        )
    rate = found["tokenizer"]["bytes_per_token"] if found["tokenizer"] else {"value": 0.0}
    if rate["value"] > 0 and rate["high"] < least_rate:
        return (
            f"the source's text has at most {rate['high']:.3g} bytes per token (95%) under the current tokenizer, but "
            f"a bucket needs {least_rate:g} (tokenizer.min_bytes_per_token)"
        )
    return ""


def most_new(found: Mapping[str, Any]) -> float:
    """Return an upper bound on the source's effective tokens: the upper end of their 95% interval.

    If the sample has no effective tokens, the bound follows from its number of documents.
    """
    tokens, documents = found["effective"]["tokens"], found["sample"]["documents"]
    if tokens and tokens["value"] > 0:
        return float(tokens["high"])
    if not documents or found["sample"]["source_bytes"] >= found["sample"]["of_bytes"]:
        return 0.0  # all of it was read
    share = statistics.upper_share(0, documents)
    return share * float(found["effective"]["factors"]["nominal_tokens"])


FILE = "question.yaml"
LONGEST = 24


def name_of(source: str) -> str:
    """Return the name of the experiment that evaluates a source: `value-forum` for `/data/forum.jsonl`."""
    stem = source.rstrip("/").rpartition("/")[2].partition(".")[0]
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "source"
    return f"value-{slug}"[:LONGEST].rstrip("-")


def path_of(workspace: Path, source: str) -> Path:
    """Return the path of the experiment file that evaluates a source."""
    return workspace / "experiments" / name_of(source) / FILE


def asked(workspace: Path, source: str) -> Path:
    """Return the path of the experiment file that evaluates a source.

    Raises:
        MissingError: there is no such file.
    """
    path = path_of(workspace, source)
    if not path.is_file():
        raise MissingError(
            f"no training run has evaluated the source {source}",
            found=f"no {path}",
            remedy=f"plinth corpus source value {source} --price PRICE --share SHARE --test FILE --train",
        )
    return path


def write(
    workspace: Path, source: str, bucket: Bucket, recipe: Path, test: str | None, given: Mapping[str, Any], seeds: int
) -> Path:
    """Write the experiment file that evaluates a source. The same arguments give the same file.

    Args:
        source: name as given by the user.
        bucket: the source and its policy.
        test: JSONL file with the test text.
        given: keys of `source` in addition to the bucket's keys: `price`, `share`, and other options of the user.

    Raises:
        RequestError: test text, price or share is missing, or the bucket has several sources.
    """
    lacking = [f"--{name}" for name in ("price", "share") if given.get(name) is None] + ([] if test else ["--test"])
    if lacking:
        raise RequestError(
            "evaluating a source by training requires " + " and ".join(lacking),
            expected="the source's price, its share of a run's text, and test text that no arm trains on",
            remedy=f"plinth corpus source value {source} --price 20000 --share 0.2 --test test.jsonl --train",
        )
    if len(bucket.sources) > 1:
        raise RequestError(
            f"{source} has {len(bucket.sources)} sources; the command evaluates one at a time",
            remedy="give the path of one source, with --kind and --licence",
        )
    (own,) = bucket.sources
    described = written(own) | {"policy": bucket.policy}
    data = {
        "name": name_of(source),
        "question": f"Is {source} worth its price?",
        "recipe": str(recipe.absolute()),
        "test": {"test": {"path": _place(workspace, str(test))}},
        "source": described | {name: value for name, value in given.items() if value is not None},
        "seeds": list(range(1, seeds + 1)),
    }
    path = path_of(workspace, source)
    write_bytes(path, str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)).encode())
    return path


def _place(workspace: Path, test: str) -> str:
    """Return the absolute path of a local file. Other names are relative to `input/` and returned unchanged."""
    return str(Path(test).absolute()) if "://" not in test and Path(test).is_file() else test
