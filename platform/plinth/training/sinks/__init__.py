"""Export of a run's timeline to TensorBoard, Weights & Biases and Prometheus.

    events.jsonl ──▶ relay: one process per job ──┬─▶ TensorBoard        sinks/tensorboard/
       (ranks know nothing of it)                             ├─▶ Weights & Biases   by wandb, online or sinks/wandb/
                                                              └─▶ Prometheus         sinks/plinth.prom

    run_metrics   the metrics of a run, and their values after any event; the numbers of an event by name
    relay         the three tools, opened as a recipe asks; follows the timeline: each event once, over restarts

Needs no torch. MLflow is fed by the asset of the run. Does not belong here: measurements (telemetry/).
"""
