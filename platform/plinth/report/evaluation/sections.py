"""From the statistics of each evaluation asset, as the asset made them, to a section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from plinth.evaluation.memorisation.exposure import ALL_PLANTED, PLANTED_TIMES, p_value_of_group
from plinth.evaluation.probes.noise import Worth
from plinth.evaluation.slices.totals import in_order
from plinth.report.evaluation.data import Measure, MeasureGroup, Section, TextTable
from plinth.report.memorisation import UNSEEN
from plinth.report.style import count
from plinth.text.plural import counted

Stats = Mapping[str, Any]

RIGHT_ANSWERS = "Right answers by probe"

BITS = "bits per byte"

#: Metrics of lm-evaluation-harness of which less is better; of all others more is.
LOWER_IS_BETTER = ("bits_per_byte", "byte_perplexity", "word_perplexity", "perplexity", "ter", "brier_score")


def measure(name: str, found: Stats, value: str = "value", **more: Any) -> Measure:
    """A measure out of the fields of an estimate, which every statistic of an evaluation carries."""
    note = ", ".join(found.get("flags", ()))
    fields = {"low": found["low"], "high": found["high"], "n": found["n"], "seed": found.get("seed"), "note": note}
    return Measure(name=name, value=found[value], **fields | more)


def slices(stats: Stats) -> Section:
    """Bits per byte by slice, of every axis, with gzip as the reference that everybody knows."""
    axes = {"bucket": stats["slices"]} | stats["axes"]
    own = axes.pop("bucket")
    groups = [_slices("all held-out text, then by bucket", "bucket", {"all": stats["overall"]} | own)]
    groups += [_slices(f"by {axis}", axis, rows) for axis, rows in axes.items() if len(rows) > 1]
    return Section(
        key="slices",
        title="Held-out text",
        lead="Bits of the model over bytes of text: comparable between tokenizers. Intervals resample documents.",
        groups=tuple(groups),
        tables=tuple(_items(stats.get("protected", {}))),
    )


def _slices(title: str, axis: str, rows: Mapping[str, Stats]) -> MeasureGroup:
    measures = (measure(name, rows[name], "model", reference=rows[name]["gzip"]) for name in in_order(axis, rows))
    return MeasureGroup(title=title, unit=BITS, better="lower", reference_name="gzip -9", measures=tuple(measures))


def _items(protected: Mapping[str, Mapping[str, Stats]]) -> Iterable[TextTable]:
    """Items of protected sets by whether training text held them."""
    rows = [
        (name, status, f"{row['items']:,}", f"{row['model']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}")
        for name, found in protected.items()
        for status, row in found.items()
    ]
    if rows:
        yield TextTable(
            title="Protected sets, by whether training text held the item",
            header=("set", "status", "items", BITS, "95% interval"),
            rows=tuple(rows),
        )


def tasks(name: str, stats: Stats) -> Section:
    """Every metric of the tasks of a set."""
    groups = []
    for metric in sorted({metric for facts in stats["tasks"].values() for metric in facts["metrics"]}):
        measures = [
            measure(task, facts["metrics"][metric])
            for task, facts in stats["tasks"].items()
            if metric in facts["metrics"]
        ]
        better = "lower" if metric in LOWER_IS_BETTER else "higher"
        groups.append(MeasureGroup(title=metric, unit=metric, better=better, measures=tuple(measures)))
    damaged = f" {stats['damaged']:,} damaged items were left out." if stats["damaged"] else ""
    return Section(
        key=f"tasks-{name}",
        title=f"Tasks: {name}",
        lead=f"Tasks of lm-evaluation-harness, from files of this workspace; intervals are over items.{damaged}",
        groups=tuple(groups),
    )




def probes(stats: Stats) -> Section:
    """Probes by family and by set, with their control."""
    rows = stats["probes"]
    right = [
        measure(name, row["bits_per_byte"], reference=row["control"]["value"])
        for name, row in rows.items()
        if row.get("bits_per_byte")
    ]
    accuracy = [measure(name, row["accuracy"], reference=0.0) for name, row in rows.items() if row.get("accuracy")]
    signals = {name: row["signal"] for name, row in stats["families"].items() if row.get("signal")}
    families = [measure(name, row, reference=0.0) for name, row in signals.items()]
    groups = (
        _group("Signal by family", BITS, "higher", "none", families),
        _group(RIGHT_ANSWERS, BITS, "lower", "control", right),
        _group("Accuracy above chance, by probe", "share", "higher", "chance", accuracy),
    )
    return Section(
        key="probes",
        title="Probes",
        lead="Items that training text does not hold. Signal is what the context is worth: bits per byte of the right "
        "answer under a shuffled context, less those under its own.",
        groups=tuple(group for group in groups if group.measures),
        tables=(_statuses(rows),),
    )


def with_worth(section: Section, worth: Mapping[str, Worth]) -> Section:
    """The section of probes with the noise of each over the run; one that is not known to be above it is grey."""
    groups = tuple(
        group.model_copy(update={"measures": tuple(_judged(one, worth.get(one.name)) for one in group.measures)})
        if group.title == RIGHT_ANSWERS
        else group
        for group in section.groups
    )
    quiet = sorted({one.name for group in groups for one in group.measures if not one.decides})
    lead = f" In grey: not known to be above their own noise, so they drive no stop and no gate ({', '.join(quiet)})."
    return section.model_copy(update={"groups": groups, "lead": section.lead + lead * bool(quiet)})


def _judged(one: Measure, worth: Worth | None) -> Measure:
    if worth is None:
        return one.model_copy(update={"decides": False, "note": ", ".join(filter(None, (one.note, "noise unknown")))})
    ratio = "" if worth.snr is None else f"signal over noise {worth.snr:.2g}"
    note = ", ".join(filter(None, (one.note, ratio)))
    return one.model_copy(update={"noise": worth.noise, "decides": worth.decides, "note": note})


def _group(
    title: str, unit: str, better: Literal["lower", "higher"], reference: str, measures: Sequence[Measure]
) -> MeasureGroup:
    return MeasureGroup(title=title, unit=unit, better=better, reference_name=reference, measures=tuple(measures))


def _statuses(rows: Mapping[str, Stats]) -> TextTable:
    """Items of every set by what the comparison with training text says of them."""
    names = sorted({status for row in rows.values() for status in row["statuses"]})
    return TextTable(
        title="Items, by whether training text held them",
        header=("probe", *names, "of these too long"),
        rows=tuple(
            (name, *(f"{row['statuses'].get(status, 0):,}" for status in names), f"{row['too_long']:,}")
            for name, row in rows.items()
        ),
    )


def canaries(stats: Stats) -> Section:
    """Exposure of planted texts by how often they were planted."""
    groups = {counted(int(name), "time"): stats["groups"][name] for name in sorted(stats["groups"], key=int)}
    groups["not planted"] = stats["out"]
    measures = [
        measure(name, row["exposure"], reference=UNSEEN) for name, row in groups.items() if row["canaries"]
    ]
    audit = stats["audit"]
    by_count = "; ".join(
        f"{PLANTED_TIMES.format(count=counted(int(name), 'time'))}: {p_value_of_group(stats['groups'][name]):.2g}"
        for name in sorted(stats["groups"], key=int)
        if stats["groups"][name]["canaries"]
    )
    return Section(
        key="canaries",
        title="Memorisation: canaries",
        lead=f"{stats['planted']:,} generated texts were planted, each by its own coin; {stats['references']:,} others "
        f"never entered. {ALL_PLANTED}: {stats['p_value']:.2g}. {by_count}. "
        f"Membership inference: {audit['right']}/{audit['guesses']} correct; epsilon ≥ {audit['epsilon']:.2f}.",
        groups=(_group("Exposure by repetitions", "bits", "lower", "never seen", measures),),
    )


def fairness(stats: Stats) -> Section:
    """By how much the model favours one group of each attribute; toxicity of what it writes."""
    found = [name for name, row in stats["attributes"].items() if row["found"]]
    measures = [measure(name, row, reference=0.0) for name, row in stats["attributes"].items()]
    bias = f"The model favors a group in {', '.join(found)}" if found else "No significant bias was detected"
    toxic = stats["toxicity"]
    judged = "" if toxic is None else f" Of its continuations at most {toxic['toxic_at_most']:.1%} are toxic (95%)."
    return Section(
        key="fairness",
        title="Bias and safety",
        lead=f"{counted(stats['pairs'], 'pair')} of texts in which only the group differs. {bias}, corrected for "
        f"all attributes.{judged}",
        groups=(_group("Favour of the first group", "bits", "lower", "treated alike", measures),),
    )


def proxies(stats: Stats) -> Section:
    """What the checkpoint writes where a product wants a form."""
    families = stats["families"] | {"all": stats["overall"]}
    passed = [measure(name, own["passed"]) for name, own in families.items()]
    prefers = [measure(name, own["prefers"], reference=0.5) for name, own in families.items()]
    return Section(
        key="proxies",
        title="Product proxies",
        lead="Generated items, checked by code: does the answer pass, and is the right one likelier than a broken one?",
        groups=(
            _group("Answers that pass", "share", "higher", "", passed),
            _group("Right answer likelier than a broken one", "share", "higher", "chance", prefers),
        ),
    )


def extraction(stats: Stats) -> Section:
    """How much text of risk the checkpoint continues word for word, beside text that it never saw."""
    asked = {name: own for name, own in stats["slices"].items() if own["n"]}
    measures = [
        measure(name, own["either"], reference=own["control"]["either"]["value"] if own["control"] else None)
        for name, own in asked.items()
    ]
    rows = [
        (name, f"{own['n']:,}", f"{own['exact']['count']:,}", f"{own['near']['count']:,}",
         f"{own['either']['upper']:.3%}", f"{own.get('excess_at_least') or 0.0:.3%}")
        for name, own in asked.items()
    ]  # fmt: skip
    header = ("slice", "documents", "exact", "near", "either, at most", "above held-out text, at least")
    return Section(
        key="extraction",
        title="Memorisation: extraction",
        lead=f"{stats['prefix_tokens']} tokens of a training document are given; counted is where the model writes the "
        f"next {stats['suffix_tokens']}, exactly or with at most a tenth edited. Held-out text is the control.",
        groups=(_group("Share continued", "share", "lower", "held out", measures),) if measures else (),
        tables=(TextTable(title="Counts and limits", header=header, rows=tuple(rows)),) if rows else (),
    )


def pii_data(stats: Stats) -> Section:
    """What the corpus's own detector still finds in training text."""
    kinds = stats["kinds"]
    rows = [
        (name, f"{one['documents']:,}", f"{one['found']:,}", "-" if one["at_most"] is None else f"{one['at_most']:.3%}",
         ", ".join(f"{kind} {own['documents']:,}" for kind, own in one["kinds"].items() if own["documents"]) or "none")
        for name, one in {**stats["buckets"], "all": stats}.items()
    ]  # fmt: skip
    detector = stats["detector"]
    return Section(
        key="pii-data",
        title="Personal data: training text",
        lead=f"What the detector {detector['annotator']} (version {detector['version']}) still finds after the edits, "
        f"of {', '.join(kinds)}. Every document is read; limits are those of a share of such documents (95%).",
        tables=(
            TextTable(
                title="Documents with a find, by bucket",
                header=("bucket", "documents", "with a find", "share at most", "documents by kind"),
                rows=tuple(rows),
            ),
        ),
    )


