"""Comparison of two models, paired by item.

    pairs         table of paired items, read from manifests: item, cluster, slices, weight, and the values of both
                  models
    differences   paired differences with intervals, Holm's correction, minimum detectable effect
    models        import of a folder of weights; differences between two models in recipe, data and steps
    job           the asset: the comparison as a manifest, from the step cache

Each difference is the value of model a minus the value of model b. The better model has fewer bits or a higher score,
depending on the measure. Intervals come from `evaluation.statistics`.
"""
