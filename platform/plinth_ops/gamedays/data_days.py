"""Game days of data: a corrupted shard, a poisoned batch, and stalled or dropped storage connections.

The S3 server is configured by `PLINTH_GAMEDAY_S3` or started:

    PLINTH_GAMEDAY_S3=s3://bucket/prefix with AWS_ENDPOINT_URL=http://host:port and credentials   an existing server
    without it, moto (`pip install moto[server]`) on loopback, in this process, with an empty bucket
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Final

from plinth.compute.context import Context
from plinth.errors import RequestError
from plinth.model.parameters import Model
from plinth.records import Blob
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture.parameters import Phase
from plinth.tokens.reading.shard_sources import first_touches
from plinth.tokens.shards.parameters import Reading
from plinth.training import data
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import faults, gameday, rehearsal, warm_job
from plinth_ops.gamedays.faults import FaultyLine, RehearsalFault
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal, RehearsalData


def trained_without(config: RunConfig, left_out: Collection[int]) -> dict[str, Any]:
    """Train on one rank without guard, checkpoints and the steps in `left_out`; return digests of the final state."""
    import torch

    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine
    from plinth.training.trainer import Trainer

    unwatched = config.model_copy(update={"guard": GuardParameters(enabled=False)})
    rank = engine.join(unwatched)
    torch.set_num_threads(1)
    trainer = Trainer(unwatched, rank)
    trainer.keep_optimizer()
    stream = trainer.batches(1)
    for step in range(1, config.total_steps + 1):
        if step in left_out:
            next(stream)
        else:
            trainer.launch(stream, step).read()
    found = snapshot.digests(trainer.engine)
    engine.leave()
    return found


VARIABLE = "PLINTH_GAMEDAY_S3"
_ENDPOINT = "AWS_ENDPOINT_URL"
_MOTO = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class S3Server:
    """Location on an S3 server: host and port, bucket, and prefix for all objects."""

    endpoint: str
    bucket: str
    prefix: str
    client: Any

    @property
    def uri(self) -> str:
        """URI of the bucket and prefix for all objects."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write an object to the server, below the prefix."""
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}".lstrip("/"), Body=data)


def missing() -> str | None:
    """Return the reason why no S3 server can be used, or None if a server is available."""
    if os.environ.get(VARIABLE):
        if not os.environ.get(_ENDPOINT, "").startswith("http://"):
            return f"{VARIABLE} needs {_ENDPOINT}=http://host:port without TLS, because a proxy injects the fault"
        return None
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        return f"no S3 server: set {VARIABLE}, or install moto[server]"
    return None


def credentials() -> dict[str, str]:
    """Return environment variables with the credentials that a job needs for the server, without its endpoint."""
    return {} if os.environ.get(VARIABLE) else dict(_MOTO)


def found() -> S3Server:
    """Return the S3 server for this game day; start it on first use.

    Raises:
        RequestError: no S3 server is available.
    """
    if why := missing():
        raise RequestError("no S3 server for this game day", found=why)
    named = os.environ.get(VARIABLE)
    if not named:
        return _started()
    import boto3

    endpoint = os.environ[_ENDPOINT].removeprefix("http://").rstrip("/")
    bucket, _, prefix = named.removeprefix("s3://").rstrip("/").partition("/")
    return S3Server(endpoint, bucket, prefix, boto3.client("s3"))


@lru_cache(maxsize=1)
def _started() -> S3Server:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="gameday")
    return S3Server(f"{host}:{port}", "gameday", "", client)


# A bad shard


@dataclass(frozen=True)
class Shelved:
    """Undisturbed run, its shards, and the first step that reads each shard (by the MD5 of the shard)."""

    whole: Rehearsal
    shards: tuple[Blob, ...]
    first_step: dict[str, int]


def shelve(folder: Path) -> Shelved:
    """Prepare an undisturbed run, and compute the first step that reads each shard."""
    whole = rehearsal.rehearse(folder)
    loader = data.run_loader(whole.config, 0, 1)
    touched = enumerate(first_touches(loader, 0, whole.config.total_steps), 1)
    first = {one.reader.shards[one.number].blob.md5: step for step, found in touched for one in found}
    ctx = Context(Workspace(whole.config.workspace))
    manifests = [ctx.refs.load(digest) for digest in whole.config.shards.values()]
    blobs = tuple(part.blob for made in manifests for part in made.named("shard-"))
    return Shelved(whole, blobs, first)


