"""Commands about what a checkpoint can do.

generate    `plinth generate`: text after prompts
probes      `plinth probes list | explain | check`: probes, their items, and files of your own
evaluation  `plinth evaluation`: bits per byte by slice, the worst documents, the spans where two models differ
compare     `plinth compare`: two models side by side, and the page
drift       `plinth drift`: the champion on text that came after it; a proposal to go on training
exposure    `plinth exposure`: the canaries at the checkpoints of a run
fairness    `plinth fairness`: differences between groups, toxicity of continuations, drift
"""
