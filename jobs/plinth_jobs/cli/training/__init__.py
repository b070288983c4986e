"""Commands of training that leave for the ring.

sli          `plinth ops sli`: service-level indicators of all runs, error budgets
roofline     `plinth run roofline`: what the steps of a run are bound by
federated    `plinth run federated coordinate | rounds`: sites that average weights
export_form  a release as GGUF, in int8 or int4, or pruned: measured against the release and judged
"""
