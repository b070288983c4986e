"""Dagster component of a recipe, for a team's own Dagster project.

    dg scaffold defs plinth_jobs.dg.RecipeComponent corpus
    dg check defs

The `dg` command finds it through the entry point `dagster_dg_cli.registry_modules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import Field

from plinth import processes
from plinth.compute.engine import cores
from plinth.compute.select_engine import Compute
from plinth.storage.workspace import folder_of
from plinth_jobs import definitions, project, recipes

RECIPE = "recipe.yaml"


class ScaffoldParameters(dg.Model):
    """Options of `dg scaffold defs`."""

    recipe: str = Field("", description="Recipe file or packaged recipe; default: write a new recipe.yaml.")
    workspace: str = Field("workspace", description="Folder or s3:// URI of the workspace.")
    data: str = Field("", description="Folder of data whose files become the sources of the new recipe.")


class RecipeScaffolder(dg.Scaffolder[ScaffoldParameters]):
    """Writer of `defs.yaml` and, if no recipe is given, of a first recipe."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParameters]:
        return ScaffoldParameters

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParameters]) -> None:
        """Write the files of the component."""
        given = request.params
        if not given.recipe:
            sources = project.look(Path(given.data))[0] if given.data else [project.EXAMPLE]
            text = project.recipe(project.name_of(request.target_path), sources)
            (request.target_path / RECIPE).write_text(text)
        scaffold_component(request, {"recipe": given.recipe or RECIPE, "workspace": given.workspace})


@dg.scaffold_with(RecipeScaffolder)
class RecipeComponent(dg.Component, dg.Model, dg.Resolvable):
    """All assets, checks, jobs, schedules and sensors of a recipe."""

    recipe: str = Field(description="Recipe file, relative to this component's folder, or the name of a packaged one.")
    workspace: str = Field(
        "workspace", description="Workspace: a folder, relative to the project, or an s3:// URI. All state is in it."
    )
    workers: int | None = Field(None, ge=1, description="Worker processes for corpus stages; default: one per core.")
    upstream: Mapping[str, Sequence[str]] = Field(
        default_factory=dict,
        description="For each bucket, keys of this project's assets that write the files of the bucket's sources.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the recipe.

        Raises:
            RecipeError: the recipe is invalid, or `upstream` names an unknown bucket.
        """
        shared = "://" in self.workspace
        workspace = folder_of(self.workspace if shared else str(context.project_root / self.workspace)).absolute()
        processes.shut_out(workspace)
        recipe = recipes.load(recipes.find(self.recipe, Path(context.path)))
        compute = Compute("local", self.workers or cores())
        return definitions.build(recipe, workspace, compute=compute, served=True, upstream=self.upstream)
