"""Files whose comparisons are changed, with the tests that must notice; and the changes that do not alter behavior."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A file of the library and the tests that mirror it."""

    file: str
    tests: tuple[str, ...]


def _plinth(package: str, stem: str, *tests: str) -> Target:
    folder = f"tests/plinth/{package}"
    mirrored = tests or (f"test_{stem}.py",)
    return Target(f"platform/plinth/{package}/{stem}.py", tuple(f"{folder}/{name}" for name in mirrored))


def _gates(stem: str) -> Target:
    return Target(
        f"registry/plinth_registry/gates/{stem}.py",
        ("tests/registry/test_gates.py", "tests/registry/test_gate_reasons.py"),
    )


#: By decision that Plinth answers for.
TARGETS: dict[str, tuple[Target, ...]] = {
    "gates": (
        *(_gates(stem) for stem in ("origin", "margins")),
        Target(
            "platform/plinth/evaluation/measurement.py",
            ("tests/registry/test_gates.py", "tests/registry/test_gate_reasons.py"),
        ),
        Target("registry/plinth_registry/policy.py", ("tests/registry/test_policy.py",)),
        Target("registry/plinth_registry/judgement.py", ("tests/registry/test_waivers.py",)),
    ),
    "policy": (
        _plinth("corpus/policy", "policy", "test_policy.py", "test_rule_kernels.py"),
        _plinth("corpus/policy", "expressions", "test_expressions.py", "test_evaluator.py"),
        _plinth("corpus/policy", "compiled_policy"),
        _plinth("corpus", "verdicts", "curate/test_verdicts.py"),
    ),
    "dedup": (
        _plinth("corpus/dedup", "clusters", "test_clusters.py", "test_exact.py", "test_rank_table.py"),
        _plinth("corpus/dedup", "exact", "test_exact.py", "test_rank_table.py"),
        _plinth("corpus/dedup/near", "linking", "test_linking.py", "test_candidates.py", "test_minhash.py"),
        _plinth("corpus/dedup/near", "minhash"),
    ),
    "order": (
        _plinth("tokens/order", "order", "test_order.py", "test_permutation.py"),
        _plinth("tokens/order", "steps"),
    ),
    "packing": (
        _plinth("tokens", "packing", "packing/test_packing.py", "packing/test_best_fit.py"),
        _plinth("tokens", "packing_layout", "packing/test_packed.py"),
        _plinth("tokens/reading", "loader", "test_loader.py", "../packing/test_gather.py"),
    ),
    "checkpoint": (
        _plinth("training/checkpoint", "checkpoint", "test_checkpoint.py", "test_retention.py"),
        _plinth("training/checkpoint", "selection", "test_selection.py", "test_retention.py"),
    ),
    "guard": (
        _plinth("training/guard", "rules", "test_rules.py", "test_state_machine.py"),
        _plinth("training/guard", "state_machine"),
        _plinth("training/engine", "skipped_update", "../guard/test_update_skipper.py"),
    ),
}

#: (file, the changed line without its indentation) -> why no input can show the change.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "platform/plinth/corpus/dedup/near/linking.c",
        "if (refused.size < 2 * (held + most) || found + most >= found_pairs.size) break;",
    ): "the memory for pairs is made larger when the next group would fill it exactly, too; the pairs are the same",
    (
        "platform/plinth/tokens/packing.c",
        "for (; node >= 1; node /= 2) {",
    ): "the root has an odd number and no neighbour to try; one turn more ends at 0",
    (
        "platform/plinth/tokens/packing.c",
        "while (node <= leaves) {",
    ): "node `leaves` is the leaf of space 0, which no bin has: the way down never ends there",
    (
        "platform/plinth/tokens/reading/loader.c",
        "if (start <= bounds.at[shard] || start >= bounds.at[shard + 1]) shard = shard_of(bounds, start);",
    ): "a piece at the beginning of the shard before it is looked up, and found there",
}
