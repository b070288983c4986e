"""A recipe tried with other policies: a whole recipe, or a few keys laid over the one in force.

    policies:                      the same as   corpus:
      default:                                     policies:
        rules: [...]                                 default: …

Keys merge as with `extends:`, so a file may state one policy and leave the rest alone; what is wrong is named by
the line of the file it was written in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plinth.recipe.extends import shown
from plinth.recipe.load import check_over, load
from plinth.recipe.recipe import Recipe
from plinth.recipe.yaml_lines import Key, Lined, read

#: A file that has one of these is a recipe of its own.
WHOLE = frozenset({"extends", "name"})
#: Keys that may stand at the top, without `corpus:` around them.
SHORT = frozenset({"policies", "buckets"})


def load_tried(new: Path, recipe: Path, packaged: Path | None = None) -> Recipe:
    """The recipe that a file of changes means.

    Args:
        new: a whole recipe, or keys to lay over `recipe`; `policies:` may stand at the top.
        recipe: the recipe in force.
        packaged: folder of recipes that `extends:` finds by name.

    Raises:
        RecipeError: the file cannot be read, or names what does not exist, with its line and the nearest name.
    """
    lined = read(new, shown(new))
    if lined.problems or WHOLE & lined.data.keys():
        return load(new, packaged)
    # No gate is measured in a trial, so a trial may leave out the rules that a gate consists of.
    return check_over(recipe, [_placed(lined)], new, without="slices", packaged=packaged)


def _placed(lined: Lined) -> Lined:
    """`policies:` and `buckets:` moved below `corpus:`."""
    if "corpus" in lined.data or not SHORT & lined.data.keys():
        return lined
    data = {key: value for key, value in lined.data.items() if key not in SHORT}
    data["corpus"] = {key: value for key, value in lined.data.items() if key in SHORT}
    first = min(lined.marks.values(), key=lambda mark: mark.line)
    marks = {_deeper(key): mark for key, mark in lined.marks.items()} | {("corpus",): first}
    return replace(lined, data=data, marks=marks)


def _deeper(key: Key) -> Key:
    return ("corpus", *key) if key[0] in SHORT else key
