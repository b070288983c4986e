"""Commands about runs.

    audit         `plinth audit resume`: prove again that a resumed run equals the uninterrupted one.
    batch         `plinth batch`: the documents of one training step, computed from the manifests and never logged.
    checkpoint    `plinth checkpoint`: what a run has committed, on which layout, and whether every byte is as committ
    export_model  `plinth export model`: a checkpoint as a folder that Hugging Face and its kin load.
    forensics     `plinth replay` and `plinth blame`: what happened at a step. Torch runs in a process of its own.
    job           `plinth job`: the job behind a run, wherever it runs. The same commands for every launcher.
    timeline      `plinth timeline`: the page of one run, at any moment.
"""
