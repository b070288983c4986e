"""Experiments with small runs, and cost estimates of large ones.

    experiments/   arms x sizes x seeds of one recipe: file, runs, effects, page, `plinth experiment`
    loop/          search over a stream of proposals with one error budget, `plinth experiment loop`
    mixture/       search for a mixture: swarm, surrogate, proposal, confirmation
    scaling/       scaling ladders and laws, `plinth experiment scaling`
    source_value/  value of a source: sample, experiment, price, `plinth corpus source`
    planning/      cost of a run and of a corpus, `plinth run plan`, `plinth corpus scale`
    qualification/ what a machine reaches in training, next to published figures, `plinth qualify`

Loaded through entry points (`plinth.commands`, `plinth.definitions`, `plinth.tiles`); no core module imports this
package.
"""
