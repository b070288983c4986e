"""Running the platform: planning, spending, goodput, the log of assets.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
workspace_files  two files of a workspace: settings in YAML that people write, and `assets.jsonl`, the log of what
                 arrived, was checked and published
settlement  what jobs really cost: settled by their timelines, summed by run, bucket, team and person, with goodput
            and energy
"""
