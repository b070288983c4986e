"""An example of a package that extends Plinth; each member is a module of its own.

quotes     annotator: share of quoted lines, and whether there is a signature
mbox       reader: mail archives, one record per message
margin     gate: bits per byte below a baseline by a margin on every slice
riddles    probe: six riddles with wrong answers and controls
sagemaker  launcher: training jobs of Amazon SageMaker; `request` makes what it sends
"""
