"""The whole recipe, and checks that need more than one section."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.corpus.canaries import LONGEST, SHORTEST, Canaries, document_tokens
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected.parameters import Contamination, Holdout, Protected
from plinth.corpus.slices.rates import GateSlices
from plinth.corpus.sources.inventory import PER_DOCUMENT
from plinth.corpus.sources.parameters import Bucket, Documents, Illegal
from plinth.errors import RecipeError
from plinth.evaluation.parameters import Evaluation, Probes
from plinth.records import Frozen, Name, internal
from plinth.sections import SECTIONS, extended
from plinth.tokens.mixture.parameters import Mixture, nearest, problems
from plinth.tokens.order import steps
from plinth.tokens.order.steps import MisplacedChange, schedule
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import hooks
from plinth.training.parameters.initial import REPLAYED, InitialWeights
from plinth.training.parameters.optimizers import OPTIMIZERS, problems_with_division
from plinth.training.parameters.parallel import problems as problems_of_parallel
from plinth.training.parameters.parallel import problems_with_settings
from plinth.training.parameters.run import Training

if TYPE_CHECKING:
    from plinth.corpus.policy.compiled_policy import Rights


@extended("corpus")
class Corpus(Frozen):
    """Corpus section: everything from the sources to curated text (annotation, policies, deduplication)."""

    buckets: Mapping[Name, Bucket] = Field(min_length=1, description="Buckets by name.")
    documents: Documents = Documents()
    illegal: Illegal = Illegal()
    annotate: Mapping[str, Mapping[str, Any]] = Field(
        description="Annotators by name, each with its parameters (`{}` for the defaults)."
    )
    models: Mapping[Name, Mapping[str, Any]] = Field(
        default_factory=dict,
        description="Models trained by the pipeline on its own buckets, by name: `kind` and its parameters.",
    )
    lists: Mapping[Name, str] = Field(
        default_factory=dict,
        description="Your lists (blocked domains, words, hashes) by name: a file or folder, relative to `input/`.",
    )
    endpoints: Mapping[Name, Endpoint] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Servers of language models with an OpenAI-compatible API, by name; they are part of no identity.",
    )
    slices: Mapping[Name, GateSlices] = Field(
        default_factory=dict,
        description="Gates measured on labeled documents, by name (`quality`, `toxicity`, …), with their limits.",
    )
    policies: Mapping[Name, Policy] = Field(description="Policies by name; buckets refer to these names.")
    reference_buckets: tuple[Name, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="Buckets of trusted text of known quality. Default: the buckets that a model uses as `reference`.",
    )
    max_reference_removed: float = Field(
        0.01,
        ge=0,
        le=1,
        exclude_if=lambda given: given == 0.01,
        description="Maximum share of a reference bucket's documents, and of its bytes, that a rule based on a model "
        "may remove; if more is removed, the pipeline stops.",
    )
    dedup: Dedup = Dedup()
    holdout: Holdout = Holdout()
    contamination: Contamination = internal(
        Contamination(), description="Removal of training text that overlaps with the held-out set."
    )
    protected: Protected = Protected()
    canaries: Canaries | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Generated texts inserted into the training data to measure memorization. Omit to insert none.",
    )
    permitted_licences: tuple[str, ...] = Field(
        description="SPDX identifiers of allowed licenses. Documents under other licenses are always dropped, whatever "
        "the policies are."
    )
    uses: tuple[Literal["redistribute", "commercial"], ...] = Field(
        (), description="Uses of the text and the model in addition to training; sources and licenses must allow them."
    )
    licences_by_use: Mapping[Literal["redistribute", "commercial"], tuple[str, ...]] = Field(
        default_factory=dict,
        description="For each use, the licenses in `permitted_licences` that allow it. If a use is not listed, all "
        "permitted licenses allow it.",
    )

    def rights(self) -> Rights:
        """Return the license gate for the permitted licenses and uses of the recipe.

        The gate's module is imported in this method, because it needs compiled kernels.
        """
        from plinth.corpus.annotate.licence import LicenceParams
        from plinth.corpus.policy.compiled_policy import Rights

        by_use = {use: tuple(sorted(allowed)) for use, allowed in self.licences_by_use.items()}
        permitted, uses = tuple(sorted(self.permitted_licences)), tuple(sorted(self.uses))
        return Rights(licences=LicenceParams(permitted=permitted, uses=uses, **by_use))


class ReleaseParameters(Frozen):
    """Release section: registration of the checkpoint as a model."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the registered model.")
    auto_approve_as: str | None = Field(
        None, description="Demo only: sign the approval as this person, whose key must be on this machine."
    )

    @field_validator("name")
    @classmethod
    def _is_no_candidate(cls, name: str) -> str:
        if name.endswith("-candidate"):
            raise ValueError(
                f"{name!r} ends with -candidate, which is reserved for unreleased models; remove the suffix"
            )
        return name


