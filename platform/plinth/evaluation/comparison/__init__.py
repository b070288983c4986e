"""Two models side by side, pair by pair of the same item.

    pairs         one small table for whatever was measured: item, cluster, slices, weight, a value of each model;
                  read from manifests
    differences   paired differences with intervals, Holm's correction, the smallest effect that could have been seen
    models        the two models: a folder of weights as a manifest; differences in recipe, data and steps
    job           the asset: the comparison as a manifest, from the step cache

Everything is a minus b. Who is better follows from the measure: bits are better when fewer, scores when more. No
interval is made here: `evaluation.statistics` does.
"""
