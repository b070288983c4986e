"""The model card: front matter that the Hugging Face Hub reads (results included), then the model and its scores.

Keys of the front matter: https://huggingface.co/docs/hub/model-cards. The licence of the model itself is nobody's
statement yet, so there is none.
"""

from __future__ import annotations

from plinth.text.markdown import plain
from plinth_audit.papers.facts import ROLLED_BACK, PaperFacts, SliceResult
from plinth_audit.papers.markdown import PaperPage
from plinth_registry.exports.unreleased import UNRELEASED

FILE = "README.md"
_WARNINGS = {
    UNRELEASED: "no signed history released this model.",
    ROLLED_BACK: "the signed history released this model and has taken it back.",
}


def model_card(facts: PaperFacts) -> str:
    """Front matter and page."""
    page = PaperPage(facts)
    page.say(f"# Model card: {plain(facts.name)}")
    if facts.state in _WARNINGS:
        page.say(f"**{facts.state}**: {_WARNINGS[facts.state]}")
    page.say(
        f"Checkpoint `{facts.checkpoint}`, recipe `{facts.recipe}`, code {plain(facts.code.get('version', ''))} "
        f"`{facts.code.get('sha256', '')}`. A row's evidence is the beginning of a SHA-256 of the last section."
    )
    page.say("## Model")
    page.stated(facts.model)
    page.say("## Training")
    page.stated(facts.run)
    page.say("## Training text", "", "`DATA_CARD.md` has sources, terms and rules.")
    texts = ((one.name, one.curated, one.tokens, one.seen_tokens, one.epochs, one.evidence) for one in facts.buckets)
    page.table(("bucket", "documents", "tokens", "tokens seen", "epochs"), texts)
    page.replayed()
    page.say("## Evaluation", "", "Bits per byte of held-out text (lower is better); 95% intervals over documents.")
    page.table(("text", "bits per byte", "interval", "documents"), map(_score, facts.scores))
    page.say("## Attested facts")
    page.stated(facts.attested)
    page.say("## Statements of people")
    said = ((one.subject, one.text, one.by, one.role, one.evidence) for one in facts.said)
    page.table(("about", "statement", "by", "role"), said)
    return f"---\n{_front(facts)}\n---\n\n{page.finished()}"


def _score(one: SliceResult) -> tuple[object, ...]:
    interval = None if one.low is None or one.high is None else f"{one.low:.4f} to {one.high:.4f}"
    return one.slice, one.value, interval, one.n, one.evidence


def _front(facts: PaperFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type="held-out",
            dataset_name=f"held-out text: {one.slice}",
            dataset_config=one.slice,
            dataset_revision=one.evidence,
            metric_type=one.metric,
            metric_value=one.value,
            metric_args={key: value for key in ("low", "high", "n") if (value := getattr(one, key)) is not None},
        )
        for one in facts.scores
    ]
    data = ModelCardData(
        model_name=facts.name,
        library_name="transformers",
        pipeline_tag="text-generation",
        language=languages(facts),
        tags=["plinth", facts.state],
        eval_results=results or None,
    )
    return data.to_yaml().rstrip()


def languages(facts: PaperFacts) -> list[str] | None:
    """Codes of the languages that the Hub's cards take, the most frequent first; None where the ledger has none."""
    from plinth_audit.papers.hub_card import language_codes

    found = facts.trained
    return language_codes(found.languages, found.all.documents) or None if found else None
