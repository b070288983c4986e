"""Commands of training that leave for the ring.

export_form  a release as GGUF, in int8 or int4, or pruned: measured against the release and judged
"""
