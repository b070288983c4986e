"""What a run is predicted to take: memory, time, devices, money. Admission of runs reads it; plans are in the ring.

memory   bytes per device by ZeRO stage
activations  bytes that the backward pass keeps
ranking  every division over a number of devices, with time, memory and its reason
efficiency  the share of a peak that computation reaches, stated or recorded
recorded  measurements of the runs of a workspace, for plans of the next
forecast  the prediction for a run, kept before its first job
machine  devices of the table, or this machine's measured processors
interval  how often to save
prices   of cores, storage and requests
"""
