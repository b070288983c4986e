"""Statistical intervals, tests and corrections. No other package computes them.

    estimate     a number with its interval, counts, method and flags; sums by cluster; always-valid tests of a mean
                 and of exchangeability
    means        means, ratios of sums and their differences, also over seeds and documents together; bootstrap
                 intervals; slopes
    curves       simultaneous band of a new curve
    shares       shares of items; Holm's correction, alpha-spending, minimum detectable effect, required number of items

A *cluster* is the sampled unit: a document with several spans, an item with several samples, or a template with several
pairs. Rows of one cluster are not independent, so the number of clusters limits the evidence.

Interval coverage with 30, 100 and 300 clusters is measured by simulation in `tests/plinth/evaluation/statistics/`.

Wilson's formula is in `plinth.corpus.slices.rates`, because the corpus uses it and must not import this
package.
"""

from plinth.evaluation.statistics.curves import new_curves, simultaneous
from plinth.evaluation.statistics.estimate import (
    DEGENERATE,
    FEW_CLUSTERS,
    MISSING,
    Estimate,
    Sequential,
    exchangeable_p,
    sequential_power,
)
from plinth.evaluation.statistics.means import (
    DOCUMENTS_ONLY,
    crossed_difference,
    difference,
    from_replicates,
    mean,
    paired_difference,
    prediction,
    ratio,
    ratio_difference,
    slope,
)
from plinth.evaluation.statistics.shares import (
    holm,
    lower_share,
    mcnemar,
    sample_size,
    share,
    share_with_missing,
    smallest_effect,
    spending_level,
    spent_alpha,
    upper_share,
)

__all__ = [
    "DEGENERATE", "DOCUMENTS_ONLY", "FEW_CLUSTERS", "MISSING", "Estimate", "Sequential", "crossed_difference",
    "difference", "exchangeable_p", "from_replicates", "holm", "lower_share", "mcnemar", "mean", "new_curves",
    "paired_difference", "prediction", "ratio", "ratio_difference", "sample_size", "sequential_power", "share",
    "share_with_missing", "simultaneous", "slope", "smallest_effect", "spending_level", "spent_alpha", "upper_share",
]  # fmt: skip
