"""Process that checks one of several nodes: first its own machine, then connection, clock and a collective sum.

    python -m plinth.training.supervise.peer_checks CONFIG NODE NODES ADDRESS PORT DESCRIPTOR

Node 0 listens on PORT. Every other node connects and exchanges times as in NTP; the exchange with the shortest round
trip determines the offset. The node then gets the port of a rendezvous, where all nodes compute a sum with gloo, or
with NCCL if they have GPUs. The process writes its report so far to a pipe of its supervisor (`DESCRIPTOR`), one JSON
line for each state. Node 0 names nodes without a report.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from pathlib import Path

from plinth.launch.parameters import HostChecks
from plinth.training import config as configuration
from plinth.training.supervise.host_checks import SUM, HostCheck, HostReport, of_this_node, this_host

#: Exchanges of times with node 0.
EXCHANGES = 8
_LINE = 128


class TimeExchange:
    """Server on node 0 that answers with its time, and with the port of the rendezvous.

    Args:
        port: port to listen on; rendezvous: port at which all nodes compute the sum.
    """

    def __init__(self, port: int, rendezvous: int) -> None:
        self._rendezvous = rendezvous
        self._server = socket.create_server(("", port))
        threading.Thread(target=self._accept, name="plinth-time-exchange", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.readline(_LINE):
                received = time.time()
                stream.write(f"{received!r} {time.time()!r} {self._rendezvous}\n".encode())


def exchanged(address: str, port: int, until: float) -> tuple[float, float, int]:
    """Return the offset of node 0's clock and the round trip time, both in seconds, and the port of the rendezvous.

    Raises:
        OSError: node 0 cannot be reached before `until` (monotonic).
    """
    with _connected(address, port, until) as connection, connection.makefile("rwb", buffering=0) as stream:
        best, rendezvous = (0.0, float("inf")), 0
        for _ in range(EXCHANGES):
            sent = time.time()
            stream.write(b"time\n")
            answer = stream.readline(_LINE).decode().split()
            came = time.time()
            if len(answer) != 3:
                raise OSError("node 0 closed the connection")
            received, left, rendezvous = float(answer[0]), float(answer[1]), int(answer[2])
            trip = (came - sent) - (left - received)
            best = min(best, (((received - sent) + (left - came)) / 2, trip), key=lambda one: one[1])
    return best[0], best[1], rendezvous


def _connected(address: str, port: int, until: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port), timeout=max(0.1, until - time.monotonic()))
        except OSError:
            if time.monotonic() + 0.2 >= until:
                raise
            time.sleep(0.2)


def summed(address: str, port: int, node: int, nodes: int, until: float) -> HostCheck:
    """Compute the sum of all nodes' numbers with a collective, and compare it with the expected sum."""
    import torch
    from torch import distributed

    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    limit = datetime.timedelta(seconds=max(1.0, until - time.monotonic()))
    try:
        where = f"tcp://{address}:{port}"
        distributed.init_process_group(backend, init_method=where, rank=node, world_size=nodes, timeout=limit)
        wanted = nodes * (nodes + 1) // 2
        numbers = torch.full((1 << 16,), node + 1, dtype=torch.int64, device="cuda" if cuda else "cpu")
        distributed.all_reduce(numbers)
        found = set(map(int, numbers.tolist()))
    except (RuntimeError, ValueError) as error:  # torch's errors of a backend, a store, a timeout
        return HostCheck(name=SUM, outcome="fail", evidence=f"{backend}: {str(error).splitlines()[0][:200]}")
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    right = found == {wanted}
    evidence = f"{backend} over {nodes} nodes: {', '.join(map(str, sorted(found)[:5]))}, expected {wanted}"
    return HostCheck(name=SUM, outcome="pass" if right else "fail", evidence=evidence)


def _between(report: HostReport, nodes: int, address: str, port: int, wanted: HostChecks, until: float) -> HostReport:
    """Return the report of a node, extended by the checks of its connection, its clock and the collective sum."""
    from plinth.processes import free_port

    if report.node == 0:
        rendezvous = free_port()
        TimeExchange(port, rendezvous)
        report = report.model_copy(update={"offset_s": 0.0})
    else:
        try:
            offset, trip, rendezvous = exchanged(address, port, until)
        except (OSError, ValueError) as error:
            return report.also(HostCheck(name="network", outcome="fail", evidence=f"node 0 at {address}: {error}"))
        seen = f"node 0 at {address}, round trip {trip * 1e3:.2f} ms"
        report = report.also(HostCheck(name="network", outcome="pass", evidence=seen))
        report = report.model_copy(update={"offset_s": offset})
    return report.also(summed(address, rendezvous, report.node, nodes, until)) if wanted.all_reduce else report


def _unfinished(report: HostReport) -> HostReport:
    """Return the report of a node whose collective sum is missing.

    It is written before the sum, because a hanging collective kills this process (NCCL's watchdog aborts it), and no
    other process would notice.
    """
    return report.also(HostCheck(name=SUM, outcome="fail", evidence="the sum was not received within the time limit"))


def _write(descriptor: int, report: HostReport) -> None:
    os.write(descriptor, report.model_dump_json().encode() + b"\n")


def main() -> int:
    """Check this node and write its report. Return 0, whatever the outcome."""
    path, node, nodes, address = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    port, descriptor = int(sys.argv[5]), int(sys.argv[6])
    config = configuration.load(path)
    wanted = config.supervision.host_checks
    if wanted.all_reduce:
        import torch  # noqa: F401  (its import takes seconds, which are not the network's)
    until = time.monotonic() + wanted.bound_s
    report = HostReport(node=node, host=this_host())
    _write(descriptor, report)  # the name, in case the next step hangs
    report = report.model_copy(update={"checks": tuple(of_this_node(config))})
    alone = node >= nodes  # a spare: the others do not wait for it
    _write(descriptor, _unfinished(report) if wanted.all_reduce and not alone else report)  # others may never respond
    if not alone:
        _write(descriptor, _between(report, nodes, address, port, wanted, until))
    return 0


if __name__ == "__main__":
    sys.exit(main())