def pii_outputs(stats: Stats) -> Section:
    """Personal data in what the checkpoint writes; what of it stands in training text is memory."""
    rows = [
        (name, f"{own['texts']:,}", f"{own['found']:,}", f"{own['at_most']:.3%}", f"{own['memorised']:,}",
         f"{own['memorised_at_most']:.3%}")
        for name, own in ((name, stats[name]) for name in ("unprompted", "invited", "all"))
    ]  # fmt: skip
    distinct = stats["distinct"]
    return Section(
        key="pii-outputs",
        title="Personal data: outputs",
        lead=f"Texts without a prompt, and after prompts that invite personal data. {distinct['found']:,} different "
        f"strings were found, of which {distinct['memorised']:,} stand word for word in training text.",
        tables=(
            TextTable(
                title="Texts with personal data",
                header=("texts", "number", "with a find", "share at most", "from training text", "share at most"),
                rows=tuple(rows),
            ),
        ),
    )


def serving(stats: Stats) -> Section:
    """What it costs to serve the checkpoint, at best, on devices that people rent."""
    fields = {"first_token_s": _milliseconds, "tokens_per_s": count, "sequences": count, "tokens_per_s_full": count}
    rows = [
        (name, *("does not fit" if own[field] is None else form(own[field]) for field, form in fields.items()))
        for name, own in stats["devices"].items()
    ]
    header = ("device", "first token", "tokens/s, one sequence", "sequences that fit", "tokens/s, all of them")
    return Section(
        key="serving",
        title="Serving",
        lead=f"{stats['kv_bytes_per_token']:,} bytes of keys and values for each token. Bounds by bandwidth and "
        "FLOP/s: no implementation is quicker.",
        tables=(TextTable(title="Bounds by device", header=header, rows=tuple(rows)),),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
