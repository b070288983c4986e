"""The user's YAML as frozen models: one complete description of a run.

    recipe         the whole recipe, and checks over several sections
    yaml_lines     YAML with positions; files that `extends` others, merged
    load           validate; every problem by file, key and line
    column_checks  annotators, columns, lists and models that a recipe names; warnings about legal but probably mistaken
                   settings; the user's lists and probes against files
    extension_checks  keys of 0.3 that are gone, with advice; readers, launchers, measurements and more that a recipe
                   names, with their parameters; measured gates of `corpus.slices`
    reference      docs/recipe.md, written from the models

Identity: stages take only the section they need, so that a change elsewhere re-runs nothing.
"""
