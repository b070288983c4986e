"""Parallel map of a pure function over data files. The results have the same bytes with any number of workers.

    context        the runtime context of a stage, the run of its items through the step cache, the cost of its tasks;
                   the tasks of one process of an array job
    worker         the owner's interface to a worker process: pipes without deadlocks; streams of many small items
    worker_process the code inside a worker process: kernel timers for the time limits of items; exit when the owner
                   dies
    engine         local worker processes: ordered results, bounded retries, a time limit per task; the order of
                   attempts, for every engine; tasks on threads of this process; the number of PyTorch threads
    select_engine  choice of the engine: local processes, or the same map over a Ray cluster
    progress       progress bars in a terminal, plain lines in a log

A task function is a module-level `fn(store, task) -> tuple[Part, ...]`; its tasks are small picklable records.
"""
