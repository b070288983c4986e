"""Comparison of two models, paired by item.

    pairs         table of any measurement: item, cluster, slices, weight, and the values of both models; read from
                  manifests
    differences   paired differences with intervals, Holm's correction, minimum detectable effect
    models        import of a folder of weights; differences in recipe, data and steps
    job           the asset: the comparison as a manifest, from the step cache

Differences are a minus b. The better model follows from the measure: fewer bits, or a higher score. Intervals come from
`evaluation.statistics`.
"""
