"""One model over several devices.

    topology.py   rank -> place (data, pipeline, sequence, tensor), and the process groups
    tensor.py     every matrix divided (Megatron-LM)
    sequence.py   every sequence divided (DeepSpeed-Ulysses)
    pipeline.py   the layers divided
    stages.py     which layers a stage holds
    neighbours.py what stages send each other

`plinth.training.engine.engine.open_engine` picks what a run's `parallel:` block asks for.
"""
