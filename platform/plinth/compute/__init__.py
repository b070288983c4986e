"""Map a pure function over parts, on any number of workers, with the same bytes out.

    context        the runtime context of a stage, its items through the step cache, what its tasks cost; its share of
                   the tasks, for schedulers that know only indices
    worker         a worker as its owner sees it: pipes that never block both ends; many small items through one
                   worker
    worker_process its other side: time limits of an item in kernel timers, the end with its owner
    engine         local worker processes: ordered results, bounded retries, a time limit per task; the order of
                   attempts, for every engine; tasks on threads of this process; the number of PyTorch's threads
    select_engine  the engine of a recipe: local processes, or the same map over a Ray cluster
    progress       bars in a terminal, plain lines in a log

Task functions are module-level, `fn(store, task) -> tuple[Part, ...]`, over small picklable tasks.
"""
