"""Forms of an exported model but the plain one: members of the group `plinth.model_forms`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from plinth.extensions import Catalogue


@dataclass(frozen=True, kw_only=True)
class ModelForm:
    """A form, such as a quantised one.

    Args:
        name: as `plinth export model --format` and the gates of exports name it.
        export: `(context, name, folder of the model, its tokenizer.json)` -> a context with what writes and judges the
            form: `write(folder)` and `judged(settings, context, release, folder)`.
    """

    name: str
    export: Callable[..., AbstractContextManager[Any]]


FORMS = Catalogue("plinth.model_forms", "form of a model", ModelForm, {})
