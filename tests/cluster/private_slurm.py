"""A Slurm of its own on this machine: two nodes, accounting, two partitions, nothing under /etc."""

import contextlib
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch")

_SLURM = """
ClusterName=memobench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={dir}/munge.socket
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2 Gres=gpu:1
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF
"""

# Slurm wants one device file for each card.
_GRES = """
NodeName=n1 Name=gpu File=/dev/null
NodeName=n2 Name=gpu File=/dev/zero
"""

_SLURMDBD = """
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser={user}
PidFile={dir}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={db}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""

_SQL = """
CREATE DATABASE slurm;
CREATE USER slurm@127.0.0.1 IDENTIFIED BY '{password}';
GRANT ALL ON slurm.* TO slurm@127.0.0.1;
"""


class PrivateSlurm:
    """Daemons in one folder, started by hand; `stop` ends every process they left."""

    def __init__(self) -> None:
        # Sockets have short paths, which pytest's folders are not.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        ports = dict(zip(("ctld", "dbd", "db", "n1", "n2"), _free_ports(5), strict=True))
        values = ports | {
            "dir": self.folder,
            "host": socket.gethostname().partition(".")[0],
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "password": secrets.token_hex(16),
        }
        # Munge refuses folders that others may write to and needs one that others may enter.
        self.folder.chmod(0o755)
        for name in ("state", "n1", "n2"):
            (self.folder / name).mkdir()
        self._write("munge.key", secrets.token_bytes(128))
        self._write("slurm.conf", _SLURM.format(**values).encode())
        self._write("gres.conf", _GRES.encode())
        self._write("slurmdbd.conf", _SLURMDBD.format(**values).encode())
        self._write("init.sql", _SQL.format(**values).encode())

        self._start_munge()
        self._start_database(values)
        self.start_accounting()
        self._wait("slurmdbd", lambda: self.run("sacctmgr", "-i", "show", "cluster"))
        self.run("sacctmgr", "-i", "add", "cluster", "memobench")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", self.folder / "slurm.conf")
        self._wait("slurmctld", lambda: self.run("scontrol", "ping"))
        for node in ("n1", "n2"):
            self.start_node(node)

    def start_accounting(self) -> None:
        self._daemon("slurmdbd", "slurmdbd", "-D")

    def start_node(self, node: str) -> None:
        """Starts a node's slurmd and waits until jobs can run there."""
        self._daemon(node, "slurmd", "-D", "-N", node, "-f", self.folder / "slurm.conf")
        self._wait(node, lambda: self.state(node) in ("idle", "mixed", "allocated"))

    def state(self, node: str) -> str:
        return self.run("sinfo", "-h", "-n", node, "-p", "low", "-o", "%T")

    def kill_node(self, node: str) -> None:
        """A node lost as by a power cut: nothing of it has the time to report another's end."""
        _kill([self._daemons[node].pid, *self._processes(f"SLURMD_NODENAME={node}")])
        self.kill(node)

    def kill(self, daemon: str) -> None:
        process = self._daemons.pop(daemon)
        process.kill()
        process.wait()

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def stop(self) -> None:
        for process in self._daemons.values():
            process.kill()
            process.wait()
        self._daemons.clear()
        # Steps and what they run outlive the daemon that started them.
        _kill(self._processes())
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self, *variables: str) -> set[int]:
        """What runs under this Slurm, by variables in its environment, and what started it."""
        wanted = {v.encode() for v in (f"SLURM_CONF={self.environ['SLURM_CONF']}", *variables)}
        found = set()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                    status = (folder / "status").read_text().splitlines()
                    parent = next(line.split()[1] for line in status if line.startswith("PPid:"))
                    found.add(int(folder.name))
                    # A step's daemon writes its title over its own environment.
                    if "slurmstepd" in pathlib.Path("/proc", parent, "cmdline").read_text():
                        found.add(int(parent))
        return found - {os.getpid()}

    def _start_munge(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.socket", "seed-file": "munge.seed"}
        files |= {"log-file": "munged.log", "pid-file": "munged.pid"}
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "munged", "--foreground", "--num-threads=10", *options)
        self._wait("munged", (self.folder / "munge.socket").exists)

    def _start_database(self, values: dict) -> None:
        data = [f"--datadir={self.folder / 'db'}", f"--user={values['user']}"]
        quiet = "--auth-root-authentication-method=normal", "--skip-test-db"
        self.run("mariadb-install-db", "--no-defaults", *data, *quiet)
        where = f"--socket={self.folder / 'db.socket'}", f"--port={values['db']}"
        small = "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"
        self._daemon(
            *("mariadbd", "mariadbd", "--no-defaults", *data, *where, *small),
            *("--bind-address=127.0.0.1", "--skip-name-resolve"),
            f"--init-file={self.folder / 'init.sql'}",
        )
        self._wait(
            "mariadbd", lambda: socket.create_connection(("127.0.0.1", values["db"])).close()
        )

    def _daemon(self, name: str, *command: str | pathlib.Path) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [str(part) for part in command],
                env=self.environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, name: str, ready: Callable[[], object], seconds: float = 60) -> None:
        """Until `ready` neither raises nor answers False; a daemon that ended shows its log."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                if ready() is not False:
                    return
            if self._daemons[name].poll() is not None or time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} did not start:\n{log[-3000:]}")
            time.sleep(0.2)

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def _kill(pids: Iterable[int]) -> None:
    """All at once: none runs on to see another's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
