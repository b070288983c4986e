"""Search for silent data corruption: sampled steps are taken twice, the second time on other devices.

    sampling    the sampled steps, their cost, the record in checkpoints, and the bound that it supports; no torch
    votes       the devices that disagree with the others; no torch
    state       digests of tensors, and a copy of a rank's state
    replays     on a rank: replay of a step with the work of the ranks exchanged

A sampled step covers everything from its first read of the weights to its last write of the optimizer's state: forward
and backward pass, reduction, update. A flipped bit that leaves no trace in the state after the step is not found.

Does not belong here: replay of steps after training (forensics), the guard's rules (guard).
"""
