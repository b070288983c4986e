"""Metrics in Prometheus' form.

    table       names, labels and meaning of all metrics
    exporter    collects parts, each at its pace; serves or writes the text
    parts       the parts of a workspace; those that read much and seldom run in a process that ends with the collection
    collectors  runs: what was added to timelines; disk, alarms, orchestrator; corpus, budget
    signed      service levels, releases and canaries: the code of that process
    command     `plinth ops metrics`
"""
