"""Statements of the trainer about a checkpoint: read from the run, bound to the checkpoint, verified.

    commit     the signed record of the run's step, which names the digest of `manifest`
    manifest   the list of the committed checkpoint's files: weights and configuration, as registered, and `attempts`
    attempts   every start of the ranks until then; each is signed and names the attempt before
    contracts  launch contracts that the attempts name, if any; the owner signed each of them before the attempt
    looks      the last probe evaluations, if any, with their signal-to-noise ratio
    mean       for an averaged checkpoint: the signed statement of its files, and the commit records of all parents;
               `commit`, `manifest`, `attempts` and `looks` are then from the newest parent

They are stored in `provenance.json`. Registration refuses a checkpoint if its statements are absent, belong to another
run or step, or are about other files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import CheckpointError, LineageError, PlinthError
from plinth.model.hugging_face import CONFIG, INDEX
from plinth.provenance.statements import Chain, attempts_of
from plinth.records import Manifest
from plinth.text import counted
from plinth.training import attempts, contract
from plinth.training.attempts import BUNDLE, AttemptRecord, ContinuedState
from plinth.training.checkpoint import checkpoint as checkpoints
from plinth.training.checkpoint import commit_record, digest_tree, mean_record
from plinth.training.checkpoint.digest_tree import MANIFEST
from plinth.training.contract import LaunchContract, SignedContract
from plinth.training.directory import RunDirectory
from plinth.training.predicted_curve import CurveOutcome, outcomes
from plinth.training.validation.probe_curves import LOOKS
from plinth.trust.dsse import OWNER, TRAINER, now
from plinth.trust.root import Trust
from plinth_registry import signing
from plinth_registry.gates.facts import CodeChange, CodeFacts, ContractFacts, PromisedLoss

#: Committed files of a registered directory, in addition to the weights.
SAME: Final = (CONFIG, INDEX, checkpoints.STATE)
TENSORS: Final = ".safetensors"
#: Kinds of statements in the committed `attempts.json`.
KINDS: Final = ("attempts", "contracts")


def gathered(ctx: Context, checkpoint: Manifest, run_id: str) -> dict[str, Any]:
    """Return the trainer's signed statements about a checkpoint's step, for `provenance.json`. The statements are not
    verified here.

    Raises:
        LineageError: the run is not in this workspace, or its trainer stated nothing.
    """
    run, step = RunDirectory(ctx.workspace.runs / run_id), _step(checkpoint)
    folder = checkpoints.path(run, step)
    try:
        looks = folder / LOOKS
        more = {"looks": json.loads(looks.read_bytes())["looks"]} if looks.exists() else {}
        data = (folder / BUNDLE).read_bytes()
        more |= {"mean": _mean(run, checkpoint)} if mean_record.is_mean(checkpoint) else {}
        return more | {
            "commit": json.loads(checkpoints.record_path(run, step).read_bytes()),
            "manifest": json.loads((folder / MANIFEST).read_bytes()),
            **{name: list(attempts.unpacked(data, name)) for name in KINDS if name in json.loads(data)},
        }
    except (OSError, ValueError, KeyError) as error:
        raise LineageError(
            f"no training statement for step {step} of run {run_id}",
            found=error,
            expected=f"its commit record, {MANIFEST} and {BUNDLE} in {run.checkpoints}",
            remedy="copy the run's folder from the machine that trained it, or train again",
        ) from error


def _mean(run: RunDirectory, checkpoint: Manifest) -> dict[str, Any]:
    """Return the signed statements about an averaged checkpoint. The statements are not verified here."""
    records = {str(step): checkpoints.record_path(run, step) for step in checkpoint.params["steps"]}
    return {
        "statement": json.loads(mean_record.path(run, checkpoint.digest).read_bytes()),
        "commits": {step: json.loads(path.read_bytes()) for step, path in records.items()},
    }


def proved(ctx: Context, checkpoint: Manifest, provenance: Mapping[str, Any]) -> tuple[AttemptRecord, ...]:
    """Return the training attempts that led to a checkpoint, after checking their signatures, run, step and files.

    Args:
        provenance: provenance of a directory with a valid signature.

    Raises:
        LineageError: the statements are absent, or are about another checkpoint.
        SignatureError: no trainer signed the statements.
    """
    training, run = provenance.get("training") or {}, provenance["run"]
    if not {"commit", "manifest", "attempts"} <= set(training):
        raise _foreign("no training statement for this checkpoint", "no statement by the trainer")
    step, authority = _step(checkpoint), Trust.of(ctx.workspace).authority(TRAINER)
    manifest = _committed(ctx, run["id"], step, training["commit"])
    if (found_manifest := fingerprint.digest(training["manifest"])) != manifest:
        raise _foreign(
            f"the commit record of step {step} of {run['id']} lists other files than the training statement",
            found_manifest,
            manifest,
        )
    if mean_record.is_mean(checkpoint):
        _same_mean(ctx, checkpoint, run["id"], training, provenance["files"])
    _same_files(training, {} if mean_record.is_mean(checkpoint) else provenance["files"])
    found = attempts.opened(training["attempts"], authority, run["id"])
    if {one.key for one in found} != {run["key"]}:
        raise _foreign("the attempts belong to a run with other parameters or data", found[0].key, run["key"])
    if found[0].from_step or found[-1].from_step > step:
        began = f"attempts that began after steps {', '.join(str(one.from_step) for one in found)}"
        raise _foreign(f"the attempts do not lead to step {step}", began, f"from step 0 to {step}")
    promised(ctx, provenance, found)
    return found


def promised(
    ctx: Context, provenance: Mapping[str, Any], attempted: Sequence[AttemptRecord]
) -> tuple[SignedContract, ...]:
    """Return the launch contracts of a run after checking that its owner signed each of them before the attempt that
    names it. The result is empty if no attempt names a contract.

    Raises:
        LineageError: a contract is missing, was signed after the start, or is about another run.
        SignatureError: the owner did not sign a contract, or the owner's key was revoked before the attempt.
    """
    run, named = provenance["run"], attempts.named(attempted)
    if not any(one.sha256 for one in named):
        return ()
    envelopes = provenance["training"].get("contracts", [])
    digests = [fingerprint.digest(one) for one in envelopes]
    used = max((digests.index(one.sha256) for one in named if one.sha256 in digests), default=-1) + 1
    found = contract.opened(envelopes[:used], Trust.of(ctx.workspace).authority(OWNER), run["id"], named, now())
    contract.require_all(run["id"], digests[:used], [one.sha256 for one in named])
    if {one.contract.key for one in found} != {run["key"]}:
        raise _foreign("the launch contract is for other parameters or data", found[0].contract.key, run["key"])
    return found


def contract_in_words(ctx: Context, directory: Path) -> str | None:
    """Describe the launch contract of the model in a signed directory, or return None if its run had none.

    Raises:
        SignatureError, LineageError: the provenance or a contract does not verify.
    """
    provenance, _ = signing.provenance_of(directory, Trust.of(ctx.workspace).authority(TRAINER))
    found = promised(ctx, provenance, attempts_of(provenance["training"]))
    if not found:
        return None
    last = found[-1].contract
    return f"number {last.number}, signed by {last.owner} before the run started"


def contract_facts(ctx: Context, chain: Chain, signed: LaunchContract) -> ContractFacts:
    """Return a launch contract with the losses of the run, from the run's manifest in the ancestry. Without the run's
    losses, no segment counts as reached."""
    from plinth.storage.parts import read_table  # loads pyarrow

    facts = ContractFacts(owner=signed.owner, number=signed.number, rank_hours=signed.budget.rank_hours)
    if signed.curve is None:
        return facts
    reached: tuple[CurveOutcome, ...] = ()
    with suppress(PlinthError, StopIteration, ValueError):
        run = ctx.refs.load(next(link.digest for link in chain.own if link.asset == "run"))
        (part,) = run.named("timeline.parquet")
        rows = read_table(ctx.store, part, ["tokens", "loss"]).to_pylist()
        reached = tuple(outcomes(signed.curve, ((row["tokens"], row["loss"]) for row in rows), ended=True))
    last = next((one for one in reached if one.predicted == signed.curve.points[-1]), None)
    final = None if last is None or last.loss is None else PromisedLoss(
        loss=last.loss, low=last.predicted.low, high=last.predicted.high
    )
    missed = tuple(one.words for one in reached if not one.inside)
    known = {"level": signed.curve.level, "segments": len(signed.curve.points), "missed": missed, "final": final}
    return facts.model_copy(update=known)


def code(attempts: tuple[AttemptRecord, ...]) -> CodeFacts:
    """Return the facts about the code that the training attempts used, for gates."""
    return CodeFacts(
        commits=tuple(sorted({host.commit for one in attempts for host in one.hosts if host.commit})),
        unclean=tuple(dict.fromkeys(said for one in attempts for said in _unclean(one))),
        changes=(*_changes(attempts), *_unknown_code(attempts)),
    )


def in_words(checkpoint: Manifest, attempts: tuple[AttemptRecord, ...], replayed: int = 0) -> str:
    """Describe the training of a checkpoint: averaging, attempts, continuations, commits, and changes of software or
    hardware.

    Args:
        replayed: steps before the checkpoint that were replayed with equal results.
    """
    hosts = [host for one in attempts for host in one.hosts]
    commits = sorted(
        {host.commit[:12] + " with uncommitted changes" * bool(host.dirty) for host in hosts if host.commit}
    )
    said = [f"a {mean_record.in_words(checkpoint)}"] if mean_record.is_mean(checkpoint) else []
    said.append(f"trained in {len(attempts)} attempts" if len(attempts) > 1 else "trained in 1 attempt")
    since = _step(checkpoint) - replayed if replayed else None
    said += [_continued(one.continuation, since) for one in attempts if one.continuation is not None]
    said.append(f"commit {', '.join(commits)}" if commits else "unknown commit")
    changed = [change.text for change in _changes(attempts)]
    if not changed and len({host.software for host in hosts}) > 1:
        said.append("mixed software")
    said += changed
    if len({host.hardware for host in hosts}) > 1:
        said.append("mixed hardware")
    return ", ".join(said)


def _changes(attempts: tuple[AttemptRecord, ...]) -> Iterator[CodeChange]:
    """Yield each change of the code that trains, with its comparison if that is about this change."""
    for before, after in pairwise(one for one in attempts if not one.audit):
        old, new = ({host.trains_with for host in one.hosts} for one in (before, after))
        if old == new:
            continue
        said, made = f"attempt {after.number} has other code from step {after.from_step + 1}", after.upgrade
        if (
            made is None
            or not made.accepted
            or (old, new, made.to_step) != ({made.before}, {made.after}, after.from_step)
        ):
            yield CodeChange(text=f"{said}: not compared", increase=None)
        else:
            yield CodeChange(text=f"{said}: {made.in_words}", increase=made.increase)


def _unknown_code(attempts: tuple[AttemptRecord, ...]) -> Iterator[CodeChange]:
    """Yield each attempt that trained on machines whose code is unknown, as a change that was not compared."""
    for one in attempts:
        if one.silent_nodes and not one.audit:
            said = f"attempt {one.number}: the code of {counted(one.silent_nodes, 'machine')} is unknown"
            yield CodeChange(text=said, increase=None)


def _continued(one: ContinuedState, since: int | None) -> str:
    """Describe a recovery, and whether the steps after it are among those that were replayed since a step."""
    return one.in_words + (", then replayed bit-identically" if since is not None and one.step >= since else "")


def _unclean(one: AttemptRecord) -> list[str]:
    said = [f"attempt {one.number}: {one.silent_nodes} machines did not report"] if one.silent_nodes else []
    for host in one.hosts:
        if not host.commit:
            said.append(f"attempt {one.number} on {host.host}: {host.no_commit or 'unknown commit'}")
        elif host.dirty is not False:
            said.append(f"attempt {one.number} on {host.host}: uncommitted changes on {host.commit[:12]}")
    return said


def _committed(ctx: Context, run_id: str, step: int, commit: Mapping[str, Any]) -> str:
    """Return the digest of the list of files that the trainer committed at this step."""
    run, where = RunDirectory(ctx.workspace.runs / run_id), f"the commit record of step {step} of {run_id}"
    try:
        return commit_record.verified(run, step, json.dumps(commit).encode(), where).manifest_sha256
    except CheckpointError as error:
        raise _foreign(error.what, error.found, error.expected) from error


def _same_mean(
    ctx: Context, checkpoint: Manifest, run_id: str, training: Mapping[str, Any], files: Mapping[str, Any]
) -> None:
    """Check that the trainer stated that these files are the average of checkpoints that the trainer committed."""
    signed = training.get("mean") or {}
    if not {"statement", "commits"} <= set(signed):
        raise _foreign("no statement about this averaged checkpoint", "no statement by the trainer")
    stated = mean_record.opened(signed["statement"], Trust.of(ctx.workspace).authority(TRAINER), checkpoint)
    found = {str(one.step): _committed(ctx, run_id, one.step, signed["commits"][str(one.step)])
             for one in stated.parents if str(one.step) in signed["commits"]}  # fmt: skip
    expected = {str(one.step): one.manifest_sha256 for one in stated.parents}
    newest = str(_step(checkpoint))
    if found != expected or expected.get(newest) != fingerprint.digest(training["manifest"]):
        raise _foreign("the average used checkpoints other than the committed checkpoints", found, expected)
    if stated.run != run_id or dict(stated.files) != {name: one["sha256"] for name, one in files.items()}:
        raise _foreign("the registered files differ from the averaged files", dict(stated.files))


def _same_files(training: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Check that the committed files equal the registered files, and that the statements committed with them equal the
    registered statements.

    Args:
        files: registered files; empty for an averaged checkpoint, whose weights were not committed.
    """
    root = digest_tree.read_root(fingerprint.canonical(training["manifest"]), "the registered checkpoint")
    listed = [*root.files, *(file for rank in root.ranks for file in rank.model)]
    committed = {file.path: file.digest for file in listed}
    same = [name for name in files if name in SAME or name.endswith(TENSORS)]
    expected = {name if name == checkpoints.STATE else digest_tree.MODEL + name: files[name]["sha256"] for name in same}
    expected[BUNDLE] = fingerprint.digest(attempts.bundled(training["attempts"], training.get("contracts", ())))
    expected |= {LOOKS: fingerprint.digest({"looks": training["looks"]})} if "looks" in training else {}
    asked = {path for path in committed if path == LOOKS or (files and _is_weights(path))} | set(expected)
    different = sorted(path for path in asked if committed.get(path) != expected.get(path))
    if different:
        found = ", ".join(f"{path} {committed.get(path, 'absent')[:12]}" for path in different)
        raise _foreign("the registered files differ from the files that the trainer committed", found)


def _is_weights(path: str) -> bool:
    return path.startswith(digest_tree.MODEL) and path.endswith(TENSORS)


def _step(checkpoint: Manifest) -> int:
    step = checkpoint.stats.get("step")
    if not isinstance(step, int):
        raise _foreign(f"checkpoint {checkpoint.digest[:12]} does not state its step", step)
    return step


def _foreign(
    what: str, found: object, expected: object = "the trainer's statements about this checkpoint"
) -> LineageError:
    return LineageError(
        what, found=found, expected=expected, remedy="register the checkpoint in the workspace of its run"
    )
