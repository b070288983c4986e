"""A run's timeline in the tools of others: TensorBoard, Weights & Biases, Prometheus.

    events.jsonl ──▶ relay: a process beside the supervisor ──┬─▶ TensorBoard        sinks/tensorboard/
       (ranks know nothing of it)                             ├─▶ Weights & Biases   by wandb, online or sinks/wandb/
                                                              └─▶ Prometheus         sinks/plinth.prom

    run_metrics   the metrics of a run, and their values after any event; the numbers of an event by name
    relay         the three tools, opened as a recipe asks; follows the timeline: each event once, over restarts

Needs no torch. MLflow is fed by the asset of the run. Does not belong here: what is measured (telemetry/).
"""
