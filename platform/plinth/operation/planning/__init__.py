"""The cost of a recipe before it runs.

plan     a training run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
memory   bytes per device by ZeRO stage
activations  bytes that the backward pass keeps
ranking  every division over so many devices, with time, memory and its reason
efficiency  the share of a peak that computation reaches, stated or recorded
recorded  what the runs of a workspace were measured to do, for plans of the next
recorded_speed  tokens a second of a plan, as like runs reached them
forecast  what was foretold of a run, kept before its first job
machine  devices of the table, or this machine's measured processors
interval  how often to save
corpus   core hours, bytes and money for a corpus of any size
prices   of cores, storage and requests
run_costs  what a finished run cost, and another size at its rates
"""
