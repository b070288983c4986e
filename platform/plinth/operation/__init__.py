"""Operation: predictions, limits and costs of runs.

    memory           bytes per device for a parallel layout of a model, with the activations kept by autograd
    ranking          all parallel layouts of a model over a number of devices, with time, memory and bottleneck
    forecast         measurements of a workspace's runs, and predictions for the next, stored before its first job
    spending         devices of the table or this machine; efficiencies; prices; save interval;
                     settings of a budget: team, prices, location of the ledger
    spending_ledger  reservations and limits, in SQLite or PostgreSQL
    admission        reservation before a job is submitted or a corpus stage runs
    contracts        launch contract of a run: draft, signature, check before a submission
    settlement       costs of jobs from their timelines, by run, bucket, team and person; goodput and energy
    workspace_files  settings in YAML, and the log of arrivals, checks and publications
    asset_listeners  notifications about assets, which packages send to other systems

Plans that compare layouts, fleets and prices are in the ring.
"""
