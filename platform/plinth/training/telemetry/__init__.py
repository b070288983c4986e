"""`events.jsonl`: the timeline of a run.

lost_work   What failures cost: steps trained for nothing, seconds spent on them, seconds until training went on.
parameters  What a run tells about itself besides loss and speed. Bears no identity: looking changes nothing.
timeline    `events.jsonl`: the one timeline of a run.
"""
