"""A real Slurm cluster of two nodes on this machine, in a folder of its own, with ports and keys of its own.

    with slurm_cluster(folder) as environment:
        subprocess.run(["sinfo"], env=environment)
        lose_node(environment, "n2")
        with node(environment, "n2"):  # it comes back
            ...

A job in the partition `urgent` takes the nodes of one in `main`, which Slurm requeues (preempt/partition_prio).

Needs the distribution's slurmctld, slurmd, slurm-client and munge (`make setup-test`) and root: slurmd starts
jobs as their user. Every daemon stays in the foreground, so that it is this process's child and ended by its number.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests import services

NODES = ("n1", "n2")

CONFIG = """\
ClusterName=plinth
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
AccountingStoreFlags=job_comment
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=NoHold
KillWait=120
MinJobAge=300
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=60
InactiveLimit=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start it, and end it with the block; gives the environment in which Slurm's programs find it."""
    services.demand("Slurm")
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=socket.gethostname(), controller=ports[0], folder=folder, nodes=nodes))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n")
    environment = {**os.environ, "SLURM_CONF": str(config)}
    with contextlib.ExitStack() as daemons:
        daemons.enter_context(_daemon(_munged(folder), folder, environment))
        _until(lambda: (folder / "munge.socket").exists(), 300.0, "munged is up", folder)
        daemons.enter_context(_daemon(["slurmctld", "-D", "-f", config, "-c"], folder, environment))
        for name in NODES:
            daemons.enter_context(node(environment, name))
        _until(lambda: _idle(environment), 300.0, "both nodes are idle", folder)
        yield environment


@contextlib.contextmanager
def node(environment: dict[str, str], name: str) -> Iterator[None]:
    """A node's own daemon, to the end of the block."""
    config = Path(environment["SLURM_CONF"])
    with _daemon(["slurmd", "-D", "-N", name, "-f", config], config.parent, environment):
        yield


def lose_node(environment: dict[str, str], name: str) -> None:
    """Send SIGKILL to everything that runs on a node, its daemon first, so that the node cannot report anything."""
    config = Path(environment["SLURM_CONF"])
    daemon = psutil.Process(int((config.parent / f"slurmd-{name}.pid").read_text()))
    daemon.kill()
    while tasks := list(_tasks(config, name)):
        for process in tasks:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tasks, timeout=1.0)


def _tasks(config: Path, name: str) -> Iterator[psutil.Process]:
    """Yield the processes that jobs have started on a node, and the slurmstepd processes above them."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            own = process.environ()
            if own.get("SLURMD_NODENAME") == name and own.get("SLURM_CONF") == str(config):
                yield from (above for above in process.parents() if above.name().startswith("slurmstepd"))
                yield process


def _munged(folder: Path) -> list[object]:
    return [
        *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"),
        *(f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"),
    ]


def _idle(environment: dict[str, str]) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%t"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.split() == ["idle"] * len(NODES)


@contextlib.contextmanager
def _daemon(command: Sequence[object], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that are free at the same time."""
    with contextlib.ExitStack() as probes:
        taken = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in taken:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in taken]


def _until(condition: object, seconds: float, what: str, folder: Path) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            logs = "\n".join(f"== {path}\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.[lo]*")))
            raise AssertionError(f"not so after {seconds:g} s: {what}\n{logs}")
        time.sleep(0.2)
