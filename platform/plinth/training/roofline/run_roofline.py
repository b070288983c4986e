"""The roofline of one run: its mean step, its computation, and the roof of the machine that it trains on."""

from __future__ import annotations

from plinth.model import flops
from plinth.model.flops import attention_bytes, product_bytes, update_bytes
from plinth.records import Frozen
from plinth.training.attempts import statement
from plinth.training.config import RunConfig
from plinth.training.roofline import machine_speed
from plinth.training.roofline.bottleneck import Bottleneck, Roof, StepWork, bottlenecks
from plinth.training.roofline.machine_speed import DeviceSpeed, MachineSpeed
from plinth.training.roofline.step_parts import MeanStep, mean_step
from plinth.training.telemetry.timeline import read_events

#: Bytes of an element of activations and weights.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class RunRoofline(Frozen):
    """What a run's steps are bound by. Roof and device are None where its machine was not measured."""

    run: str
    step: MeanStep
    work: StepWork
    roof: Roof | None
    device: DeviceSpeed | None
    causes: tuple[Bottleneck, ...]

    @property
    def reached(self) -> float:
        """FLOP/s of a rank while it computes."""
        seconds = self.step.seconds["compute"]
        return self.work.flops / seconds if seconds > 0 else 0.0


def machine(config: RunConfig) -> str:
    """The fingerprint of the machine of a run's leading rank; this machine's, where none was stated."""
    known = statement.known(config.directory)
    if not known:
        return machine_speed.this_machine()
    return machine_speed.machine_of(statement.stated(known[-1], config.run_id).hosts[0])


def of_run(config: RunConfig, speed: MachineSpeed | None) -> RunRoofline:
    """The roofline of a run as its timeline stands.

    Args:
        speed: of its machine; None: computation is not told apart from memory.

    Raises:
        MissingError: no two steps follow each other yet.
        IntegrityError: the timeline is broken.
    """
    step = mean_step(read_events(config.directory.events))
    work = step_work(config, step)
    found = speed.roof(step.device, precision(config, step), config.launch) if speed else None
    roof, device = found or (None, None)
    causes = bottlenecks(step.seconds, work, roof, waited_s=step.waited_s)
    return RunRoofline(run=config.run_id, step=step, work=work, roof=roof, device=device, causes=causes)


def precision(config: RunConfig, step: MeanStep) -> str:
    """The precision of a run's matrix products, as `DeviceSpeed` names it. FP8 was not measured: BF16 stands for it."""
    return "tf32" if step.precision == "fp32" and config.fp32_matmul == "tf32" else step.precision


def step_work(config: RunConfig, step: MeanStep) -> StepWork:
    """Computation of one rank in the mean step: the model's, divided over the ranks that share it."""
    model, parallel = config.model, config.parallel
    every, fused = parallel.activation_checkpointing, step.device == "cuda"
    recomputed = model.layers // every if every else 0
    element = ELEMENT_BYTES.get(step.precision, 4)
    lengths = {stretch.length for stretch in config.steps.stretches}
    per_token = {
        length: flops.flops_hardware(model, config.vocab_size, length, recomputed=recomputed, fused=fused)
        for length in lengths
    }
    done = moved = 0.0
    for number in step.steps:
        length = config.steps.length(number - 1)
        tokens = config.micro_batch_sequences * config.sequence_tokens // parallel.sequence
        done += config.step_tokens(number) * per_token[length] / config.ranks
        once = product_bytes(model, config.vocab_size, tokens, element, tensor=parallel.tensor)
        once += attention_bytes(model, tokens, element, tensor=parallel.tensor)
        again = 1 + recomputed / model.layers / 3  # a third of the bytes are the forward pass's
        moved += config.accumulation(number) * once * again / parallel.pipeline
    shared = parallel.tensor * parallel.pipeline * (config.data_ranks if parallel.zero_stage else 1)
    update = update_bytes(model, config.vocab_size, shared)
    return StepWork(flops=done / len(step.steps), bytes=moved / len(step.steps) + update)
