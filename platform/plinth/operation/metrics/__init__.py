"""Metrics in Prometheus' form.

    table         names, labels and meaning of all metrics
    exporter      collects parts, each at its pace; serves or writes the text
    part_process  parts that read much and seldom, in a process that ends with the collection
    runs          the part of runs: what timelines have got since the last look
    workspace     disk, alarms, orchestrator; corpus, budget

The part of service levels, releases and canaries is `plinth_registry.metrics`; `plinth_jobs.exporter` joins them.
"""
