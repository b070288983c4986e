"""Commands about training runs.

job           `plinth run job`: status, logs, cancel, submit, manifest; the same for every launcher
timeline      `plinth run timeline`: the page of one run
goodput       `plinth run goodput`: every rank-second of a run by its cause
sli           `plinth ops sli`: service-level indicators of all runs, error budgets
roofline      `plinth run roofline`: what the steps of a run are bound by
profile       a trace of chosen steps of a run under way
batch         `plinth run batch`: the documents of one training step
forensics     `plinth run replay` and `plinth run blame`: the loss of a step by document and source
checkpoint    `plinth run checkpoint list | verify | average`
federated     `plinth run federated coordinate | rounds`: sites that average weights
audit         `plinth run audit resume`: proof that a resumed run equals the uninterrupted one
export_model  `plinth export model`: a release in Hugging Face's layout, signed
export_form   the same as GGUF, in int8 or int4, or pruned: measured against the release and judged
"""
