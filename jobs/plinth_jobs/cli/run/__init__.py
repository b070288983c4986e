"""Commands about training runs: `plinth run COMMAND`.

job         `plinth run job`: status, logs, cancel, submit, manifest; the same for every launcher
timeline    `plinth run timeline`: the page of one run
goodput     `plinth run goodput`: every rank-second of a run by its cause
profile     a trace of chosen steps of a run under way
batch       `plinth run batch`: the documents of one training step
forensics   `plinth run replay` and `plinth run blame`: the loss of a step by document and source
checkpoint  `plinth run checkpoint list | verify | average`
audit       `plinth run audit resume`: proof that a resumed run equals the uninterrupted one
"""
