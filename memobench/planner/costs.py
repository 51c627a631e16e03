"""What packs cost: rates fitted to measured shards, and seconds predicted from them.

A pack takes as long as the programs it compiles, the steps it makes one after another, its
arithmetic and the numbers it holds for single examples: four rates of a device for every kind of
run (method, protocol, architecture). Those in `rates.csv` were derived by
`experiments/performance/costs.py`; the same function derives them from a user's own results. They
never choose packs, for a resumed sweep must find the packs it left: that is left to the planner's
own rough weights. Trains nothing.
"""

import collections
import dataclasses
import functools
import heapq
import operator
import pathlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.optimize

from memobench.common.errors import UserError
from memobench.core.cells import from_cells
from memobench.core.run import Pack, Run
from memobench.engine import loop
from memobench.planner import accelerators, packing

PACKAGED = pathlib.Path(__file__).with_name("rates.csv")
# The values of KEY_COLUMNS, by which rates are looked up, or of the first of them: a shorter key
# stands for all keys that it starts, () for all.
RateKey = tuple[str, ...]
KEY_COLUMNS = ("method", "protocol", "architecture")
AMOUNTS = ("programs", "steps", "flops", "floats")
# Keys of fewer packs have no rates of their own.
ENOUGH = 3
# Logarithms of predicted to measured beyond this count as disturbed, and hardly move a rate.
_DISTURBED = 0.3


@dataclasses.dataclass(frozen=True)
class Rates:
    """Seconds that a compiled program, a step, a floating-point operation and a float take.

    A float is one of `packing.floats_per_step`.

    device: where that was measured on so many `packs`; empty for a guess.
    """

    program_seconds: float
    step_seconds: float
    flop_seconds: float
    float_seconds: float
    device: str = ""
    packs: int = 0

    @property
    def seconds(self) -> np.ndarray:
        """Seconds of one unit of each of AMOUNTS."""
        each = (self.program_seconds, self.step_seconds, self.flop_seconds, self.float_seconds)
        return np.array(each)


