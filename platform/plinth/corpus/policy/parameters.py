"""Parameters of policies, which turn annotation columns into verdicts and edits."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from plinth.errors import RecipeError
from plinth.records import Frozen


class Rule(Frozen):
    """Rule that drops a document if an expression over annotation columns is true.

    Expressions compare columns (`gopher_quality.word_count < 50`) with `and`, `or`, `not`, `in`.
    """

    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Reason recorded for the dropped document.")
    drop: str = Field(description="Expression over annotation columns; if it is true, the document is dropped.")


class EditRule(Frozen):
    """Edit that replaces the spans of text that an annotator found."""

    reason: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Name of the edit, recorded as the reason of each replacement.",
    )
    spans: str = Field(description="Annotation column with the spans to replace, such as `pii.spans`.")


class Policy(Frozen):
    """Rules and edits that turn annotation columns into verdicts. The first rule that matches a document is its reason;
    matches of all rules are counted."""

    profiles: tuple[str, ...] = Field(
        (),
        description="Published rule sets by name, such as `gopher/datatrove`. Their rules and edits come first, in "
        "this order. Your rule replaces a profile's rule with the same reason and columns.",
    )
    rules: tuple[Rule, ...] = Field((), description="Rules that drop a document, in order.")
    edits: tuple[EditRule, ...] = Field((), description="Edits that replace spans in the text of kept documents.")

    @field_validator("profiles")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from plinth.corpus.policy.profiles import profile

        for name in names:
            try:
                profile(name)
            except RecipeError as error:
                raise ValueError(f"{error.what}; {error.remedy}") from error
        return names

    @model_validator(mode="after")
    def _resolved(self) -> Policy:
        """Replace profile names by the rules and edits of the profiles, so that code that reads a policy does not need
        the profiles."""
        from plinth.corpus.policy.profiles import resolved

        if self.profiles:
            own = tuple((rule.reason, rule.drop) for rule in self.rules)
            spans = tuple((edit.reason, edit.spans) for edit in self.edits)
            rules, edits = resolved(self.profiles, own, spans)
            # within validation, before the record is in use; resolving twice changes nothing
            object.__setattr__(self, "rules", tuple(Rule(reason=reason, drop=drop) for reason, drop in rules))
            object.__setattr__(self, "edits", tuple(EditRule(reason=reason, spans=column) for reason, column in edits))
        return self
