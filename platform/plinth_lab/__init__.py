"""The ring: questions put to small runs, and the cost of large ones before they start.

    experiments/   arms x sizes x seeds of one recipe: the file, runs, effects, page, `plinth experiment`
    mixture/       experiments that search for a mixture: swarm, surrogate, proposal, confirmation
    scaling/       experiments that are a ladder; the law of any table of runs, `plinth experiment scaling`
    source_value/  experiments about a source and its price; its sample, `plinth corpus source`
    planning/      the cost of a run and of a corpus, `plinth run plan`, `plinth corpus scale`

The core finds it through entry points (`plinth.commands`, `plinth.definitions`, `plinth.tiles`) and imports none of it.
"""
