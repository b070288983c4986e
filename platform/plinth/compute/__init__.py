"""Map a pure function over parts, on any number of workers, with the same bytes out.

    attempts   which task is tried next and what a failure costs: the loop of every engine that can lose a worker
    engine     local worker processes: time limits, kill and replace
    ray_engine the same over a Ray cluster
    threads    threads of this process, for questions that a person waits for
    choice     which of them, by name
    progress   bars in a terminal, plain lines in a log
    stage      run a step over items through the step cache; build its manifest

Task functions are module-level, `fn(store, task) -> tuple[Part, ...]`, over small picklable tasks.
"""
