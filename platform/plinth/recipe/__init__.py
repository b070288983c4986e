"""The user's YAML as frozen models: one complete description of a run.

    recipe         the whole recipe, and checks over several sections
    corpus         its corpus section, composed of the stages' parameter models
    release        name of the registered model
    yaml_lines     YAML with the line of every key
    extends        follow `extends:` to files and packaged recipes
    load           validate; every problem by file, key and line
    retired        keys of 0.3 that are gone, with advice
    column_checks  annotators, columns, lists and models that a recipe names
    extension_checks  readers, launchers, measurements and more that a recipe names, with their parameters
    gate_checks    measured gates of `corpus.slices`
    probe_checks   files of the user's probes
    list_checks    files of the user's lists
    advice         warnings about legal but probably mistaken settings
    overlay        a recipe with other policies, for trials
    reference      docs/recipe.md, written from the models

Identity: stages take only the section they need, so that a change elsewhere re-runs nothing.
"""

from plinth.corpus.sources.parameters import Bucket, Source, Terms
from plinth.recipe.recipe import Recipe

__all__ = ["Bucket", "Recipe", "Source", "Terms"]
