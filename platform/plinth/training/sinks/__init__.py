"""Export of a run's timeline to TensorBoard, Weights & Biases, Prometheus and the sinks that packages add.

    events.jsonl ──▶ relay: one process per job ──┬─▶ TensorBoard        sinks/tensorboard/
       (ranks know nothing of it)                             ├─▶ Weights & Biases   by wandb, online or sinks/wandb/
                                                              ├─▶ Prometheus         sinks/plinth.prom
                                                              └─▶ entry points `plinth.sinks`, such as OpenTelemetry

    run_metrics   the metrics of a run, and their values after any event; the numbers of an event by name
    added         interface of a sink, and the sinks that packages add
    relay         opens the tools that a recipe enables, and sends them each event once, even after restarts

The package needs no torch. The asset `run` logs to MLflow. Does not belong here: measurements (telemetry/).
"""
