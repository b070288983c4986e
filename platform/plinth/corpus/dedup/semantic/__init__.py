"""Look-alikes in chosen buckets, by vectors and cosines.

semantic  the stage
vectors   a vector per document: hashed TF-IDF learned here, or the user's own
pairs     pairs that may be alike: SimHash nominates, a sketch sorts out; `near.verify` decides
"""