#: First parts of asset keys, which are reserved and cannot be bucket names.
RESERVED = frozenset(
    {CANARIES, "dedup", "experiment", "memorisation", "lists", "models", "pii", "protected", "slices", "takedown"}
    | {"tokenizer"}
)

#: Sections that only a recipe with a mixture has.
FOLLOWS_MIXTURE = ("tokenizer", "shards", "training", "evaluation", "release")

#: Recipe key of the model whose tokenizer a run may keep, by `tokenizer.kind`.
KEPT = {"initial": "training.initial", "teacher": "training.distillation"}

#: A problem: its key and its message.
Found = tuple[tuple[str | int, ...], str]


class Recipe(Frozen):
    """Description of a run from raw corpus to approved checkpoint. No setting outside the recipe affects the result.

    A recipe with only `corpus` ends at curated text, funnel and ledger. `mixture` adds everything up to an evaluated
    checkpoint, and `release` adds the registered model.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the recipe and of its runs.")
    description: str = Field("", description="Purpose of the recipe, in one sentence.")
    harvest: bool = Field(False, description="Demo: first collect text from this machine into `input/`.")
    test: bool = Field(
        False,
        exclude_if=lambda given: not given,
        description="Marks a test recipe: labeled sets may be generated, and learned gates need no independent "
        "measurement.",
    )
    corpus: Corpus
    tokenizer: TokenizerParameters = TokenizerParameters()
    shards: Shards = Shards()
    mixture: Mixture | None = Field(
        None, description="Training data of the run. Without a mixture, the pipeline ends at the corpus."
    )
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    release: ReleaseParameters | None = Field(None, description="Registered model. Omit to register no model.")

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        problems = [*_names(self), *_policies(self), *_reference(self), *_samples(self), *_rewrites(self)]
        if self.mixture is None:
            problems += _without_mixture(self)
        else:
            problems += [*_phases(self, self.mixture), *_rates(self, self.mixture), *_batches(self, self.mixture)]
            problems += [*_parallel(self, self.mixture), *_canaries(self, self.mixture), *_begins(self)]
        problems += [problem for section in SECTIONS.usable() for problem in section.problems(self)]
        if problems:
            text = "; ".join(f"{'.'.join(map(str, key))}: {message}" for key, message in problems)
            raise PydanticCustomError("recipe", "{text}", {"text": text, "problems": problems})
        return self

    @property
    def probes(self) -> Probes | None:
        """Probes of the run; None if there is no run to evaluate, or if the recipe disables probes."""
        wanted = self.evaluation.probes
        return wanted if self.mixture is not None and wanted.names else None

    @property
    def kept_vocabulary(self) -> InitialWeights | None:
        """Initial model whose tokenizer the run keeps; None if the run trains its own tokenizer."""
        return {"initial": self.training.initial, **hooks.models(self.training)}.get(self.tokenizer.kind)

    def required_mixture(self) -> Mixture:
        """Return the mixture, or raise an error if the recipe has none.

        Raises:
            RecipeError: the recipe ends at the corpus.
        """
        if self.mixture is None:
            raise self._lacks("mixture")
        return self.mixture

    def required_release(self) -> ReleaseParameters:
        """Return the release section, or raise an error if the recipe has none.

        Raises:
            RecipeError: the recipe has no release.
        """
        if self.release is None:
            raise self._lacks("release")
        return self.release

    def _lacks(self, section: str) -> RecipeError:
        return RecipeError(
            f"the recipe {self.name} has no `{section}:`",
            expected=f"a recipe with the section `{section}`",
            remedy=f"add `{section}:` (see docs/recipe.md), or select another recipe with -r",
        )


def _without_mixture(recipe: Recipe) -> Iterator[Found]:
    """Report sections that no stage reads because the recipe has no training run."""
    for section in FOLLOWS_MIXTURE:
        if section in recipe.model_fields_set and getattr(recipe, section) is not None:
            yield (section,), "has no effect without `mixture`; add `mixture:`, or remove this section"
    if recipe.corpus.canaries is not None:
        yield ("corpus", "canaries"), "has no effect without `mixture`; add `mixture:`, or remove this key"


def _names(recipe: Recipe) -> Iterator[Found]:
    """Report names that collide in Dagster because it replaces `-` with `_`."""
    corpus = recipe.corpus
    sections: dict[tuple[str, ...], Iterable[str]] = {
        ("buckets",): corpus.buckets,
        ("models",): corpus.models,
        ("lists",): corpus.lists,
        ("slices",): corpus.slices,
        ("protected", "sets"): corpus.protected.sets,
    }
    for section, names in sections.items():
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(name.replace("-", "_"), name)
            if other != name:
                yield ("corpus", *section, name), f"collides with {other!r}: Dagster replaces `-` with `_`"
    for name in corpus.buckets:
        if name in RESERVED:
            yield (
                ("corpus", "buckets", name),
                f"{name} is reserved for assets of the pipeline; rename the bucket",
            )


def _policies(recipe: Recipe) -> Iterator[Found]:
    for name, bucket in recipe.corpus.buckets.items():
        if bucket.policy not in recipe.corpus.policies:
            have = sorted(recipe.corpus.policies)
            yield ("corpus", "buckets", name, "policy"), f"no policy {bucket.policy!r}; have {have}"


def _reference(recipe: Recipe) -> Iterator[Found]:
    for index, bucket in enumerate(recipe.corpus.reference_buckets):
        if bucket not in recipe.corpus.buckets:
            have = nearest(bucket, recipe.corpus.buckets)
            yield ("corpus", "reference_buckets", index), f"no bucket {bucket!r}{have}"


def _rewrites(recipe: Recipe) -> Iterator[Found]:
    """Report rewritten buckets that lack their origin, endpoint or prompt, or claim more rights than their origin."""
    corpus = recipe.corpus
    for name, bucket in corpus.buckets.items():
        if not bucket.rewrites:
            continue
        source, origin = bucket.sources[0], corpus.buckets.get(bucket.rewrites)
        at = ("corpus", "buckets", name, "sources", 0)
        if origin is None or origin.rewrites:
            what = "is itself rewritten" if origin else f"is not a bucket{nearest(bucket.rewrites, corpus.buckets)}"
            yield (*at, "path"), f"{bucket.rewrites!r} {what}"
        if source.licence != PER_DOCUMENT:
            yield (*at, "licence"), f"must be `{PER_DOCUMENT}`: a text keeps the license of its source"
        for use, allowed in source.terms:
            if allowed and origin and not all(getattr(one.terms, use) for one in origin.sources):
                yield (*at, "terms", use), f"is true, but the terms of a source of {bucket.rewrites} forbid it"
        if name in corpus.reference_buckets:
            yield ("corpus", "reference_buckets"), f"{name} is rewritten; trusted reference text comes from people"
        if not source.terms.train:
            yield (*at, "terms", "train"), "is false, so the bucket cannot be trained on"
        for option, section, have in (("endpoint", "endpoints", corpus.endpoints), ("prompt", "lists", corpus.lists)):
            if (wanted := source.options.get(option)) not in have:
                yield (*at, "options", option), f"{wanted!r} is not in `corpus.{section}`"


def _samples(recipe: Recipe) -> Iterator[Found]:
    for bucket in recipe.tokenizer.sample_weights:
        if bucket not in recipe.corpus.buckets:
            found = f"no bucket {bucket!r}; have {sorted(recipe.corpus.buckets)}"
            yield ("tokenizer", "sample_weights", bucket), found


def _phases(recipe: Recipe, mixture: Mixture) -> Iterator[Found]:
    for index, phase in enumerate(mixture.phases):
        at = ("mixture", "phases", index)
        for field, key in phase.named():
            for message in problems(key, recipe.corpus.buckets, recipe.shards.axes):
                yield (*at, field, key), message
        by = phase.curriculum.by if phase.curriculum else "bucket"
        for field, axis in (("temperature_over", phase.temperature_over), ("curriculum", by)):
            if axis not in ("stream", "bucket", *recipe.shards.axes):
                yield (*at, field), f"shards.axes has no axis {axis!r}{nearest(axis, recipe.shards.axes)}"
    for key in mixture.epoch_caps:
        for message in problems(key, recipe.corpus.buckets, recipe.shards.axes):
            yield ("mixture", "epoch_caps", key), message
    total = sum(phase.fraction for phase in mixture.phases)
    if abs(total - 1) > 1e-9:
        yield ("mixture", "phases"), f"fractions add up to {total:g}, expected 1"


def _rates(recipe: Recipe, mixture: Mixture) -> Iterator[Found]:
    optimizer = recipe.training.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield ("training", "optimizer", "min_lr"), f"{optimizer.min_lr:g} is above lr = {optimizer.lr:g}"
    total = mixture.total_tokens
    closing = optimizer.decay(total) if optimizer.schedule.startswith("wsd") else 0.0
    share = (optimizer.warmup(total) + closing) / total
    if share > 1:
        found = f"warm-up and decay add up to {share:g} of the run, expected at most 1"
        yield ("training", "optimizer", "warmup_fraction"), found


def _batches(recipe: Recipe, mixture: Mixture) -> Iterator[Found]:
    training = recipe.training
    ranks, micro = max(1, training.parallel.data_ranks(training.launch.ranks)), training.micro_batch_sequences
    wrong = list(steps.problems(training, ranks, micro, mixture.sequence_tokens))
    for key, message in wrong:
        yield ("training", *training.place(key)), message
    for key, length in steps.lengths(training):
        if length % training.parallel.sequence:
            found = f"{length} is not divisible by parallel.sequence = {training.parallel.sequence}"
            yield ("training", *training.place(key)), found
    sequences = mixture.total_tokens // mixture.sequence_tokens
    if sequences < training.global_batch_sequences:
        yield (
            ("mixture", "total_tokens"),
            f"{mixture.total_tokens} tokens are {sequences} sequences of {mixture.sequence_tokens} tokens, "
            f"fewer than one global batch ({training.global_batch_sequences})",
        )
    elif not wrong:
        yield from _misplaced(recipe, mixture, sequences)


def _begins(recipe: Recipe) -> Iterator[Found]:
    """Check that settings that need `training.initial` are set only together with it."""
    begun, kind = recipe.training.initial, recipe.tokenizer.kind
    if kind in KEPT and recipe.kept_vocabulary is None:
        yield ("tokenizer", "kind"), f"{kind} needs `{KEPT[kind]}`, which the recipe does not set"
    if begun is not None and begun.replay:
        for name in recipe.corpus.buckets:
            if name.startswith(REPLAYED):
                message = f"the prefix {REPLAYED} is reserved for training.initial.replay; rename the bucket"
                yield ("corpus", "buckets", name), message
    if begun is None and recipe.evaluation.against == "initial":
        yield ("evaluation", "against"), "initial needs `training.initial`, which the recipe does not set"


def _canaries(recipe: Recipe, mixture: Mixture) -> Iterator[Found]:
    """Check that sequence boundaries do not cut canary documents, and that the last step uses the last sequence."""
    if recipe.corpus.canaries is None:
        return
    lengths = [mixture.sequence_tokens, *(length for _, length in steps.lengths(recipe.training))]
    if document_tokens(gcd(*lengths)) is None:
        found = (
            f"the sequence lengths {', '.join(map(str, lengths))} have no common divisor from {SHORTEST} to {LONGEST}"
        )
        yield ("corpus", "canaries"), f"{found}, which a canary needs as its length"
    batches = recipe.training
    try:
        changes = (batches.batch_schedule, batches.length_schedule, batches.amendments)
        sequences = mixture.total_tokens // mixture.sequence_tokens
        used = schedule(sequences, mixture.sequence_tokens, batches.global_batch_sequences, *changes).used
    except RecipeError:  # reported by `_batches`
        return
    if used < sequences:
        total = used * mixture.sequence_tokens
        found = f"the last {sequences - used} sequences do not fill a step, and may contain canaries"
        yield ("mixture", "total_tokens"), f"{found}; expected {total}"


def _misplaced(recipe: Recipe, mixture: Mixture, sequences: int) -> Iterator[Found]:
    """Report a schedule change that starts after the last step. Without this check, the error would appear only after
    days of work on the corpus."""
    training = recipe.training
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    try:
        total = schedule(sequences, mixture.sequence_tokens, training.global_batch_sequences, *changes).total
    except MisplacedChange as error:
        yield ("training", *training.place(error.key)), error.why
        return
    for index, change in enumerate(training.rotary_schedule):
        if change.from_step > total:
            where = ("training", *training.place(("rotary_schedule", index)))
            yield where, f"rotary positions change at step {change.from_step:,}, but the run has {total:,} steps"


def _parallel(recipe: Recipe, mixture: Mixture) -> Iterator[Found]:
    training = recipe.training
    for key, message in problems_of_parallel(
        training.parallel,
        training.model,
        ranks=training.launch.ranks,
        sequence_tokens=mixture.sequence_tokens,
        precision=training.precision,
    ):
        yield ("training", "parallel", key), message
    for path, message in problems_with_settings(training.deepspeed):
        yield ("training", "deepspeed", *path), message
    if training.optimizer.kind in OPTIMIZERS:  # `extension_checks` reports unknown ones
        settings = training.optimizer, training.parallel, training.model, training.precision
        for key, message in problems_with_division(*settings):
            yield ("training", "parallel", key), message
