"""`events.jsonl`: the timeline of a run.

    timeline    every event and its fields; append, read, follow, one value per step
    lost_work   costs of failures: steps, seconds, seconds until training resumed
    parameters  how often layers are measured
"""
