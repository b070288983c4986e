"""The cost of a recipe before it runs.

plan     a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
memory   bytes per device by ZeRO stage
activations  bytes that the backward pass keeps
ranking  every division over so many devices, with time, memory and its reason
interval  how often to save
corpus   core hours, bytes and money for a corpus of any size
prices   of cores, storage and requests
run_costs  what a finished run cost, and another size at its rates
"""
