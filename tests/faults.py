"""A harness that kills drivers at random moments and counts what was lost or done twice.

Drivers are real ones, of `memobench.run`; only the training within them is made up: it sleeps, and
gives every run an accuracy that follows from its id. Each notes which runs it begins and ends, so
that what was done twice shows even where a shard hides it.
"""

import dataclasses
import multiprocessing
import os
import pathlib
import random
import signal
import time
from collections import Counter
from collections.abc import Container, Iterable
from multiprocessing.process import BaseProcess

import numpy as np

import memobench
from memobench.core.run import PackResult, Run
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.store import results
from memobench.tasks.associations import Associations

_FORK = multiprocessing.get_context("forkserver")
# What a driver imports takes seconds; the server that forks them imports it once.
_FORK.set_forkserver_preload(["memobench.runtime.sweep", "tests.faults"])

RUNS = tuple(
    Run(
        task=Associations(vocab_size=7),
        architecture=AttentionOnly(d_model=3, d_head=3, n_heads=n_heads),
        method=Training(batch_size=8, n_batches=4, epochs=2),
        seed=seed,
    )
    for n_heads in (1, 2)
    for seed in range(60)
)


@dataclasses.dataclass(frozen=True)
class Counts:
    """What happened in all rounds; a round fills one folder, whatever is killed meanwhile.

    lost, wrong: runs that are in no shard, or with another accuracy. doubled: runs in several
    shards. torn: spoiled shards that were put there; accepted: how many of them were read. again:
    runs that were begun once more though no kill had hit them in flight.
    """

    rounds: int = 0
    kills: int = 0
    in_flight: int = 0
    lost: int = 0
    wrong: int = 0
    doubled: int = 0
    torn: int = 0
    accepted: int = 0
    again: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*map(sum, pairs))


def accuracy(run: Run) -> float:
    """The made-up accuracy of a run."""
    return int(run.run_id, 16) % 997 / 997


def drive(folder: str, notes: str, seed: int, clock_jumps: bool = False) -> None:
    """One driver: makes all runs in the folder, with training that is made up."""
    chance = random.Random(seed)
    if clock_jumps:
        true_time = time.time
        time.time = lambda: true_time() + chance.uniform(-1e6, 1e6)

    def note(what: str, rows_or_runs: Iterable[str]) -> None:
        with open(notes, "a") as file:
            file.write(f"{what} {os.getpid()} {' '.join(rows_or_runs)}\n")

    def train(method, pack, on_steps, checkpoints=None):
        note("begin", (run.run_id for run in pack.runs))
        for _ in range(4):
            time.sleep(chance.uniform(0, 0.02))
            on_steps(2 * len(pack.runs))
        accuracy_R = np.array([accuracy(run) for run in pack.runs])
        steps_RxL = np.ones((len(pack.runs), 8))
        first_R = steps_RxL[:, 0]
        return PackResult(accuracy_R, first_R, steps_RxL, steps_RxL, 0, 0, None)

    def write_shard(folder, rows, provenance, write=results.write_shard):
        path = write(folder, rows, provenance)
        note("kept", (row["run_id"] for row in rows))
        return path

    Training.train, results.write_shard = train, write_shard
    # Drivers' packs overlap in part.
    packing.MAX_RUNS["cpu"] = chance.choice((2, 3, 4))
    memobench.run(RUNS, results=folder, progress=False)


def shake(folder: pathlib.Path, kills: int, seed: int = 0) -> Counts:
    """Two drivers at a time, killed at random, until so many are; folder after folder."""
    chance, counts = random.Random(seed), Counts()
    while counts.kills < kills:
        counts += _round(folder / str(counts.rounds), kills - counts.kills, chance)
    return counts


def _round(folder: pathlib.Path, kills: int, chance: random.Random) -> Counts:
    folder.mkdir(parents=True)
    notes, shards = folder / "notes", folder / "shards"
    killed: list[int] = []
    torn: set[str] = set()

    def start() -> BaseProcess:
        arguments = (str(shards), str(notes), chance.getrandbits(32), chance.random() < 0.5)
        process = _FORK.Process(target=drive, args=arguments)
        process.start()
        return process

    drivers = [start(), start()]
    while drivers:
        # Until some packs more are kept, or hardly any time, for a driver may be killed early too.
        aim = len(_shards(shards)) + chance.randrange(4)
        while len(_shards(shards)) < aim and all(x.is_alive() for x in drivers):
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
        for driver in [x for x in drivers if not x.is_alive()]:
            driver.join()
            assert driver.exitcode == 0, "a driver failed; its traceback is on standard error"
            drivers.remove(driver)
        if len(killed) < kills and drivers:
            victim = drivers.pop(chance.randrange(len(drivers)))
            # On a slow machine no moment by chance may be one at which it trains.
            if not killed:
                _stop_in_flight(victim, notes)
            victim.kill()
            victim.join()
            if victim.exitcode == -signal.SIGKILL:
                killed.append(victim.pid)
            drivers.append(start())
            torn |= _tear(shards, chance)
    return _counts(shards, notes, killed, torn)


def _stop_in_flight(driver: BaseProcess, notes: pathlib.Path) -> None:
    """Suspends a driver while it trains runs that it has not kept, unless it ends before."""
    assert driver.pid is not None
    while driver.is_alive():
        os.kill(driver.pid, signal.SIGSTOP)
        if +_hit(notes, [driver.pid]):
            return
        os.kill(driver.pid, signal.SIGCONT)
        time.sleep(0.005)


def _hit(notes: pathlib.Path, pids: Container[int]) -> Counter[str]:
    """How many times drivers began each run and did not keep it."""
    hit: Counter[str] = Counter()
    for line in notes.read_text().splitlines() if notes.exists() else ():
        what, pid, *run_ids = line.split()
        if int(pid) in pids:
            (hit.update if what == "begin" else hit.subtract)(run_ids)
    return hit


def _shards(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("*.json"))


def _tear(shards: pathlib.Path, chance: random.Random) -> set[str]:
    """Puts a part of some shard there under another name, as a broken copy would."""
    whole = _shards(shards)
    if not whole:
        return set()
    data = chance.choice(whole).read_bytes()
    path = shards / f"{chance.getrandbits(64):016x}.json"
    path.write_bytes(data[: chance.randrange(max(1, len(data) - 1))])
    return {path.name}


def _counts(shards: pathlib.Path, notes: pathlib.Path, killed: list[int], torn: set[str]) -> Counts:
    begun: Counter[str] = Counter()
    for line in notes.read_text().splitlines():
        what, _, *run_ids = line.split()
        if what == "begin":
            begun.update(run_ids)
    hit = _hit(notes, killed)
    times: Counter[str] = Counter()
    accepted = 0
    for path in _shards(shards):
        try:
            rows = results.read_shard(path).rows
        except ValueError:
            continue
        accepted += path.name in torn
        times.update(row["run_id"] for row in rows)
    found = results.load_rows(shards)
    return Counts(
        rounds=1,
        kills=len(killed),
        in_flight=sum(hit.values()),
        lost=len({run.run_id for run in RUNS} - found.keys()),
        wrong=sum(found.get(x.run_id, {}).get("accuracy") != accuracy(x) for x in RUNS),
        doubled=sum(n > 1 for n in times.values()),
        torn=len(torn),
        accepted=accepted,
        again=sum(max(0, begun[run_id] - 1 - hit[run_id]) for run_id in begun),
    )
