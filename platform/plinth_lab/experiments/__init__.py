"""Arms of a recipe over sizes and seeds, compared with intervals.

    arms        the file of an experiment, and its runs: overlays over one recipe, fixed keys, the budget
    pipeline    the pipeline of one run: its stages, its sources, played over references of its own
    measure     the test text under a model; the manifest of a run, however it ended; the critical batch
    effects     scores of a run; each arm against the base with intervals; arms that cannot win any more
    answer      the manifest of the effects, the page's contents, which arms stop
    page        the page: question, arms, effects with intervals, decisions, failures, cost; its figures
    stages      the assets of an experiment
    run         an experiment run in this process; packaged experiments (`packaged/`), and those of a workspace
    command     `plinth experiment`
"""
