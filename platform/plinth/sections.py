"""Keys of the recipe that a package of the ring, or anyone's, adds to a section of the core.

    RecipeSection  the key, its model, its problems: a member of the group `plinth.sections`, named by its dotted key
    extended       puts them into the model of a section, as fields like its own
    of             reads one

A model is extended when its module is imported, so the module of a section's model imports pydantic and nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import Field, create_model

from plinth.entry_points import absent, not_here
from plinth.errors import ExtensionError
from plinth.extensions import Catalogue
from plinth.records import Frozen

M = TypeVar("M", bound=Frozen)


def no_problems(recipe: Any) -> tuple[()]:
    """Return no problems, for sections whose model checks everything."""
    return ()


@dataclass(frozen=True, kw_only=True)
class RecipeSection:
    """Key of the recipe.

    Args:
        name: dotted key, such as `evaluation.fairness`.
        model: model of its parameters.
        description: one sentence, for the reference.
        default: value for recipes without the key; None if the section is optional.
        dumped: True writes an omitted section as null into dumps, and so into identities.
        problems: `(recipe)` -> key and message of conflicts with other sections.
    """

    name: str
    model: type[Frozen]
    description: str
    default: Frozen | None = None
    dumped: bool = False
    problems: Callable[[Any], Iterable[tuple[tuple[str | int, ...], str]]] = no_problems


SECTIONS = Catalogue("plinth.sections", "section", RecipeSection, {})


def usable() -> list[RecipeSection]:
    """Return the usable sections of installed packages; a recipe with another one gets an error with the reason."""
    found = []
    for name in SECTIONS:
        try:
            found.append(SECTIONS[name])
        except ExtensionError:
            continue
    return found


def extended(at: str) -> Callable[[type[M]], type[M]]:
    """Decorate the model at a dotted key: add the sections below it as optional fields."""

    def extend(model: type[M]) -> type[M]:
        below = [one for one in usable() if one.name.rpartition(".")[0] == at]
        if not below:
            return model
        fields: dict[str, Any] = {one.name.rpartition(".")[2]: _field(one) for one in below}
        made: type[M] = create_model(model.__name__, __base__=model, __module__=model.__module__, **fields)
        made.__doc__, made.__qualname__ = model.__doc__, model.__qualname__
        return made

    return extend


def of(section: Frozen, name: str, model: type[M]) -> M | None:
    """Return the parameters at a key that a package added to a section; None if omitted."""
    found = getattr(section, name, None)
    assert found is None or isinstance(found, model), f"{name} is a {type(found).__name__}"
    return found


def refusal(key: str) -> str:
    """Return why a dotted key is unknown although a package has it; empty if none has."""
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
