"""Dagster component of a recipe, for a team's own Dagster project.

    dg scaffold defs plinth_jobs.dg.RecipeComponent corpus
    dg check defs

The `dg` command finds it through the entry point `dagster_dg_cli.registry_modules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import Field

from plinth import processes
from plinth.compute.engine import cores
from plinth.compute.select_engine import Compute
from plinth.errors import RecipeError
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import folder_of
from plinth_assets.catalog import stages
from plinth_assets.framework import Stage
from plinth_assets.framework.pipes import PipesAnnotator
from plinth_assets.framework.placement import DagsterPlacement
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


def _next_to_defs(context: dg.ResolutionContext, given: str) -> str:
    """Return the absolute path of a recipe next to defs.yaml. The name of a packaged recipe stays as it is."""
    name: str = context.resolve_value(given, as_type=str)
    path = context.resolve_source_relative_path(name)
    return str(path) if path.exists() else name


@dg.scaffold_with(RecipeScaffolder)
class RecipeComponent(dg.Component, dg.Model, dg.Resolvable):
    """All assets, checks, jobs, schedules and sensors of a recipe."""

    recipe: Annotated[str, dg.Resolver(_next_to_defs, model_field_type=str)] = Field(
        description="Recipe file, relative to this component's folder, or the name of a packaged one."
    )
    workspace: str = Field(
        "workspace", description="Workspace: a folder, relative to the project, or an s3:// URI. All state is in it."
    )
    workers: int | None = Field(None, ge=1, description="Worker processes for corpus stages; default: one per core.")
    key_prefix: str | Sequence[str] = Field(
        "",
        description="Prefix of all asset keys, jobs, schedules, sensors, groups and resources of this recipe; needed "
        "if a project has several recipes.",
    )
    upstream: Mapping[str, Sequence[str]] = Field(
        default_factory=dict,
        description="For each bucket, keys of this project's assets that write the files of the bucket's sources.",
    )
    pipes: dict[str, PipesAnnotator] = Field(
        default_factory=dict,
        description="For each annotator that runs in an external process, the Pipes client that starts it.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the recipe.

        Raises:
            RecipeError: the recipe is invalid; `upstream` names an unknown bucket, or `pipes` an unknown annotator;
                another recipe of the project has the same keys or a nested prefix, or other versions of the same
                assets in the same workspace.
        """
        workspace = self._folder(context.project_root)
        processes.shut_out(workspace)
        recipe = self._recipe(Path(context.path))
        for other in context.component_tree.get_all_components(RecipeComponent):
            if other is not self:
                self._require_apart(other, recipe, context)
        compute = Compute("local", self.workers or cores())
        return definitions.build(
            recipe,
            workspace,
            compute=compute,
            served=True,
            upstream=self.upstream,
            key_prefix=self.key_prefix,
            pipes=self.pipes,
        )

    def _folder(self, project_root: Path) -> Path:
        shared = "://" in self.workspace
        return folder_of(self.workspace if shared else str(project_root / self.workspace)).absolute()

    def _recipe(self, folder: Path) -> Recipe:
        return recipes.load(recipes.find(self.recipe, folder))

    def _require_apart(self, other: RecipeComponent, recipe: Recipe, context: dg.ComponentLoadContext) -> None:
        """Check that another recipe of the project has another prefix, and the same assets in a common workspace."""
        theirs = other._recipe(Path(context.path))
        names = f"recipes {recipe.name} and {theirs.name} of this Dagster project"
        mine, prefix = (DagsterPlacement.of(one.key_prefix).prefix for one in (self, other))
        if mine == prefix:
            raise RecipeError(
                f"{names} have the same asset keys and names",
                found=f"key_prefix {self.key_prefix!r} for both",
                expected="a different key prefix for each recipe",
                remedy="set `key_prefix` in the defs.yaml of one of them",
            )
        if mine and prefix and mine[: len(prefix)] == prefix[: len(mine)]:
            raise RecipeError(
                f"{names} have nested key prefixes, so one would record failures of the other as its own",
                found=f"key_prefix {'/'.join(mine)} and {'/'.join(prefix)}",
                expected="prefixes of which neither begins with the other, such as team/a and team/b",
                remedy="set another `key_prefix` in the defs.yaml of one of them",
            )
        if self._folder(context.project_root) != other._folder(context.project_root):
            return
        own, others = ({stage.asset: _identity(stage) for stage in stages(one)} for one in (recipe, theirs))
        if differing := [asset for asset in own if asset in others and own[asset] != others[asset]]:
            raise RecipeError(
                f"{names} write different versions of {differing[0]} to one workspace",
                found=f"{len(differing)} assets that differ: {', '.join(differing[:5])}",
                expected="equal assets, because a workspace has one current version of each",
                remedy="set another `workspace` in the defs.yaml of one of them",
            )


def _identity(stage: Stage) -> tuple[str, tuple[str, ...]]:
    return stage.code_version, stage.deps
