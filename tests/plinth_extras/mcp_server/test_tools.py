"""The table of tools: schemas from click, command lines that take no value for an option, and a process that cannot
write."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from plinth.errors import RequestError
from plinth.storage.workspace import CACHE_VARIABLE
from plinth_extras.mcp_server.tools import TOOLS, ReadTool, call, command_of, input_schema, parameters_of
from plinth_jobs.cli.nouns import COMMANDS
from plinth_jobs.cli.options import Settings
from tests.plinth_ops.service_levels.test_command import trained
from tests.s3_server import serving


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_a_command_with_json_and_describes_every_parameter(name: str) -> None:
    command = command_of(TOOLS[name])
    assert any("--json" in one.opts for one in command.params)
    schema = input_schema(TOOLS[name])
    Draft202012Validator.check_schema(schema)
    assert all(one["description"] for one in schema["properties"].values())
    arguments = {one.name for one in command.params if isinstance(one, click.Argument)}
    assert arguments <= set(parameters_of(TOOLS[name]))


def test_schemas_are_those_of_the_options() -> None:
    assert input_schema(TOOLS["run"])["properties"]["rows"] == {
        "type": "integer", "minimum": 1, "default": 20, "description": "Maximum number of steps.",
    }  # fmt: skip
    assert input_schema(TOOLS["verify"])["properties"]["fast"]["type"] == "boolean"
    assert input_schema(TOOLS["verify"])["required"] == ["target"]


def test_no_tool_is_a_command_that_decides_or_has_an_option_that_writes() -> None:
    assert not {"approve", "run", "report", "release promote", "release taint"} & {
        one.command for one in TOOLS.values()
    }
    given = {option for tool in TOOLS.values() for one in parameters_of(tool).values() for option in one.opts}
    options = {option for option in given if option.startswith("--")}
    assert options == {"--bucket", "--least", "--documents", "--from", "--to", "--rows", "--events", "--fast"}
    assert {tool.command.split()[0] for tool in TOOLS.values()} <= {name.split()[0] for name in COMMANDS}


def test_a_call_returns_what_the_command_prints(plinth: Any, tmp_path: Path) -> None:
    trained(tmp_path / "w")
    for name, arguments in {"runs": {}, "run": {"run": "run-1", "rows": 3}, "goodput": {"run": "run-1"}}.items():
        words = [f"--rows={arguments['rows']}"] if "rows" in arguments else []
        line = [*TOOLS[name].command.split(), *words, *([arguments["run"]] if arguments else []), "--json"]
        assert call(TOOLS[name], arguments, Settings(tmp_path / "w")) == json.loads(
            plinth("-w", tmp_path / "w", *line).out
        )


def test_a_value_is_not_taken_for_an_option_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()

    @click.command()
    @click.argument("target")
    @click.option("--json", "as_json", is_flag=True)
    def spy(target: str, as_json: bool) -> None:
        seen.append((target, sys.stdin.buffer.read().decode() if target == "-" else ""))
        click.echo("{}")

    monkeypatch.setattr("plinth_extras.mcp_server.tools.command_of", lambda tool: spy)
    call(ReadTool("spy", {"target": ""}), {"target": "--page"}, Settings(tmp_path))
    call(ReadTool("spy", {"target": ""}, stdin="target"), {"target": "/etc/hosts\nÆ"}, Settings(tmp_path))
    assert seen == [("--page", ""), ("-", "/etc/hosts\nÆ")]


@pytest.mark.parametrize("path", ["../../etc", "/etc", "~", ".", "web/../../x", "/no/such/folder", "here", "x\0y"])
def test_a_path_is_not_verified(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(RequestError, match="the target is a path"):
        call(TOOLS["verify"], {"target": path}, Settings(tmp_path / "w"))


CHANGES = {
    "create": "(w / 'new').write_text('x')",
    "append": "(w / 'old').open('a')",
    "open to update": "os.open(w / 'old', os.O_RDWR)",
    "make a folder": "(w / 'folder').mkdir()",
    "delete": "(w / 'old').unlink()",
    "rename into": "(w.parent / 'free').rename(w / 'other')",
    "rename out of": "(w / 'old').rename(w.parent / 'other')",
    "truncate": "os.truncate(w / 'old', 0)",
    "change the owner": "os.chown(w / 'old', os.getuid(), os.getgid())",
    "add an attribute": "os.setxattr(w / 'old', 'user.note', b'x')",
    "delete an attribute": "os.removexattr(w / 'old', 'user.note')",
    "delete in an open folder": "os.remove('old', dir_fd=here)",
    "rename in an open folder": "os.rename('old', 'new', src_dir_fd=here, dst_dir_fd=here)",
    "change an open file": "os.chmod(opened, 0o600)",
    "link into": "os.symlink('/', w / 'link')",
    "create a database": "sqlite3.connect(w / 'new.sqlite')",
    "write a database": "sqlite3.connect(f'file:{w}/kept.sqlite?mode=rw', uri=True)",
    "through a link": "(w.parent / 'way' / 'new').write_text('x')",
}


def test_a_process_that_may_not_write_reads_and_writes_elsewhere(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "old").write_text("kept")
    with closing(sqlite3.connect(workspace / "kept.sqlite")) as database:
        database.execute("create table one (value)")
    (tmp_path / "free").write_text("free")
    (tmp_path / "way").symlink_to(workspace)
    script = f"""