def bad_shard(made: Shelved, folder: Path, chooser: Random) -> Struck:
    """Flip a bit in one shard, train, restore the shard, and resume the run."""
    config = made.whole.copy(folder / "workspace")
    blob = chooser.choice(made.shards)
    path, at = Context(Workspace(config.workspace)).store.path(blob), chooser.randrange(blob.bytes)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chooser.randrange(8)]) + whole[at + 1 :])
    first, status = made.first_step.get(blob.md5), warm_job.run(config)
    story = timeline(config.directory.events)
    found, after = list[Outcome](), None
    if first is not None:
        alert, after = gameday.fired(config, BAD_SHARD.alerts, "failed")
        kinds = [event["kind"] for event in story.of("rank_failed")]
        said = " ".join(f"{event['what']} {event['found']}" for event in story.of("rank_failed"))
        named = blob.md5 in said.replace("/", "")
        found += [
            *alert,
            Outcome(what="the job fails and names the shard", passed=status == 7 and named, seen=f"{kinds}"),
            finding("training stops before the first read of the shard", max(story.steps, default=0), first - 1),
        ]
        path.write_bytes(whole)
        status = warm_job.run(config)
    found += [rehearsal.finished(status), *made.whole.end_state(config)]
    reader = f"first read in step {first}" if first else "never read"
    return Struck(f"a bit of byte {at} flipped in shard {blob.md5[:8]}, {reader}", tuple(found), after)


# A poisoned batch

#: Number of steps of the poisoned run, and possible first steps of the poison.
POISONED_STEPS, BEGINS = 100, range(64, 90)

_SUBJECTS = ("the cat", "a ship", "my house", "the river", "an engine")
_VERBS = ("sees", "carries", "follows", "remembers")
_OBJECTS = ("the stone", "a letter", "the evening", "its shadow", "the road")


def orderly(folder: Path) -> RehearsalData:
    """Generate two text sources: sentences from a small grammar, which a small model learns, and random letters."""
    chooser = random.Random(7)
    return rehearsal.make_data(folder, {"web": sentences(chooser, 400), "dump": noise(chooser, 60)})


def sentences(chooser: Random, count: int) -> list[str]:
    """Return texts of six sentences each, generated from a small grammar."""

    def sentence() -> str:
        return f"{chooser.choice(_SUBJECTS)} {chooser.choice(_VERBS)} {chooser.choice(_OBJECTS)}."

    return [" ".join(sentence() for _ in range(6)) for _ in range(count)]


def noise(chooser: Random, count: int) -> list[str]:
    """Return texts of random letters."""

    def letters() -> str:
        return "".join(chooser.choice("0123456789ABCDEF#") * chooser.choice([1, 1, 2, 9]) for _ in range(60))

    return [letters() for _ in range(count)]


def poisoned_batch(made: RehearsalData, folder: Path, chooser: Random) -> Struck:
    """Replace text in a few consecutive steps by random letters, and check that exactly these steps are skipped."""
    shutil.copytree(made.ctx.workspace.root, folder / "workspace")
    own = replace(made, ctx=Context(Workspace(folder / "workspace")))
    begin, length = chooser.choice(BEGINS), chooser.randint(3, 7)
    poison = range(begin, begin + length)
    config = _poisoned(own, poison)
    rehearsal.without_audit(config)
    status, story = warm_job.run(config), timeline(config.directory.events)
    alert, after = gameday.fired(config, POISONED.alerts, "intervention")
    kept_back = [step for step, event in story.steps.items() if event.get("vetoed")]
    out = sorted({*story.skipped, *kept_back})
    expected = warm_job.call(trained_without, config, out)
    state = checkpoint.read_state(config.directory, config.total_steps) if status == 0 else {}
    sources = {event["sources"][0]["source"] for event in story.of("documents")}
    reference = Rehearsal(config)
    found = [
        rehearsal.finished(status),
        finding("exactly the poisoned steps are skipped", out, list(poison)),
        finding("the log names the documents and the bad source of the poisoned steps", sources, {"dump.example"}),
        *rehearsal.documents_found(reference, config, out),
        finding("the weights are bit-identical to those of a run without the poisoned steps",
                state.get("parameters_sha256"), expected["parameters_sha256"]),
        finding("the optimizer state is bit-identical", state.get("optimizer_sha256"), expected["optimizer_sha256"]),
        rehearsal.committed_found(config),
        *alert,
    ]  # fmt: skip
    return Struck(f"noise in steps {begin} to {poison.stop - 1}", tuple(found), after)


