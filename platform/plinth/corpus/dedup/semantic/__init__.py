"""Look-alikes in chosen buckets, by vectors and cosines.

semantic  the stage
vectors   a vector per document: hashed TF-IDF learned here, or the user's own
pairs     pairs whose cosine reaches a threshold: SimHash nominates, integer arithmetic decides
"""
