"""Game days of data: a shard with a flipped byte, a batch that spoils a run, and storage that stalls or is cut.

The S3 server is the one that `PLINTH_GAMEDAY_S3` names, or one that is started:

    PLINTH_GAMEDAY_S3=s3://bucket/prefix with AWS_ENDPOINT_URL=http://host:port and credentials   a server of yours
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
    """Train as one rank, without guard and checkpoints, skipping these steps; return digests of the final state."""
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
    """Location on an S3 server: host and port, bucket, and prefix of all objects."""

    endpoint: str
    bucket: str
    prefix: str
    client: Any

    @property
    def uri(self) -> str:
        """URI of the prefix."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}".lstrip("/"), Body=data)


def missing() -> str | None:
    """Return why there is no server, or None."""
    if os.environ.get(VARIABLE):
        if not os.environ.get(_ENDPOINT, "").startswith("http://"):
            return f"{VARIABLE} needs {_ENDPOINT}=http://host:port: a proxy cannot stand before TLS"
        return None
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        return f"no S3 server: name one by {VARIABLE}, or install moto[server]"
    return None


def credentials() -> dict[str, str]:
    """Return the environment variables with a job's credentials for the server, without its endpoint."""
    return {} if os.environ.get(VARIABLE) else dict(_MOTO)


def found() -> S3Server:
    """Return the server; start it on first use.

    Raises:
        RequestError: there is no server.
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
    """Undisturbed run, its shards, and the first step that reads each shard (by MD5)."""

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
    """Flip a bit of one shard, train, restore the shard, and resume."""
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
            Outcome(what="the job fails by the name of the blob", passed=status == 7 and named, seen=f"{kinds}"),
            finding(
                "no step that reads it is trained, and every step before is", max(story.steps, default=0), first - 1
            ),
        ]
        path.write_bytes(whole)
        status = warm_job.run(config)
    found += [rehearsal.finished(status), *made.whole.end_state(config)]
    reader = f"first read by step {first}" if first else "read by no step"
    return Struck(f"bit {at * 8} and up of shard {blob.md5[:8]}, {reader}", tuple(found), after)


# A poisoned batch

#: Steps of the run that is poisoned, and the first steps at which poison may begin.
POISONED_STEPS, BEGINS = 100, range(64, 90)

_SUBJECTS = ("the cat", "a ship", "my house", "the river", "an engine")
_VERBS = ("sees", "carries", "follows", "remembers")
_OBJECTS = ("the stone", "a letter", "the evening", "its shadow", "the road")


def orderly(folder: Path) -> RehearsalData:
    """Generate text of a small grammar, which a small model learns, and a source of random letters."""
    chooser = random.Random(7)
    return rehearsal.make_data(folder, {"web": sentences(chooser, 400), "dump": noise(chooser, 60)})


def sentences(chooser: Random, count: int) -> list[str]:
    """Return texts of six sentences each, from a small grammar."""

    def sentence() -> str:
        return f"{chooser.choice(_SUBJECTS)} {chooser.choice(_VERBS)} {chooser.choice(_OBJECTS)}."

    return [" ".join(sentence() for _ in range(6)) for _ in range(count)]


def noise(chooser: Random, count: int) -> list[str]:
    """Return texts of random letters."""

    def letters() -> str:
        return "".join(chooser.choice("0123456789ABCDEF#") * chooser.choice([1, 1, 2, 9]) for _ in range(60))

    return [letters() for _ in range(count)]


def poisoned_batch(made: RehearsalData, folder: Path, chooser: Random) -> Struck:
    """Put random letters into some consecutive steps."""
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
        finding("the steps that are left out are the poisoned ones", out, list(poison)),
        finding("their documents are named, by the source that is bad", sources, {"dump.example"}),
        *rehearsal.documents_found(reference, config, out),
        finding("weights are bit-equal to a run with these steps left out", state.get("parameters_sha256"),
                expected["parameters_sha256"]),
        finding("so is the state of the optimizer", state.get("optimizer_sha256"), expected["optimizer_sha256"]),
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

#: The read timeout of the rehearsal, in seconds; that of a run is 30 s.
READ_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Stored:
    """Undisturbed run, with its shards also on an S3 server."""

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
    """Read a run's shards over a connection that stalls or drops within responses."""
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
        Outcome(what="the fault struck", passed=struck > 0, seen=f"{struck} answers"),
        finding("no attempt is lost to it", [event["event"] for event in story.of("restart")], []),
        rehearsal.finished(status),
        *made.whole.end_state(config),
        *gameday.no_page(config),
    ]
    how = "cut" if not stall_s else f"held up for {stall_s:g} s"
    return Struck(f"{struck} answers {how} after {after} bytes", tuple(found))


def _forget_shards(config: RunConfig) -> None:
    """Delete the local copies of the shards, so that they must be fetched."""
    ctx = Context(Workspace(config.workspace))
    for digest in config.shards.values():
        for part in ctx.refs.load(digest).parts:
            ctx.store.path(part.blob).unlink(missing_ok=True)


BAD_SHARD: Final = GameDay(
    name="bad-shard",
    hypothesis="A shard with another bit stops the run by name at the step that would have read it, and at no step "
    "before; with the shard put back the run ends as if nothing had happened. One that no step reads stops nothing.",
    fault="One bit of one shard in the content store is another.",
    blast_radius=OWN,
    protection="the first reader of a shard on a machine compares it with its SHA-256",
    abort_s=900.0,
    prepare=shelve,
    play=bad_shard,
    alerts=("JobFailed",),
)

POISONED: Final = GameDay(
    name="poisoned-batch",
    hypothesis="Batches of noise are left out, no other is, their documents and source are named, and the weights are "
    "those of a run in which these steps never were.",
    fault="Some steps in a row have three quarters of letters without order, from a source of its own.",
    blast_radius=OWN,
    protection="the guard: rules over loss, rollback to before the window, probation after it",
    abort_s=900.0,
    prepare=orderly,
    play=poisoned_batch,
    alerts=("GuardActed",),
)

STORAGE_STALL: Final = GameDay(
    name="storage-stall",
    hypothesis="Answers of the object store that stall or are cut are asked for again, whole; no byte of them is "
    "believed before its digest, and no attempt is lost.",
    fault="A proxy before the S3 server holds up or cuts the first answers that are longer than so many bytes.",
    blast_radius=f"{OWN} One bucket, or prefix, of the S3 server that is named or started for it.",
    protection="bounded retries, and digests of what was fetched",
    abort_s=900.0,
    prepare=store,
    play=storage_stall,
    missing=missing,
    mechanism=lambda made: f"{made.uri} at {made.endpoint}; reads time out after {READ_TIMEOUT_S:g} s instead of 30",
)
