"""Recipe keys that a ring package, or another package, adds to a section of the core.

    RecipeSection  the key, its model, its problems: a member of the group `plinth.sections`, named by its dotted key
    extended       adds these keys to the model of a section, as fields
    of             reads the parameters that a package added

A model is extended when its module is imported, so the module of a section's model imports only pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import Field, create_model

from plinth.entry_points import absent, not_here
from plinth.errors import ExtensionError
from plinth.extensions import Catalogue
from plinth.records import Frozen

M = TypeVar("M", bound=Frozen)
#: Dotted key of a section: a field of pydantic begins with a letter.
_NAME = re.compile(r"([a-z][a-z0-9_]*\.)+[a-z][a-z0-9_]*")


def no_problems(recipe: Any) -> tuple[()]:
    """Return no problems, for sections whose model checks everything."""
    return ()


@dataclass(frozen=True, kw_only=True)
class RecipeSection:
    """Recipe key that a package adds.

    Args:
        name: dotted key, such as `evaluation.fairness`.
        model: model of its parameters.
        description: one sentence, for the reference.
        default: value for recipes without the key; None if the section is optional.
        dumped: True writes an omitted section as null into dumps, and therefore into identities.
        problems: `(recipe)` -> key and message of conflicts with other sections.
    """

    name: str
    model: type[Frozen]
    description: str
    default: Frozen | None = None
    dumped: bool = False
    problems: Callable[[Any], Iterable[tuple[tuple[str | int, ...], str]]] = no_problems

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"section {self.name!r}: expected dotted lower-case names, such as evaluation.fairness")


class Sections(Catalogue[RecipeSection]):
    """Registry of installed sections. It remembers the models that were extended, and the sections that could not be
    added to a model."""

    def __init__(self) -> None:
        super().__init__("plinth.sections", "section", RecipeSection, {})
        self._models = dict[str, frozenset[str]]()
        self._left_out = dict[str, ExtensionError]()

    def usable(self) -> list[RecipeSection]:
        """Return the sections that were added to models. A recipe with any other section gets an error."""
        return [self[name] for name in self if self._is_loaded(name) and self._fault(name) is None]

    def below(self, at: str, model: type[Frozen]) -> list[RecipeSection]:
        """Return the sections to add to the model at a key. Sections that are installed later are not added to it."""
        self._models[at] = frozenset(model.model_fields)
        self._left_out = {name: error for name, error in self._left_out.items() if name.rpartition(".")[0] != at}
        names = [name for name in self if name.rpartition(".")[0] == at and self._fault(name) is None]
        return [self[name] for name in names if self._is_loaded(name)]

    def find(self, name: str) -> RecipeSection:
        """Return a section that is part of the recipe.

        Raises:
            ExtensionError: the section could not be imported, its key is a key of Plinth, or no model accepts it.
        """
        section = super().find(name)
        if left_out := self._left_out.get(name):
            raise left_out
        if fault := self._fault(name):
            raise ExtensionError(
                f"the section {name!r} {fault}",
                found=self.origin(name) or "a package of Plinth",
                expected=f"a new key below {', '.join(sorted(self._models))}",
                remedy="rename the section; see docs/extending.md",
            )
        return section

    def _is_loaded(self, name: str) -> bool:
        try:
            return name not in self._left_out and bool(self[name])
        except ExtensionError as error:
            self._left_out[name] = error
            return False

    def _fault(self, name: str) -> str | None:
        at, _, key = name.rpartition(".")
        if at not in self._models:
            return f"is below {at}, which accepts no sections"
        return "has the same key as a parameter of Plinth" if key in self._models[at] else None


SECTIONS = Sections()


def extended(at: str) -> Callable[[type[M]], type[M]]:
    """Decorate the model at a dotted key: add the sections below it as optional fields."""

    def extend(model: type[M]) -> type[M]:
        below = SECTIONS.below(at, model)
        if not below:
            return model
        fields: dict[str, Any] = {one.name.rpartition(".")[2]: _field(one) for one in below}
        made: type[M] = create_model(model.__name__, __base__=model, __module__=model.__module__, **fields)
        made.__doc__, made.__qualname__ = model.__doc__, model.__qualname__
        return made

    return extend


def of(section: Frozen, name: str, model: type[M]) -> M | None:
    """Return the parameters at a key that a package added to a section, or None if the recipe omits them."""
    found = getattr(section, name, None)
    assert found is None or isinstance(found, model), f"{name} is a {type(found).__name__}"
    return found


def refusal(key: str) -> str:
    """Return the reason why a dotted key is unknown although a package defines it, or an empty string if no package
    defines it."""
    if needed := absent(SECTIONS.group).get(key):
        return not_here(f"`{key}`", needed).brief
    try:
        if key in SECTIONS:
            SECTIONS.find(key)
    except ExtensionError as error:
        return error.brief
    return ""


def _field(one: RecipeSection) -> tuple[Any, Any]:
    if one.default is not None:
        return one.model, Field(one.default, description=one.description)
    left_out: dict[str, Any] = {} if one.dumped else {"exclude_if": lambda given: given is None}
    return one.model | None, Field(None, description=one.description, **left_out)
