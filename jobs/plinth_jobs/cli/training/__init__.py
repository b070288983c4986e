"""Commands about training runs.

job           `plinth job`: status, logs, cancel, submit, manifest; the same for every launcher
timeline      `plinth timeline`: the page of one run
goodput       `plinth goodput`: every rank-second of a run by its cause
sli           `plinth sli`: service-level indicators of all runs, error budgets
roofline      `plinth roofline`: what the steps of a run are bound by
profile       a trace of chosen steps of a run under way
batch         `plinth batch`: the documents of one training step
forensics     `plinth replay` and `plinth blame`: the loss of a step by document and source
checkpoint    `plinth checkpoint list | verify | average`
federated     `plinth federated coordinate | rounds`: sites that average weights
audit         `plinth audit resume`: proof that a resumed run equals the uninterrupted one
export_model  `plinth export model`: a release in Hugging Face's layout, signed
export_form   the same as GGUF, in int8 or int4, or pruned: measured against the release and judged
"""