# From the planner's orders of magnitude; where a step is free to it, next to nothing. The rates of
# accelerators are where fits to measured packs start from; `predict` models their packs.
FLOP_SECONDS = {"cpu": 1 / packing.FLOPS_PER_SECOND, "gpu": 1e-13, "tpu": 1e-13}
FLOAT_SECONDS = {"cpu": 5e-9, "gpu": 3e-11, "tpu": 3e-11}
GUESSES = {
    platform: Rates(
        packing.COMPILE_SECONDS,
        packing.STEP_SECONDS[platform] or 1e-4,
        FLOP_SECONDS[platform],
        FLOAT_SECONDS[platform],
    )
    for platform in FLOP_SECONDS
}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted seconds of packs, each with the compilations that it is the first to need.

    guessed: those for which the device has no rates. device, workers: where, and how many packs
    train side by side. sources: the devices whose rates were taken instead, empty for an order of
    magnitude. wall_seconds: of all packs.
    """

    seconds: tuple[float, ...]
    guessed: tuple[bool, ...]
    device: str
    workers: int
    sources: tuple[str, ...]
    wall_seconds: float


def predict(
    packs: Sequence[Pack], rates: Mapping[RateKey, Rates], device: str, workers: int
) -> Prediction:
    """What the packs take on a device, in this order.

    A pack is guessed where its key has not been measured on that very device.
    """
    seen: set[Hashable] = set()
    seconds, guessed, sources = [], [], set()
    for pack in packs:
        new = pack.runs[0].method.programs(pack) - seen
        seen |= new
        found, of_key = lookup(rates, rate_key(pack.runs[0]))
        guessed.append(of_key.device != device or len(found) < len(KEY_COLUMNS))
        source, of_pack = of_key.device, amounts(pack, len(new))
        if source or pack.platform == "cpu" or pack.runs[0].method.solves:
            seconds.append(float(of_pack @ of_key.seconds))
        else:
            name = accelerators.nearest(device, pack.platform)
            source = f"a model of {name}"
            seconds.append(len(new) * of_key.program_seconds + _modelled(pack, name, of_pack[1]))
        sources |= {source} if guessed[-1] else set()
    wall = wall_seconds(seconds, workers)
    return Prediction(tuple(seconds), tuple(guessed), device, workers, tuple(sorted(sources)), wall)


def _modelled(pack: Pack, name: str, in_turn: float) -> float:
    """Seconds of a pack's steps on one of `accelerators.DEVICES`, so many one after another.

    A lane that waits for what others find takes as long as one that trains, but in packs so long
    that programs of fewer lanes are compiled.
    """
    device = accelerators.DEVICES[name]
    of_runs = [accelerators.seconds_of_traffic(pack.module, run, device) for run in pack.runs]
    steps = [run.method.predicted_steps(run) for run in pack.runs]
    moved = sum(map(operator.mul, steps, of_runs))
    if pack.seconds < loop.NARROWED_FROM_SECONDS:
        moved *= in_turn * pack.slots / sum(steps)
    return max(in_turn * device.step_seconds, moved / pack.n_devices)


def wall_seconds(seconds: Iterable[float], workers: int) -> float:
    """When the last pack is done if each goes to the first of the workers that is free.

    >>> wall_seconds([3.0, 2.0, 2.0], workers=2)
    4.0
    """
    free_at = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free_at, free_at[0] + each)
    return max(free_at)


def rate_key(run: Run) -> RateKey:
    """What decides which rates hold for a run."""
    return run.method.row_name, run.method.protocol, run.architecture.name


def lookup(rates: Mapping[RateKey, Rates], key: RateKey) -> tuple[RateKey, Rates]:
    """The longest start of a key that has rates, and these rates.

    Raises KeyError where not even () has any.
    """
    while key and key not in rates:
        key = key[:-1]
    return key, rates[key]


def amounts(pack: Pack, n_programs: int) -> np.ndarray:
    """AMOUNTS of a pack that compiles so many programs."""
    runs, of_all = pack.runs, [run.method.predicted_steps(run) for run in pack.runs]
    work = sum(packing.predicted_work(run, pack.module) for run in runs)
    if runs[0].method.solves:
        # Runs are solved one after another; the least that each takes is the rate of a step.
        least = runs[0].method.least_work
        return np.array([n_programs, len(runs), work - len(runs) * least, 0], float)
    floats = sum(
        steps * packing.floats_per_step(pack.module, run)
        for steps, run in zip(of_all, runs, strict=True)
    )
    in_turn = max(*(run.method.steps_in_turn(run) for run in runs), sum(of_all) / pack.slots)
    return np.array([n_programs, in_turn, work / pack.n_devices, floats / pack.n_devices], float)


# --- From shards to rates ----------------------------------------------------------------------


def measured(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per pack of shards: KEY_COLUMNS, AMOUNTS, `seconds`, where and when, `runs`.

    `programs` are those it was the first to compile. Of equal packs the fastest is kept, for what
    disturbs a pack only slows it. Packs that the planner would no longer make are left out.
    """
    shards = collections.defaultdict(list)
    for row in rows:
        names = ("date", "device", "pack_size", "compile_seconds", "run_seconds", "commit")
        if all(name in row for name in names):
            shards[tuple(row[name] for name in names)].append(row)
    seen: set[Hashable] = set()
    table = []
    for (_, device, size, compile_seconds, run_seconds, commit), of_shard in sorted(
        shards.items(), key=lambda item: item[0][0]
    ):
        if len(of_shard) != size:
            continue
        try:
            runs = sorted(map(from_cells, of_shard), key=lambda run: run.run_id)
            platform, n = (of_shard[0].get(name) for name in ("platform", "n_devices"))
            # Simulated devices of a CPU share its cores.
            n_devices = 1 if platform == "cpu" else n or 1
            pack = packing.make_pack(runs, platform=platform or "cpu", n_devices=n_devices)
        except (UserError, ValueError):
            continue
        needed = {(commit, program) for program in pack.runs[0].method.programs(pack)}
        if runs[0].method.solves:
            # Their rows do not say what they compile.
            needed, seen = needed - seen, needed | seen
        elif not compile_seconds:
            needed = set()
        about = {name: of_shard[0].get(name) for name in ("platform", "jax", "date")}
        table.append(
            dict(zip(KEY_COLUMNS, rate_key(runs[0]), strict=True))
            | dict(zip(AMOUNTS, amounts(pack, len(needed)), strict=True))
            | {"seconds": compile_seconds + run_seconds, "device": device, **about}
            | {"runs": " ".join(run.run_id for run in runs)}
        )
    columns = [*KEY_COLUMNS, *AMOUNTS, "seconds", "device", "platform", "jax", "date", "runs"]
    packs = pd.DataFrame(table, columns=columns)
    return packs.sort_values("seconds").drop_duplicates(["device", "runs"], ignore_index=True)


