"""Documentation of a general-purpose AI model, which the European Union requires from its provider.

The law is Article 53(1)(a) and (b) of Regulation (EU) 2024/1689.

Items and their order are those of the Model Documentation Form in the Transparency chapter of the General-Purpose AI
Code of Practice (10 July 2025). An item also names the points of Annexes XI and XII that it answers: Annex XII is the
information for downstream providers. The words of the items are Plinth's own.

An item has values from evidence and text that the provider declared; an item without either is not stated. Computation,
training time and energy come from the trainer's signed cost attestation (`settlement.amounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from plinth.operation.settlement import Energy
from plinth.text import markdown_text
from plinth.trust.dsse import COMPLIANCE
from plinth_audit.papers.cards import PaperPage
from plinth_audit.papers.facts import NOT_STATED, PaperFacts, StatedFact
from plinth_audit.papers.gather import CONTEXT, FORWARD, ILLEGAL, KEPT, PARAMETERS, PERMITTED
from plinth_audit.papers.provider import SUBJECTS

MODEL_DOCUMENTATION: Final = "MODEL_DOCUMENTATION.md"
#: Tokens of the benchmark for inference; the form proposes a task such as this.
BENCHMARK_TOKENS: Final = 100_000
#: Upper bounds of the form's ranges of parameters and of days of training, with their words.
_SIZES: Final = (
    (5e8, "up to 500 million"), (5e9, "500 million to 5 billion"), (15e9, "5 to 15 billion"),
    (50e9, "15 to 50 billion"), (100e9, "50 to 100 billion"), (500e9, "100 to 500 billion"),
    (1e12, "500 billion to 1 trillion"), (float("inf"), "more than 1 trillion"),
)  # fmt: skip
_TIMES: Final = (
    (30, "less than 1 month"), (91, "1 to 3 months"), (182, "3 to 6 months"), (float("inf"), "more than 6 months"),
)  # fmt: skip
_DAY_S = 86_400
#: Methods of measurement.
_COMPUTATION: Final = (
    "estimated: FLOPs of all matrix products by PaLM's formula (arXiv:2204.02311, appendix B), for every step in the "
    "run's timeline, with repeated and discarded steps; without recomputed activations, evaluation and other models"
)
_ENERGY: Final = (
    "energy of the devices during the run's jobs, {site}; without hosts, network, storage and data processing"
)
_INFERENCE: Final = "computed from config.json, not measured: FLOPs of all matrix products of the forward pass"
#: Beginnings of the names of attested facts: amounts in the cost attestation, measurements of the text, and bias.
_COST, _UNSUITABLE, _BIAS = "cost.amounts.", ("contamination.", "pii/data."), "fairness"

#: Values with the SHA-256 of their evidence.
Values = Iterator[tuple[object, str]]


class FormItem(NamedTuple):
    """Item of the form.

    Args:
        annexes: points of Annexes XI and XII that the item answers; empty for an item of the form alone.
        values: function that yields the values from evidence.
        declared: fields of the provider declaration.
    """

    name: str
    annexes: str
    values: Callable[[PaperFacts], Values]
    declared: tuple[str, ...] = ()


def model_documentation(facts: PaperFacts) -> str:
    """Return the documentation of a model in Markdown."""
    page = PaperPage(facts)
    page.say(f"# Model documentation: {markdown_text(facts.name)}")
    page.say(
        f"State: {facts.state}. Items of the Model Documentation Form of the General-Purpose AI Code of Practice "
        "(10 July 2025), for Article 53(1)(a) and (b) of Regulation (EU) 2024/1689."
    )
    for section, items in FORM.items():
        page.say(f"## {section}")
        for item in items:
            page.say(f"### {item.name}")
            if item.annexes:
                page.say(item.annexes)
            page.table(("statement", "source"), _rows(facts, item))
    return page.finished()


def range_of(number: float, ranges: Iterable[tuple[float, str]]) -> str:
    """Return the words of the first range whose upper bound is not below the number."""
    return next(words for bound, words in ranges if number <= bound)


def _rows(facts: PaperFacts, item: FormItem) -> Iterator[tuple[object, ...]]:
    for value, evidence in item.values(facts):
        yield value, "evidence", evidence
    subjects = [SUBJECTS[field] for field in item.declared]
    for one in facts.said:
        if one.role == COMPLIANCE and one.subject in subjects:
            text = one.text if len(subjects) == 1 else f"{one.subject}: {one.text}"
            yield text, f"declared, signed by {one.by}", one.evidence


def _nothing(_: PaperFacts) -> Values:
    """Yield no value: Plinth has no evidence of this item."""
    yield from ()


def _listed(found: Iterable[StatedFact]) -> Values:
    yield from ((f"{one.name}: {one.value}", one.evidence) for one in found)


def _dated(facts: PaperFacts) -> Values:
    if facts.dated:
        yield facts.dated.value, facts.dated.evidence


def _name(facts: PaperFacts) -> Values:
    yield facts.name, facts.released or facts.checkpoint


def _authenticity(facts: PaperFacts) -> Values:
    yield f"checkpoint, SHA-256 {facts.checkpoint}", facts.checkpoint
    if facts.released:
        yield f"signed release record, SHA-256 {facts.released}", facts.released
    yield from ((f"{name}, SHA-256 {own}", own) for name, own in sorted(facts.files.items()))


def _released(facts: PaperFacts) -> Values:
    if facts.released_at:
        yield facts.released_at.value, facts.released_at.evidence


def _dependencies(facts: PaperFacts) -> Values:
    found = [one for one in facts.run if one.name in ("initial", "teacher")]
    yield from _listed(found)
    if not found and "run" in facts.chain:
        yield "N/A: no initial weights and no teacher model", facts.chain["run"]


def _architecture(facts: PaperFacts) -> Values:
    yield from ((f"decoder-only transformer, {one.value}", one.evidence) for one in _of(facts.model, "model_type"))


def _of(facts: Iterable[StatedFact], name: str) -> list[StatedFact]:
    return [one for one in facts if one.name == name]


def _design(model: bool) -> Callable[[PaperFacts], Values]:
    """Return the function that yields the parameters of the model, or those of the training process."""
    return lambda facts: _listed(one for one in facts.design if one.name.startswith("training.model.") == model)


def _training(facts: PaperFacts) -> Values:
    yield from _listed(one for one in facts.run if one.name not in ("initial", "teacher"))
    yield from _design(model=False)(facts)


def _modality(facts: PaperFacts) -> Values:
    yield from ((f"text, at most {one.value:,} tokens", one.evidence) for one in _of(facts.size, CONTEXT))


def _parameters(facts: PaperFacts) -> Values:
    for one in _of(facts.size, PARAMETERS):
        number = int(one.value)
        yield f"{number:,} parameters; range of the form: {range_of(number, _SIZES)}", one.evidence


def _files(facts: PaperFacts) -> Values:
    own = facts.files.get("config.json")
    if own:
        yield "files in the layout of Hugging Face Transformers, read by the class in config.json", own


def _text(facts: PaperFacts) -> Values:
    yield from ((f"text: {one.name}", one.evidence) for one in facts.buckets)


def _sources(facts: PaperFacts) -> Values:
    for one in facts.sources:
        how = "crawled from the web" if one.crawled else f"read as {one.kind}, how it was obtained is not in evidence"
        yield f"{one.bucket}: {one.domain}, snapshot {one.snapshot}, license {one.licence}, {how}", one.evidence


def _amount(facts: PaperFacts) -> Values:
    if found := facts.trained:
        yield f"{found.all.documents:,} training documents with {found.all.tokens:,} tokens", found.evidence
    for one in facts.buckets:
        seen = NOT_STATED if one.seen_tokens is None else f"{one.seen_tokens:,} tokens in {one.epochs} epochs"
        yield f"{one.name}: {one.curated:,} documents kept of {one.documents:,}; trained on: {seen}", one.evidence
    for replayed in facts.replayed:
        yield f"{replayed.name}: {replayed.seen_tokens:,} tokens replayed", replayed.evidence


def _scope(facts: PaperFacts) -> Values:
    if found := facts.trained:
        for name, counts in (("language", found.languages), ("license", found.licences)):
            yield from ((f"{name} {own}: {n:,} documents", found.evidence) for own, n in counts.items())
        yield f"{found.all.count:,} domains, captured from {found.all.first} to {found.all.latest}", found.evidence


def _curation(facts: PaperFacts) -> Values:
    yield from ((f"{one.bucket}, {one.reason}: {one.rule}", one.evidence) for one in facts.rules)
    yield from _listed(one for one in facts.processing if not one.name.startswith((ILLEGAL, PERMITTED)))


def _unsuitable(facts: PaperFacts) -> Values:
    yield from _listed(one for one in facts.processing if one.name.startswith((ILLEGAL, PERMITTED, KEPT)))
    yield from _listed(one for one in facts.attested if one.name.startswith(_UNSUITABLE))


def _biases(facts: PaperFacts) -> Values:
    yield from _listed(one for one in facts.attested if one.name.startswith(_BIAS))


def _cost(facts: PaperFacts) -> dict[str, StatedFact]:
    """Return the amounts in the cost attestation, by name."""
    return {one.name.removeprefix(_COST): one for one in facts.attested if one.name.startswith(_COST)}


def _time(facts: PaperFacts) -> Values:
    known = _cost(facts)
    if {"job_s", "device_s"} <= known.keys():
        days, devices = (float(known[name].value) / _DAY_S for name in ("job_s", "device_s"))
        words = f"{days:.3g} wall-clock days, {devices:.3g} device-days; range of the form: {range_of(days, _TIMES)}"
        yield words, known["job_s"].evidence


def _computation(facts: PaperFacts) -> Values:
    if found := _cost(facts).get("flops"):
        yield f"{found.value:.3g} FLOPs", found.evidence


def _computed(facts: PaperFacts) -> Values:
    if found := _cost(facts).get("flops"):
        yield _COMPUTATION, found.evidence


def _energy(facts: PaperFacts) -> Values:
    if found := _cost(facts).get("kwh"):
        yield f"{float(found.value) / 1000:.3g} MWh", found.evidence


def _metered(facts: PaperFacts) -> Values:
    known = _cost(facts)
    if {"kwh", "kwh_measured", "pue"} <= known.keys():
        source = Energy(float(known["kwh"].value), float(known["kwh_measured"].value)).source
        pue = float(known["pue"].value)
        site = f"multiplied by the site's power usage effectiveness, {pue:g}" if pue > 1 else "without site overhead"
        yield f"{_ENERGY.format(site=site)}; share of the devices' time: {source}", known["kwh"].evidence


def _inference(facts: PaperFacts) -> Values:
    for one in _of(facts.size, FORWARD):
        yield f"{int(one.value) * BENCHMARK_TOKENS:.3g} FLOPs for {BENCHMARK_TOKENS:,} tokens", one.evidence


def _inferred(facts: PaperFacts) -> Values:
    for one in _of(facts.size, CONTEXT):
        yield f"{_INFERENCE}, each token with attention to a full context of {one.value:,} tokens", one.evidence


#: Items by section, in the order of the form.
FORM: Final[Mapping[str, tuple[FormItem, ...]]] = {
    "Document": (
        FormItem("Date of the last update", "", _dated),
        FormItem("Version of the document", "", _nothing),  # a signature over its SHA-256 names it
    ),
    "General information": (
        FormItem("Legal name of the provider", "", _nothing, ("provider", "authorised_representative", "contact")),
        FormItem("Model name", "", _name),
        FormItem("Model authenticity", "", _authenticity),
        FormItem("Release date", "Annex XI 1(1)(c), Annex XII 1(c)", _released),
        FormItem("Union market release date", "Annex XI 1(1)(c), Annex XII 1(c)", _nothing, ("placed_on_the_market",)),
        FormItem("Model dependencies", "", _dependencies),
    ),
    "Model properties": (
        FormItem("Model architecture", "Annex XI 1(1)(d), Annex XII 1(f)", _architecture),
        FormItem("Design specifications of the model", "Annex XI 1(2)(b)", _design(model=True), ("design_rationale",)),
        FormItem("Input modalities and maximum size", "Annex XI 1(1)(e), Annex XII 1(g), 2(b)", _modality),
        FormItem("Output modalities and maximum size", "Annex XI 1(1)(e), Annex XII 1(g), 2(b)", _modality),
        FormItem("Total model size", "Annex XI 1(1)(d), Annex XII 1(f)", _parameters),
    ),
    "Methods of distribution and licenses": (
        FormItem("Distribution channels", "Annex XI 1(1)(c), Annex XII 1(c)", _nothing, ("distribution_channels",)),
        FormItem("License", "Annex XI 1(1)(f), Annex XII 1(h)", _nothing, ("model_licence",)),
    ),
    "Use": (
        FormItem("Acceptable use policy", "Annex XI 1(1)(b), Annex XII 1(b)", _nothing, ("acceptable_use_policy",)),
        FormItem("Intended uses", "Annex XI 1(1)(a), Annex XII 1(a)", _nothing, ("intended_uses",)),
        FormItem(
            "Type and nature of AI systems that can integrate the model", "Annex XI 1(1)(a), Annex XII 1(a)", _nothing,
            ("integrating_systems",),
        ),
        FormItem(
            "Technical means for integration", "Annex XI 1(2)(a), Annex XII 1(d), 2(a)", _files, ("technical_means",)
        ),
        FormItem("Required hardware", "Annex XII 1(d)", _nothing, ("required_hardware",)),
        FormItem("Required software", "Annex XII 1(e)", _nothing, ("required_software",)),
    ),
    "Training process": (
        FormItem("Design specifications of the training process", "Annex XI 1(2)(b)", _training),
        FormItem("Decision rationale", "Annex XI 1(2)(b)", _nothing, ("design_rationale",)),
    ),
    "Data used for training, testing and validation": (
        FormItem("Type and modality of data", "Annex XI 1(2)(c), Annex XII 2(c)", _text, ("content",)),
        FormItem(
            "Provenance of data", "Annex XI 1(2)(c), Annex XII 2(c)", _sources,
            ("crawlers", "licensed_data", "other_private_data", "user_data", "synthetic_data", "other_data"),
        ),
        FormItem("How data was obtained and selected", "Annex XI 1(2)(c)", _nothing, ("data_selection",)),
        FormItem("Number of data points", "Annex XI 1(2)(c)", _amount),
        FormItem("Scope and main characteristics", "Annex XI 1(2)(c)", _scope),
        FormItem("Data curation methodologies", "Annex XI 1(2)(c), Annex XII 2(c)", _curation),
        FormItem(
            "Measures to detect unsuitable data sources", "Annex XI 1(2)(c)", _unsuitable,
            ("unsuitable_data", "rights_reservations", "illegal_content"),
        ),
        FormItem("Measures to detect identifiable biases", "Annex XI 1(2)(c)", _biases, ("bias_detection",)),
    ),
    "Computational resources during training": (
        FormItem("Training time", "Annex XI 1(2)(d)", _time),
        FormItem("Amount of computation used for training", "Annex XI 1(2)(d)", _computation),
        FormItem("Measurement methodology of computation", "Annex XI 1(2)(d)", _computed),
    ),
    "Energy consumption during training and inference": (
        FormItem("Amount of energy used for training", "Annex XI 1(2)(e)", _energy, ("energy",)),
        FormItem("Measurement methodology of energy", "Annex XI 1(2)(e)", _metered),
        FormItem("Benchmarked amount of computation for inference", "Annex XI 1(2)(e)", _inference),
        FormItem("Measurement methodology of inference", "Annex XI 1(2)(e)", _inferred),
    ),
}  # fmt: skip
