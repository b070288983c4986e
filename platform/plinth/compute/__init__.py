"""Map a pure function over parts, on any number of workers, with the same bytes out.

    context        the state of an installation with an engine and progress: the first argument of every stage
    worker         a process that can be killed, as its owner sees it
    worker_process its other side: time limits of an item in kernel timers, the end with its owner
    item_stream    many small items through one worker: the item that kills it is answered by its death
    engine         the Engine protocol; a pool of workers, a task each
    ray_engine     the same over a Ray cluster
    retries        the next task to try and the cost of a failure: the loop of every engine that can lose a worker
    select_engine  an engine by name
    share          the tasks that one of several independent processes begins with
    threads        threads of this process, for interactive commands
    torch_threads  the threads of PyTorch, for a while
    progress       bars in a terminal, plain lines in a log
    stage          run a step over items through the step cache; build its manifest
    costs          what tasks cost: CPU time, operations of the store, bytes

Task functions are module-level, `fn(store, task) -> tuple[Part, ...]`, over small picklable tasks.
"""
