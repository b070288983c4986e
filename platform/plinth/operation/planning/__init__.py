"""The cost of a recipe before it runs.

plan     a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
memory   bytes per device by ZeRO stage
activations  bytes that the backward pass keeps
corpus   core hours, bytes and money for a corpus of any size
run_costs  what a finished run cost, and another size at its rates
"""