def derive(
    packs: pd.DataFrame, device: str, known: Mapping[RateKey, Rates] | None = None
) -> dict[RateKey, Rates]:
    """Rates of a device from packs measured there, of each key and of its starts.

    What is known counts as much as one more pack, so that few packs change it little.

    Args:
      packs: as `measured` gives them; those of other devices are left out.
      device: as shards name it.
      known: rates that are better than none; by default the guess for the device's platform.
    """
    packs = packs[packs["device"] == device]
    if packs.empty:
        return {}
    known = known or {(): _guess(packs["platform"].iloc[0])}
    derived: dict[RateKey, Rates] = {}
    for depth in range(len(KEY_COLUMNS) + 1):
        # Pandas groups by no column not at all.
        keys = packs[list(KEY_COLUMNS[:depth])].agg(tuple, axis=1) if depth else [()] * len(packs)
        groups = collections.defaultdict(list)
        for i, key in enumerate(keys):
            groups[key].append(i)
        for key, chosen in groups.items():
            if len(chosen) < ENOUGH:
                continue
            prior = known[key] if key in known else lookup({**known, **derived}, key)[1]
            of_key = packs.iloc[chosen]
            program, step, flop, number = _fit(
                of_key[list(AMOUNTS)].to_numpy(float),
                of_key["seconds"].to_numpy(float),
                prior.seconds,
            )
            derived[key] = Rates(program, step, flop, number, device, len(chosen))
    return derived


def _fit(amounts_PxA: np.ndarray, seconds_P: np.ndarray, prior_A: np.ndarray) -> list[float]:
    """Positive rates by which predicted and measured seconds of P packs differ least, as logs."""
    log_P = np.log(np.maximum(seconds_P, 0.01))

    def residuals(log_A: np.ndarray) -> np.ndarray:
        predicted_P = np.maximum(amounts_PxA @ np.exp(log_A), 1e-9)
        return np.concatenate([np.log(predicted_P) - log_P, log_A - np.log(prior_A)])

    fitted = scipy.optimize.least_squares(
        residuals, np.log(prior_A), loss="soft_l1", f_scale=_DISTURBED
    )
    return np.exp(fitted.x).tolist()


# --- Which rates hold here ---------------------------------------------------------------------


def known(device: str, platform: str) -> dict[RateKey, Rates]:
    """Packaged rates of the device, or of the best measured one of its platform, or a guess."""
    table = packaged()
    if not (table["device"] == device).any():
        nearest = table[(table["platform"] == platform) & (table["protocol"] == "")]
        if nearest.empty:
            return {(): _guess(platform)}
        device = nearest.sort_values("packs")["device"].iloc[-1]
    return from_table(table[table["device"] == device])


def here(rows: Iterable[Mapping[str, Any]], device: str, platform: str) -> dict[RateKey, Rates]:
    """The rates that are known of a device, improved by what was measured there: rows of shards."""
    before = known(device, platform)
    return before | derive(measured(rows), device, before)


@functools.cache
def packaged() -> pd.DataFrame:
    """The table of memobench: KEY_COLUMNS, the fields of Rates, platform, jax, date."""
    return pd.read_csv(PACKAGED, keep_default_na=False)


def to_table(rates: Mapping[RateKey, Rates]) -> pd.DataFrame:
    """A row per key; the columns that a shorter key lacks are empty."""
    return pd.DataFrame(
        dict(zip(KEY_COLUMNS, (*key, "", "", ""), strict=False)) | dataclasses.asdict(of_key)
        for key, of_key in rates.items()
    )


def from_table(table: pd.DataFrame) -> dict[RateKey, Rates]:
    """The inverse of `to_table`; other columns are not looked at."""
    names = [field.name for field in dataclasses.fields(Rates)]
    return {
        tuple(row[name] for name in KEY_COLUMNS if row[name]): Rates(
            **{name: row[name] for name in names}
        )
        for row in table.to_dict("records")
    }


def _guess(platform: str) -> Rates:
    return GUESSES.get(platform, GUESSES["gpu"])
