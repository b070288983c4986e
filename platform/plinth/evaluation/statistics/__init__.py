"""Every interval, test and correction of Plinth: no other package makes one.

    estimate     a number with its interval, counts, method and flags; values summed by cluster
    means        means and paired or unpaired differences, standard errors clustered by document
    ratios       ratios of sums, as bits per byte is, by a studentised bootstrap over clusters
    crossed      differences of ratios over seeds and documents, each seed scored on the same text
    shares       Wilson and Clopper-Pearson intervals of shares; bounds where items are missing
    replicates   intervals of what only a whole set has, from bootstrap samples of its items; of a new observation
    pairs        McNemar's test and Tango's interval where few pairs differ
    trend        slope of a straight line
    planning     Holm's correction, smallest detectable effect, number of items needed
    sequential   a test that may be looked at after every observation
    exchangeable the same, of whether later values come from where earlier ones came from
    distributions  normal, Student's, beta, binomial and gamma: scipy's, imported at the first call

A *cluster* is what was sampled: the document of several spans, the item of several samples, the template of several
pairs. Rows of one cluster are not independent, and their number is no evidence.

Coverage at 30, 100 and 300 clusters is measured by simulation in `tests/plinth/evaluation/statistics/`.

Wilson's formula itself stands in `plinth.corpus.slices.rates`, which the corpus needs and which lies below.
"""

from plinth.evaluation.statistics.crossed import DOCUMENTS_ONLY, crossed_difference
from plinth.evaluation.statistics.estimate import DEGENERATE, FEW_CLUSTERS, MISSING, Estimate
from plinth.evaluation.statistics.exchangeable import exchangeable_p
from plinth.evaluation.statistics.means import difference, mean, paired_difference
from plinth.evaluation.statistics.pairs import mcnemar
from plinth.evaluation.statistics.planning import holm, sample_size, smallest_effect
from plinth.evaluation.statistics.ratios import ratio, ratio_difference
from plinth.evaluation.statistics.replicates import from_replicates, prediction
from plinth.evaluation.statistics.sequential import Sequential
from plinth.evaluation.statistics.shares import lower_share, share, share_with_missing, upper_share
from plinth.evaluation.statistics.trend import slope

__all__ = [
    "DEGENERATE",
    "DOCUMENTS_ONLY",
    "FEW_CLUSTERS",
    "MISSING",
    "Estimate",
    "Sequential",
    "crossed_difference",
    "difference",
    "exchangeable_p",
    "from_replicates",
    "holm",
    "lower_share",
    "mcnemar",
    "mean",
    "paired_difference",
    "prediction",
    "ratio",
    "ratio_difference",
    "sample_size",
    "share",
    "share_with_missing",
    "slope",
    "smallest_effect",
    "upper_share",
]
