"""Links from MLflow to the pages of the workspace, where people look first: the experiment and the registered models.

A link is for people and decides nothing; whoever changes it by hand changes no release.
"""

from __future__ import annotations

import re
from typing import Any

from plinth.recipe.recipe import Recipe
from plinth_registry.candidate import model_name
from plinth_registry.registration import MODEL_TRAINING

NOTE = "mlflow.note.content"
_LINK = re.compile(r"\s*\[State and pages of this workspace\]\([^)]*\)")


def link(client: Any, recipe: Recipe, url: str) -> tuple[str, ...]:
    """Write the link to what there is of the recipe; returns the names of what was changed."""
    changed = []
    experiment = client.get_experiment_by_name(recipe.name)
    if experiment is not None:
        before = experiment.tags.get(NOTE, "")
        if (text := _linked(before, url)) != before:
            client.set_experiment_tag(experiment.experiment_id, NOTE, text)
            changed.append(f"experiment {recipe.name}")
        for key, value in MODEL_TRAINING.items():  # one that an earlier version made has none
            if key not in experiment.tags:
                client.set_experiment_tag(experiment.experiment_id, key, value)
    wanted = {model_name(recipe), recipe.required_release().name} if recipe.release else set()
    for model in client.search_registered_models() if wanted else ():
        before = model.description or ""
        if model.name in wanted and (text := _linked(before, url)) != before:
            client.update_registered_model(model.name, description=text)
            changed.append(f"model {model.name}")
    return tuple(changed)


def _linked(text: str, url: str) -> str:
    return f"{_LINK.sub('', text).rstrip()}\n\n[State and pages of this workspace]({url})".lstrip()
