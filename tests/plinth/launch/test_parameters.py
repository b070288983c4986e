"""Where a run may run: what is impossible is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from plinth.launch.parameters import Launch
from plinth.training.config import run_key
from plinth.training.parameters.run import Training

INFRA = Path(__file__).resolve().parents[3] / "infra"

POD = {"image": "i", "claim": "c"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"kind": "slurm", "ranks": 3, "nodes": 2}, "ranks: 3 ranks cannot be divided evenly over 2 nodes"),
        ({"kind": "slurm", "ranks": 1, "nodes": 2}, "ranks: 1 ranks cannot be divided"),
        ({"kind": "slurm", "spares": 1}, "spares: 1 spares for 1 node"),
        ({"ranks": 2, "nodes": 2}, "nodes: kind local uses one machine"),
        ({"kind": "ray", "ranks": 4, "nodes": 2, "ray": {"resources": {"GPU": 1}}}, "ray.resources: 1 GPU for 2 ranks"),
        ({"kind": "ray", "ranks": 4, "ray": {"resources": {"GPU": 2}}}, "ray.resources: 2 GPU for 4 ranks"),
        ({"kind": "ray", "ray": {"address": "ray://head:10001"}}, "ray.address"),
        ({"kind": "slurm", "slurm": {"sbatch": ["--time=a day"]}}, "slurm.sbatch: '--time=a day' is not a time limit"),
        ({"kind": "slurm", "ranks": 8, "slurm": {"sbatch": ["--gpus-per-node=h200:4"]}}, "h200:4' for 8 ranks"),
        ({"kind": "slurm", "slurm": {"sbatch": ["--no-requeue"]}}, "slurm.sbatch: '--no-requeue' is set by Plinth"),
        ({"kind": "slurm", "slurm": {"sbatch": ["--output=x"]}}, "is set by Plinth"),
        ({"kind": "slurm", "slurm": {"sbatch": ["-J x"]}}, "is set by Plinth"),
        ({"kind": "slurm", "slurm": {"sbatch": ["qos=high"]}}, "is not an option"),
        ({"kind": "slurm", "slurm": {"sbatch": ["--qos=a\nrm -r ."]}}, "is not an option"),
        ({"kind": "kubernetes", "kubernetes": {"claim": "c"}}, "kubernetes.image: missing"),
        ({"kind": "kubernetes", "kubernetes": {"image": "i"}}, "kubernetes.claim: missing"),
        (
            {"kind": "kubernetes", "ranks": 4, "kubernetes": {**POD, "resources": {"nvidia.com/gpu": "2"}}},
            "kubernetes.resources: 2 GPUs for 4 ranks",
        ),
        ({"kind": "kubernetes", "kubernetes": {**POD, "namespace": "A_b"}}, "namespace"),
        ({"kind": "kubernetes", "kubernetes": {**POD, "rdma": {"rdma/hca": "0"}}}, "rdma: rdma/hca is '0'"),
        (
            {"kind": "kubernetes", "kubernetes": {**POD, "rdma": {"a/b": "1"}, "resources": {"a/b": "1"}}},
            "kubernetes.rdma: a/b is also in kubernetes.resources",
        ),
        ({"kind": "kubernetes", "kubernetes": {**POD, "queue": "Team_A"}}, "kubernetes.queue: 'Team_A' is not a"),
        ({"kind": "kubernetes", "kubernetes": {**POD, "priority_class": "a..b"}}, "kubernetes.priority_class: 'a..b'"),
        ({"environment": {"RANK": "1"}}, "environment: RANK is set by Plinth"),
        ({"environment": {"PLINTH_NODE": "1"}}, "environment: PLINTH_NODE is set by Plinth"),
        ({"environment": {"NCCL-DEBUG": "INFO"}}, "environment: 'NCCL-DEBUG' is not a variable name"),
    ],
)
def test_impossible_is_refused_with_a_reason(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Launch.model_validate(asked)
    assert says in str(refused.value).replace("\nkubernetes.namespace", " namespace")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"key": "a", "tolerationseconds": 1}, "tolerationseconds is not a field"),
        ({"key": "a", "operator": "exists"}, "operator 'exists' is unknown"),
        ({"key": "a", "operator": "Exists", "value": "b"}, "takes no value"),
        ({"value": "b"}, "without a key"),
        ({"key": "a", "effect": "NoRun"}, "effect 'NoRun' is unknown"),
        ({"key": "a", "tolerationSeconds": 5}, "requires the effect NoExecute"),
        ({"key": "a", "effect": "NoExecute", "tolerationSeconds": "5"}, "expected strings, and integer seconds"),
    ],
)
def test_a_toleration_that_the_server_would_refuse_is_refused_before(entry: dict[str, Any], says: str) -> None:
    asked = {"kind": "kubernetes", "ranks": 1, "kubernetes": {**POD, "tolerations": [entry]}}
    with pytest.raises(ValidationError, match=says):
        Launch.model_validate(asked)


@pytest.mark.parametrize("user", ["root", "-1", "1:", "1:2:3"])
def test_users_are_numbers(user: str) -> None:
    with pytest.raises(ValidationError, match="user"):
        Launch.model_validate({"kind": "kubernetes", "kubernetes": {**POD, "user": user}})


@pytest.mark.parametrize("limit", ["90", "90:00", "24:00:00", "2-12", "2-12:30", "2-12:30:00"])
def test_time_limits_of_slurm(limit: str) -> None:
    asked = {"sbatch": [f"--time={limit}", f"-t {limit}"]}
    assert len(Launch.model_validate({"kind": "slurm", "slurm": asked}).slurm.sbatch) == 2


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_examples_are_recipes_and_placement_is_no_identity(name: str) -> None:
    told = yaml.safe_load((INFRA / name / "recipe.yaml").read_text())["training"]
    training = Training.model_validate(told)
    assert (training.launch.kind, training.launch.ranks_per_node) == (name, 8)
    assert run_key(training, "m", "t") == run_key(Training(), "m", "t")
