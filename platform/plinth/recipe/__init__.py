"""Models of the recipe, the user's YAML file that completely describes a run.

    recipe         the whole recipe, and checks over several sections
    yaml_lines     YAML parser that records positions, and merges recipes with those that they extend
    load           validation; reports every problem with file, key and line
    column_checks  references to annotators, columns, lists and models; warnings about legal but probably mistaken
                   settings; contents of the user's lists and probes
    extension_checks  keys removed since 0.3, with advice; references to readers, launchers, measurements and other
                   extensions, and their parameters; measured gates of `corpus.slices`
    reference      docs/recipe.md, written from the models

Each stage takes only the section that it needs, so changes in other sections do not re-run it.
"""
