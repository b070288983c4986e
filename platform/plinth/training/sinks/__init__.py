"""A run's timeline in the tools of others: TensorBoard, Weights & Biases, Prometheus.

    events.jsonl ──▶ relay: a process beside the supervisor ──┬─▶ tensorboard_files   sinks/tensorboard/
       (ranks know nothing of it)                             ├─▶ wandb_run           by wandb, online or sinks/wandb/
                                                              └─▶ prometheus_file     sinks/plinth.prom

    parameters  the sinks of a recipe
    scalars     the numbers of an event, by name
    metric      the record of a metric, and Prometheus' text format
    run_metrics the metrics of a run, and their values after any event
    run_follower  a timeline into these values, each byte read once
    relay       follows the timeline; each event once, over restarts of any kind

Needs no torch. MLflow is fed by the asset of the run. Does not belong here: what is measured (telemetry/).
"""
