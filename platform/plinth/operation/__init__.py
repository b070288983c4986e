"""Running the platform: what runs are predicted to take, may cost, and have cost.

    memory           bytes per device by the way a model is divided, with the activations that autograd keeps
    ranking          every division of a model over a number of devices, with time, memory and its reason
    forecast         measurements of a workspace's runs, and the prediction for the next, kept before its first job
    spending         devices of the table or this machine; the share of their peak runs reach; prices; save interval;
                     settings of a budget: team, prices, place of the ledger
    spending_ledger  reservations and limits, in SQLite or PostgreSQL
    admission        reserve before a job is submitted or a stage of the corpus is made, or refuse
    settlement       what jobs cost by their timelines, summed by run, bucket, team and person; goodput and energy
    workspace_files  settings in YAML, and the log of what arrived, was checked and published

Plans for people, who compare layouts, fleets and prices, are in the ring.
"""
