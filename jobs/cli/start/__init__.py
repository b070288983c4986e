"""Commands to check, plan, run and watch.

    doctor   `plinth doctor`: what this machine has and lacks, in plain words. Imports nothing heavy to find out.
    machine  What `plinth doctor` looks at. Each function looks at one thing and says what it found.
    plan     `plinth plan`: a run in numbers, before it is spent.
    recipe   `plinth recipe check | show | schema`: the user's YAML, before anything runs.
    run      `plinth run` and `plinth up`: the commands that start work.
    scale    `plinth scale`: what a corpus of any size costs, from measured speeds.
    status   `plinth status`, `plinth funnel`, `plinth report`: what is there.
"""
