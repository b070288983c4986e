"""Metrics of the owner are ingested once, line by line, and invalid lines are counted."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from plinth_registry.canary import feeds
from plinth_registry.canary import feeds as prometheus_api
from plinth_registry.canary.feeds import FeedState, take
from plinth_registry.gates.settings import FeedPolicy

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
LINES = FeedPolicy(lines="feed.jsonl")


def line(at: int, canary: Any = 0.2, champion: Any = 0.1, **more: Any) -> str:
    stamp = (SINCE + timedelta(seconds=at)).isoformat()
    return json.dumps({"time": stamp, "canary": canary, "champion": champion, **more})


def taken(folder: Path, state: FeedState | None = None, feed: FeedPolicy = LINES, after_s: int = 3600) -> FeedState:
    return take(feed, state or FeedState(), folder, SINCE, SINCE + timedelta(seconds=after_s))


def append(folder: Path, *lines: str, end: str = "\n", name: str = "feed.jsonl") -> None:
    with (folder / name).open("a") as stream:
        stream.write("\n".join(lines) + end)


def test_each_line_is_taken_once_and_bad_ones_are_counted_by_reason(tmp_path: Path) -> None:
    stamp = SINCE.timestamp() + 5
    append(tmp_path, line(1), line(2, 1, 2, key="request 7"), "", line(3, key="request 7"), line(-1))
    append(tmp_path, json.dumps({"time": stamp, "canary": 3, "champion": 4}), "[1]", "{", "[" * 4000, line(4, True))
    append(tmp_path, line(4, float("nan")), line(4, 10**400), line(4, 1e200), line(4, "0.2"), '{"canary": 1}')
    append(tmp_path, '{"time": 1e300, "canary": 1}', '{"time": "soon", "canary": 1}', line(6, key="x" * 5000))
    first = taken(tmp_path)
    assert first.pairs == (
        ("2026-01-01T00:00:01+00:00", 0.2, 0.1), ("request 7", 1.0, 2.0), ("2026-01-01T00:00:05+00:00", 3.0, 4.0)
    )  # fmt: skip
    assert (first.earlier, first.fault) == (1, "")
    assert first.rejects == {
        "a key that came before": 1, "longer than 4096 bytes": 1, "no JSON object": 3, feeds.NO_NUMBER: 5, "no time": 3,
    }  # fmt: skip
    assert taken(tmp_path, first) == first
    append(tmp_path, line(7), line(8), end="")  # the last is still being written
    second = taken(tmp_path, first)
    assert [key[-8:-6] for key, _, _ in second.pairs[3:]] == ["07"]
    append(tmp_path, "", line(9))
    assert len(taken(tmp_path, second).pairs) == 6


def test_files_of_a_folder_may_come_and_go(tmp_path: Path) -> None:
    feed = FeedPolicy(lines=str(tmp_path))  # absolute
    append(tmp_path, line(1), line(2), name="a.jsonl")
    append(tmp_path, line(3), name="b.jsonl")
    append(tmp_path, "not read", name="c.txt")
    first = taken(tmp_path, feed=feed)
    assert len(first.pairs) == 3
    (tmp_path / "a.jsonl").unlink()
    shorter = json.dumps({"time": SINCE.timestamp() + 5, "canary": 1, "champion": 1})
    (tmp_path / "b.jsonl").write_text(f"{shorter}\n")  # started again
    assert [key[-8:-6] for key, _, _ in taken(tmp_path, first, feed).pairs] == ["01", "02", "03", "05"]


def test_a_feed_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST", 2)
    append(tmp_path, line(1), line(2), line(3), line(4))
    found = taken(tmp_path)
    assert (len(found.pairs), found.rejects) == (2, {"beyond 2 pairs": 2})
    monkeypatch.setattr(feeds, "AT_ONCE", 10)
    state, ticks = FeedState(), 0
    while (later := taken(tmp_path, state)) != state:
        state, ticks = later, ticks + 1
    assert (state, ticks) == (found, 4)


def test_a_line_without_an_end_is_passed_over_and_what_follows_is_read(tmp_path: Path) -> None:
    append(tmp_path, "x" * 20_000, end="")
    first = taken(tmp_path)
    assert first.rejects == {"longer than 4096 bytes": 1}
    append(tmp_path, "", line(1))
    assert len(taken(tmp_path, first).pairs) == 1


def test_a_source_that_is_not_there_is_a_fault_that_ends(tmp_path: Path) -> None:
    gone = taken(tmp_path)
    assert "No such file" in gone.fault
    append(tmp_path, line(1))
    assert (len(taken(tmp_path, gone).pairs), taken(tmp_path, gone).fault) == (1, "")
    asked = prometheus("http://127.0.0.1:1")
    faults = {taken(tmp_path, feed=asked, after_s=after).fault for after in (3600, 3700)}
    assert faults == {"http://127.0.0.1:1 does not respond: ConnectionError"}  # one fault, one alarm


def test_a_damaged_journal_is_made_again(tmp_path: Path) -> None:
    append(tmp_path, line(1))
    path = tmp_path / "trials" / "demo" / "00002-1.json"
    made = feeds.take_all(path, tmp_path, {"latency": LINES}, SINCE)
    assert feeds.load_journal(path) == made
    path.write_bytes(path.read_bytes()[:-9])
    assert feeds.load_journal(path) == feeds.Journal()
    assert feeds.take_all(path, tmp_path, {"latency": LINES}, SINCE) == made
    path.unlink()
    assert feeds.take_all(path, tmp_path, {"latency": LINES}, SINCE) == made


# Prometheus


def prometheus(url: str, **changes: Any) -> FeedPolicy:
    asked = {"url": url, "canary": 'sum(latency{model="canary"})', "champion": 'sum(latency{model="champion"})'}
    return FeedPolicy.model_validate({"prometheus": asked | changes})


class Answering(HTTPServer):
    """Server that answers every query with `body`, announces `cut` bytes more, and records the queries."""

    def __init__(self, body: str, cut: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body, self.cut, self.asked = body, cut, list[str]()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.body) + server.cut))
        self.end_headers()
        self.wfile.write(server.body.encode())

    def log_message(self, *_: Any) -> None:
        pass


SERIES = '{{"status": "success", "data": {{"resultType": "matrix", "result": [{}]}}}}'


@pytest.mark.parametrize(("body", "fault"), [
    (SERIES.format('{"values": []}, {"values": []}'), "2 series; aggregate"),
    ('{"status": "error", "error": "bad expression"}', "refused the expression: bad expression"),
    ("<html>", "returned an invalid response"), ("[]", "returned an invalid response"),
    (SERIES.format('{"values": [1]}'), "returned an invalid response"),
])  # fmt: skip
def test_an_answer_that_is_none_is_a_fault(tmp_path: Path, body: str, fault: str) -> None:
    server = Answering(body)
    assert fault in taken(tmp_path, feed=prometheus(server.url)).fault
    server.shutdown()


def test_an_answer_that_ends_early_or_is_too_long_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answering(SERIES.format(""), cut=9)
    assert "does not respond: ChunkedEncodingError" in taken(tmp_path, feed=prometheus(server.url)).fault
    server.cut = 0
    monkeypatch.setattr(prometheus_api, "MOST_BYTES", 9)
    assert "more than 9 bytes" in taken(tmp_path, feed=prometheus(server.url)).fault
    server.shutdown()


def test_points_that_are_no_number_are_counted_and_the_next_tick_goes_on(tmp_path: Path) -> None:
    at = int(SINCE.timestamp())
    values = [[at, "1.5"], [at + 60, "NaN"], [at + 120, "+Inf"]]
    server = Answering(SERIES.format(json.dumps({"values": values})))
    found = taken(tmp_path, feed=prometheus(server.url), after_s=240)
    assert (found.pairs, found.rejects) == (((str(at), 1.5, 1.5),), {feeds.NO_NUMBER: 2})
    assert f"start={at}&end={at + 180}&step=60" in server.asked[0]
    assert taken(tmp_path, found, prometheus(server.url), after_s=299) == found
    assert len(server.asked) == 2
    taken(tmp_path, found, prometheus(server.url), after_s=301)
    assert f"start={at + 240}&end={at + 240}&step=60" in server.asked[2]
    server.shutdown()


@pytest.fixture
def real_prometheus(tmp_path: Path) -> Iterator[tuple[str, datetime]]:
    """A Prometheus with two hours of a latency, a sample a minute; the canary's is a tenth more, and absent once."""
    begin = int(time.time()) - 3 * 3600
    rows = ["# TYPE latency gauge"]
    for model, factor in (("canary", 1.1), ("champion", 1.0)):
        for minute in range(120):
            if (model, minute) != ("canary", 60):
                rows.append(f'latency{{model="{model}"}} {factor * (1 + minute % 7 / 100)} {begin + 60 * minute}')
    text, data = tmp_path / "samples.txt", tmp_path / "data"
    text.write_text("\n".join([*rows, "# EOF\n"]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, data]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={data}",
         f"--web.listen-address=127.0.0.1:{port}", "--query.lookback-delta=30s"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while not _ready(url):
        assert time.monotonic() < deadline, "Prometheus did not start"
        time.sleep(0.2)
    yield url, datetime.fromtimestamp(begin, UTC)
    process.terminate()
    process.wait(timeout=60)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.needs("Prometheus")
def test_a_real_prometheus_gives_pairs_and_names_what_it_refuses(tmp_path: Path, real_prometheus: Any) -> None:
    url, begin = real_prometheus
    found = take(prometheus(url), FeedState(), tmp_path, begin, datetime.now(UTC))
    assert (len(found.pairs), found.rejects, found.fault) == (119, {feeds.ONE_SIDED: 1}, "")
    key, canary, champion = found.pairs[1]
    assert (key, canary, champion) == (str(int(begin.timestamp()) + 60), pytest.approx(1.1 * 1.01), 1.01)
    assert take(prometheus(url), found, tmp_path, begin, datetime.now(UTC)).pairs == found.pairs
    for wrong, fault in (("latency", "2 series"), ("sum(", "refused the expression")):
        assert fault in take(prometheus(url, canary=wrong), FeedState(), tmp_path, begin, datetime.now(UTC)).fault