def _poisoned(made: RehearsalData, poison: range) -> RunConfig:
    spans = [("before", poison.start - 1, {"web": 1.0}), ("poison", len(poison), {"dump": 3.0, "web": 1.0})]
    spans.append(("after", POISONED_STEPS + 1 - poison.stop, {"web": 1.0}))
    phases = tuple(Phase(name=name, fraction=steps / POISONED_STEPS, weights=shares) for name, steps, shares in spans)
    return rehearsal.configured(
        made,
        phases,
        POISONED_STEPS,
        model=Model(layers=2, dim=48, heads=4, kv_heads=2, ffn_dim=96),
        optimizer=Optimizer(lr=1e-2, warmup_fraction=0.05, decay_fraction=0.5),
        guard=GuardParameters(min_steps=16, window_steps=48),
        checkpoints=Checkpoints(every_steps=16, keep_last=3, audit_steps=8, mode="sync"),
    )


# Storage that stalls

#: Read timeout of the rehearsal, in seconds; the default of a run is 30 s.
READ_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Stored:
    """Undisturbed run, and a copy of its shards on an S3 server."""

    whole: Rehearsal
    endpoint: str
    uri: str
    smallest: int


def store(folder: Path) -> Stored:
    """Prepare an undisturbed run from local shards, and copy its shards to an S3 server."""
    whole = rehearsal.rehearse(folder)
    server = found()
    ctx = Context(Workspace(whole.config.workspace))
    blobs = [part.blob for digest in whole.config.shards.values() for part in ctx.refs.load(digest).parts]
    for blob in blobs:
        server.put(f"files/md5/{blob.md5[:2]}/{blob.md5[2:]}", ctx.store.read_bytes(blob))
    return Stored(whole, server.endpoint, server.uri, min(blob.bytes for blob in blobs))


def storage_stall(made: Stored, folder: Path, chooser: Random) -> Struck:
    """Read a run's shards over a connection that stalls or drops during responses."""
    after, failures = chooser.randrange(made.smallest), chooser.randint(1, 3)
    stall_s = chooser.choice([0.0, 0.5, 3.0])
    reading = Reading(remote=made.uri, fetch="shard", cache=str(folder / "cache"))
    config = made.whole.copy(folder / "workspace", reading=reading, batches=faults.SOURCE)
    _forget_shards(config)
    short = RehearsalFault(kind="read timeout", step=0, value=READ_TIMEOUT_S)
    _, environment = faults.plan(folder / "plan", short)
    with FaultyLine(made.endpoint, after, failures, stall_s) as line:
        here = f"http://127.0.0.1:{line.port}"
        status = warm_job.run(config, **environment, **credentials(), AWS_ENDPOINT_URL=here)
        struck = line.struck
    story = timeline(config.directory.events)
    found = [
        Outcome(what="the fault was injected", passed=struck > 0, seen=f"{struck} responses"),
        finding("no attempt fails", [event["event"] for event in story.of("restart")], []),
        rehearsal.finished(status),
        *made.whole.end_state(config),
        *gameday.no_page(config),
    ]
    how = "dropped" if not stall_s else f"stalled for {stall_s:g} s"
    return Struck(f"{struck} responses {how} after {after} bytes", tuple(found))


def _forget_shards(config: RunConfig) -> None:
    """Delete the local copies of the shards, so that they must be fetched from the S3 server."""
    ctx = Context(Workspace(config.workspace))
    for digest in config.shards.values():
        for part in ctx.refs.load(digest).parts:
            ctx.store.path(part.blob).unlink(missing_ok=True)


BAD_SHARD: Final = GameDay(
    name="bad-shard",
    hypothesis="A corrupted shard stops the run at the first step that reads it, with an error that names the shard. "
    "Once the shard is restored, the run reaches the undisturbed end state. A shard that is never read has no effect.",
    fault="One bit of one shard in the content store is flipped.",
    protection="a shard is verified against its SHA-256 at its first read on a machine",
    prepare=shelve,
    play=bad_shard,
    alerts=("JobFailed",),
)

POISONED: Final = GameDay(
    name="poisoned-batch",
    hypothesis="Exactly the poisoned batches are skipped, the log names their documents and source, and the weights "
    "equal those of a run without these steps.",
    fault="In some consecutive steps, three quarters of the text are random letters from a separate source.",
    protection="the guard's loss rules, a rollback to a step before the bad data, and probation after the rollback",
    prepare=orderly,
    play=poisoned_batch,
    alerts=("GuardActed",),
)

STORAGE_STALL: Final = GameDay(
    name="storage-stall",
    hypothesis="Requests whose response stalls or is dropped are retried in full, no data is used before its digest is "
    "verified, and no attempt fails.",
    fault="A proxy before the S3 server stalls or drops the first responses above a size.",
    blast_radius=f"{OWN} It also affects one bucket or prefix of the S3 server.",
    protection="bounded retries, and digests of fetched data",
    prepare=store,
    play=storage_stall,
    missing=missing,
    mechanism=lambda made: f"{made.uri} at {made.endpoint}; read timeout {READ_TIMEOUT_S:g} s instead of 30 s",
)
