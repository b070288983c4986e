"""Look-alikes in chosen buckets, by vectors and cosines.

semantic  the stage
pairs     pairs that may be alike: SimHash nominates, a sketch sorts out; `near.verify` decides
"""
