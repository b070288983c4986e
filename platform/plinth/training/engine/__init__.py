"""DeepSpeed behind a few methods.

batch_expansion     Rows as they are stored become, on the device, what the model takes.
deepspeed_settings  DeepSpeed's own configuration of a run.
engine              DeepSpeed behind a few methods: build, train one step, look at the whole parameters.
layer_statistics    Gradient norm and activations by layer, measured on the device during the step.
parameter_groups    Which parameters learn at which rate and decay by how much.
parameters          Optimizer and learning rate.
ranks               The ranks of a run: join their process group, draw from the same seeds, leave.
schedule            Learning rate as a function of tokens: nothing to save, nothing to resume, whatever a step's s
"""
