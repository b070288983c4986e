"""The step cache: records last, damaged records do not count, kill -9 loses only unfinished work."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.records import Part

KEY = "ab" + "0" * 62


def part(ctx: Context, data: bytes = b"data") -> Part:
    return Part(name="part-00000.parquet", blob=ctx.store.put_bytes(data), rows=2, stats={"x": 1.5})


def record(ctx: Context) -> Path:
    return ctx.workspace.records / "ab" / f"{KEY}.json"


def test_round_trip(ctx: Context) -> None:
    assert ctx.cache.get(KEY) is None
    assert ctx.cache.put(KEY, [part(ctx)]) == (part(ctx),)
    assert ctx.cache.get(KEY) == (part(ctx),)
    ctx.cache.put("cd" * 32, [])
    assert ctx.cache.get_many([KEY, "cd" * 32, "ef" * 32]) == [(part(ctx),), (), None]


def test_the_first_record_stays_while_it_counts(ctx: Context) -> None:
    ctx.cache.put(KEY, [part(ctx)])
    assert ctx.cache.put(KEY, [part(ctx, b"other")]) == (part(ctx),)
    assert ctx.cache.get(KEY) == (part(ctx),)
    record(ctx).write_bytes(b"{")
    assert ctx.cache.put(KEY, [part(ctx, b"other")]) == (part(ctx, b"other"),) == ctx.cache.get(KEY)


def test_record_whose_blob_has_gone_or_is_torn_does_not_count(ctx: Context) -> None:
    ctx.cache.put(KEY, [part(ctx)])
    path = ctx.store.path(part(ctx).blob)
    path.chmod(0o644)
    path.write_bytes(b"dat")
    assert ctx.cache.get(KEY) is None
    path.unlink()
    assert ctx.cache.get(KEY) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"parts":[{"name":"x"}],"sha256":"0"}'])
def test_record_that_is_not_one_does_not_count(ctx: Context, damage: bytes) -> None:
    ctx.cache.put(KEY, [part(ctx)])
    record(ctx).write_bytes(damage)
    assert ctx.cache.get(KEY) is None


def test_a_flipped_byte_anywhere_in_a_record_makes_it_not_count(ctx: Context) -> None:
    ctx.cache.put(KEY, [part(ctx)])
    good = record(ctx).read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        record(ctx).write_bytes(damaged)
        assert ctx.cache.get(KEY) is None, bytes(damaged)


def test_kill_between_blob_and_record_repeats_the_work_and_nothing_else(ctx: Context) -> None:
    script = (
        "import os, sys\n"
        "from plinth.compute.context import Context; from plinth.storage.workspace import Workspace\n"
        "ctx = Context(Workspace(sys.argv[1]).ensure())\n"
        "ctx.store.put_bytes(b'data')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", script, str(ctx.workspace.root)], env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    assert ctx.cache.get(KEY) is None
    ctx.cache.put(KEY, [part(ctx)])
    assert ctx.cache.get(KEY) == (part(ctx),)
    blobs = [path for path in (ctx.workspace.store / "files").rglob("*") if path.is_file()]
    assert len(blobs) == 1