import json, os, sqlite3
from pathlib import Path
from plinth.storage.workspace import Workspace
from plinth_extras.mcp_server.read_only import forbid_writes
w = Path({str(workspace)!r})
forbid_writes(Workspace(w))
refused, here, opened = [], os.open(w, os.O_RDONLY), os.open(w / "old", os.O_RDONLY)
for name, change in {CHANGES!r}.items():
    try:
        eval(change)
    except (PermissionError, sqlite3.OperationalError):
        refused.append(name)
w.mkdir(exist_ok=True)
sqlite3.connect(f"file:{{w}}/kept.sqlite?mode=ro", uri=True).execute("select * from one")
(w.parent / "elsewhere").write_text((w / "old").read_text())
print(json.dumps(refused))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == list(CHANGES)
    assert (tmp_path / "elsewhere").read_text() == "kept"
    assert sorted(path.name for path in workspace.iterdir()) == ["kept.sqlite", "old"]


REQUESTS = {
    "put an object": "objects.put('new', b'x', None)",
    "replace an object": "objects.put('old.json', b'x', objects.get('old.json').tag)",
    "delete an object": "objects.remove('old.json')",
    "delete many": "client().delete_objects(Bucket=bucket, Delete={'Objects': [{'Key': 'w/refs/old.json'}]})",
    "copy": "client().copy_object(Bucket=bucket, Key='w/copy', CopySource=f'{bucket}/w/refs/old.json')",
    "begin an upload in parts": "client().create_multipart_upload(Bucket=bucket, Key='w/large')",
    "publish a reference": "Context(workspace).refs.publish(manifest, 'key')",
    "store a blob": "Context(workspace).store.put_file(free)",
    "write with s3fs": "fsspec.filesystem('s3').pipe_file(f'{bucket}/w/new', b'x')",
    "delete with s3fs": "fsspec.filesystem('s3').rm_file(f'{bucket}/w/refs/old.json')",
    "write registry files": "(workspace.root / 'releases').mkdir()",
}


def test_a_process_that_may_not_write_sends_no_request_that_changes_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "free").write_text("free")
    script = f"""
import json, sys
from pathlib import Path
import fsspec
from plinth.compute.context import Context
from plinth.errors import WorkspaceError
from plinth.records import Manifest
from plinth.storage.objects import S3Objects, client
from plinth.storage.workspace import Workspace, folder_of
from plinth_extras.mcp_server.read_only import forbid_writes
bucket, free = sys.argv[1], Path(sys.argv[2])
workspace = Context(Workspace(folder_of(f"s3://{{bucket}}/w"))).workspace
forbid_writes(workspace)
objects, refused = S3Objects(f"s3://{{bucket}}/w/refs"), []
manifest = Manifest(asset="a", step="s", version="1", params={{}}, inputs={{}}, parts=())
for name, change in {REQUESTS!r}.items():
    try:
        eval(change)
    except (WorkspaceError, PermissionError):
        refused.append(name)
assert objects.get("old.json").data == fsspec.filesystem("s3").cat_file(f"{{bucket}}/w/refs/old.json") == b"kept"
assert list(objects.names()) == ["old.json"]
(workspace.root / "manifests").mkdir()
(workspace.root / "manifests" / "cached").write_text("a copy")
print(json.dumps(refused))
"""
    with serving() as bucket:
        bucket.put("w/refs/old.json", b"kept")
        command = [sys.executable, "-c", script, bucket.name, str(tmp_path / "free")]
        environment = {**os.environ, CACHE_VARIABLE: str(tmp_path / "machine")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == list(REQUESTS)
        (only,) = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        assert (only["Key"], bucket.get("w/refs/old.json")) == ("w/refs/old.json", b"kept")
        assert "Uploads" not in bucket.client.list_multipart_uploads(Bucket=bucket.name)
