"""How near packs come to what the device can do: model-steps per second against the roofline.

Four cases: `dana2025/heads` at d = 10, H = 21, N = 50, batch 256, by the published protocol and by
the exact gradient; labelled contexts as in labelled_contexts.py, H = 20, shared and random. Each in
packs of 1, --factor, --factor^2, .. runs, up to --most or until one does not fit. Beside them, in
the same process, the ceilings and PyTorch, one model after another, as in packed_vs_alone.py.

*Ceilings* are the best of several: a float32 matrix product at the precision we train with, and a
copy, bytes read and bytes written counted. On a CPU also with two callers side by side, as
`memobench run` has two packs; the higher counts.

*A step's work* is XLA's count for one step of a pack, per run: operations of the program before it
is optimised (which knows all matrix products, and no kernel calls), bytes of the compiled one, in
which each kernel reads its operands and writes its results. What XLA cannot look into, calls of a
library's matrix products, it counts as nothing; their operands and results are added by hand. Loops
are counted once, whatever they repeat; there is none in a step unless XLA made it of a scatter. The
roofline is the larger of operations and bytes over their ceilings. Packs that stay in a cache move
less than is counted, so that small ones may exceed the ceiling of the copy.

*Rates*: `steps alone` calls the compiled chunk of steps again and again with one call in flight, no
shuffles, no evaluations; the median over rounds. `as run` is `memobench run` from its first report
of progress to its last but one, with all that happens between chunks; `between` is the share of
time that this adds. A chunk is one of training's (64 steps, or 500 between two evaluations); on a
CPU chunks of large packs are cut to --chunk model-steps, and such packs are not measured as run.

Every row is appended to roofline.jsonl as it is measured. After --minutes the rest is left, and the
same command, with the same device and versions, measures on where it stopped; remove the file to
begin anew. Tables and figure are written from it: roofline.md, roofline.csv, roofline.png.

    make performance
    python experiments/performance/roofline.py --most=8 --rounds=1 --seconds=0.2 --output=elsewhere

PyTorch is an optional extra, `pip install -e .[torch]`; without it its row is left out. A busy
machine makes the numbers worthless; the columns `lowest` and `highest` tell.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import associations
import contexts
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd
from absl import app, flags, logging
from measuring import about, say

from memobench import annealing, compiling, packing, results, training, worker
from memobench.errors import UserError
from memobench.methods.training import Training
from memobench.report import tables
from memobench.runs import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import seaborn as sns

OUTPUT = flags.DEFINE_string("output", "results/performance", "Folder of roofline.*.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 1.0, "At least how long a measurement of a rate lasts.", lower_bound=0.01
)
MOST = flags.DEFINE_integer("most", None, "Runs of the largest pack; 64 on a CPU, else 65536.")
FACTOR = flags.DEFINE_integer(
    "factor", None, "From one size of packs to the next; 2 on a CPU, else 4.", lower_bound=2
)
CHUNK = flags.DEFINE_integer("chunk", 512, "Model-steps of a chunk on a CPU, at most about.")
MINUTES = flags.DEFINE_float("minutes", 9.0, "No measurement begins later.", lower_bound=0)

SCRIPT = "experiments/performance/roofline.py"
SIDE_BY_SIDE = (2, 8)
# Runs of which a step is counted, and whose weights larger packs repeat.
COUNTED = 16
# Larger packs take the host longer to begin than to train a while.
MOST_AS_RUN = 1024

MARKDOWN = """\
# Packs against the roofline of the device

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`,
measured in {sittings}; never edited by hand.

![Model-steps per second against the size of packs](roofline.png)

## Ceilings

{ceilings}

Float32 products of square matrices at the precision of training, and copies; the best of {rounds}.

## The work of a step

{costs}

Per model-step, by XLA's count and as explained in `{script}`; `planner` is
`packing.work_per_step`. `roofline` is the most model-steps per second that both ceilings allow, and
`bound by` tells which decides.

## Rates

{rates}

`steps alone`: the compiled chunk, again and again; median over {rounds} rounds of at least
{seconds:g} s, lowest and highest over them. `as run`: with shuffles, evaluations and whatever else
comes between chunks, which takes the share `between` of the time. `shuffle`: the share that
shuffling on the device takes. `% of roofline` is of the steps alone. `µs / kernel`: time of a
pack's step over its kernels. `program MB`: what XLA plans for the chunk; `peak MB`: the most the
device held so far. `× PyTorch`: over the fastest row of PyTorch, eager, one model after another
({baseline}).
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """What packs are of: runs that differ from the first in their seeds."""

    name: str
    first: Run

    @property
    def whole_chunk(self) -> int:
        """Steps of a chunk in training."""
        method: Any = self.first.method
        if isinstance(method, Training):
            return training.steps_per_chunk(method)
        return method.evaluate_every

    def chunk(self, n: int) -> int:
        """Steps of a chunk of a pack of n, here."""
        return min(self.whole_chunk, max(4, CHUNK.value // n)) if _on_cpu() else self.whole_chunk

    def runs(self, n: int) -> list[Run]:
        """A pack of n, all of whose steps are one chunk."""
        steps, method = self.chunk(n), self.first.method
        by_epoch = isinstance(method, Training)
        few: Any = {"n_batches": steps} if by_epoch else {"evaluate_every": steps, "steps": steps}
        first = dataclasses.replace(self.first, method=dataclasses.replace(method, **few))  # type: ignore[type-var]
        return [dataclasses.replace(first, seed=seed) for seed in range(n)]


ASSOCIATIONS = functools.partial(associations.run, associations.D_MODEL, associations.N_HEADS)
CASES = (
    Case("heads, published", ASSOCIATIONS(associations.METHOD)),
    Case("heads, exact", ASSOCIATIONS(associations.METHOD.exact())),
    Case("shared contexts", contexts.Setting("shared", 20).run()),
    Case("random contexts", contexts.Setting("random", 20).run()),
)


class Loaded(NamedTuple):
    """A pack on the device.

    advance: takes a chunk of steps from a state: the next state, and something to wait for.
    one_step, arguments: a single step of all runs, to be counted.
    shuffle: what is done on the device between chunks, if anything.
    """

    compile_seconds: float
    program: Any
    state: Any
    advance: Callable[[Any], tuple[Any, Any]]
    one_step: Callable[..., Any]
    arguments: tuple[Any, ...]
    shuffle: Callable[[], Any] | None


class Rows:
    """Rows measured on this device by these versions, kept in a file of one JSON object a line."""

    def __init__(self, path: pathlib.Path, of: dict[str, str]) -> None:
        self._path, self._of = path, of
        self._stop, self._sitting = time.monotonic() + 60 * MINUTES.value, time.time()
        lines = path.read_text().splitlines() if path.exists() else []
        self.all = [row for row in map(json.loads, lines) if row["of"] == of]
        self.left = 0

    def add(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of this key, measured unless it is there; empty where time is over."""
        for row in self.all:
            if key.items() <= row.items():
                return row
        if time.monotonic() > self._stop:
            self.left += 1
            return {}
        row = {**key, **measure(), "of": self._of, "sitting": self._sitting}
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        self.all.append(row)
        shown = {k: v for k, v in row.items() if k not in ("of", "sitting")}
        say(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in shown.items()))
        return row

    def table(self, kind: str) -> pd.DataFrame:
        return pd.DataFrame([row for row in self.all if row["kind"] == kind])

    def sittings(self) -> str:
        n = len({row["sitting"] for row in self.all})
        return "one process" if n == 1 else f"{n} processes"


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    logging.set_verbosity(logging.WARNING)
    try:
        output = results.check_writable(OUTPUT.value)
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    if associations.torch is None:
        print("PyTorch cannot be imported: the row that needs it is left out.")
    this = about(SCRIPT)
    settings = {"seconds": str(SECONDS.value), "rounds": str(ROUNDS.value)}
    of = {name: this[name] for name in ("device", "jax", "torch")} | settings
    rows = Rows(output / "roofline.jsonl", of)
    measure(rows)
    print(write(output, this, rows))
    if rows.left:
        print(f"Time was over with {rows.left} measurements left: the same command goes on.")


def measure(rows: Rows) -> None:
    """Adds what is not in the rows yet."""
    for callers in (1, 2) if _on_cpu() else (1,):
        rows.add({"kind": "ceiling", "callers": callers}, functools.partial(ceiling, callers))
    for threads in associations.pytorch_threads():
        key = {"kind": "baseline", "name": associations.pytorch_name(threads)}
        rows.add(key, functools.partial(baseline, threads))
    for case in CASES:
        rows.add({"kind": "cost", "case": case.name}, functools.partial(cost, case))
    for case in CASES:
        for n_packs, n in _sizes():
            key = {"kind": "rate", "case": case.name, "packs": n_packs, "runs": n}
            row = rows.add(key, functools.partial(pack_rates, case, n, n_packs))
            if not row or "does not fit" in row:
                break


def _sizes() -> Iterator[tuple[int, int]]:
    most, factor = MOST.value or (64 if _on_cpu() else 65536), FACTOR.value or (4 - 2 * _on_cpu())
    for n in itertools.takewhile(lambda n: n <= most, (factor**i for i in itertools.count())):
        yield 1, n
    if _on_cpu():  # Elsewhere the executor trains one pack at a time.
        yield from ((2, n) for n in SIDE_BY_SIDE if n <= most)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def baseline(threads: int) -> dict[str, float]:
    """The rates of PyTorch."""
    return _spread([associations.pytorch_rate(threads, SECONDS.value) for _ in range(ROUNDS.value)])


def _spread(rates: Sequence[float]) -> dict[str, float]:
    return {"rate": statistics.median(rates), "lowest": min(rates), "highest": max(rates)}


# --- Ceilings ----------------------------------------------------------------------------------


def ceiling(callers: int) -> dict[str, float]:
    """The best FLOP/s and bytes/s of as many callers together."""
    side, length = (2048, 2**26) if _on_cpu() else (8192, 2**30)
    product = jax.jit(lambda x: jnp.dot(x, x, precision="highest") / side)
    # A copy into itself: fresh memory would be the host's to find.
    copy = jax.jit(lambda x: -x, donate_argnums=0)
    flops = [_calls_per_second(product, (side, side), callers) for _ in range(ROUNDS.value)]
    copies = [_calls_per_second(copy, (length,), callers) for _ in range(ROUNDS.value)]
    return {"FLOP/s": max(flops) * 2 * side**3, "bytes/s": max(copies) * 2 * 4 * length}


def _calls_per_second(function: Any, shape: tuple[int, ...], callers: int) -> float:
    arrays = [jnp.ones(shape) for _ in range(callers)]

    def advance(x: Any) -> tuple[Any, Any]:
        x = function(x)
        return x, x[:1] if x.ndim == 1 else x

    return _side_by_side([functools.partial(_rate, advance, x, 1) for x in arrays])


def _side_by_side(rates: Sequence[Callable[[], float]]) -> float:
    with concurrent.futures.ThreadPoolExecutor(len(rates)) as pool:
        return sum(pool.map(lambda rate: rate(), rates))


def _rate(advance: Callable[[Any], tuple[Any, Any]], state: Any, per_call: float) -> float:
    """So much per second of calls in a row, one in flight while the next is prepared."""
    state, done = advance(state)
    jax.block_until_ready(done)
    started, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() < started + SECONDS.value:
        previous = done
        state, done = advance(state)
        jax.block_until_ready(previous)
        calls += 1
    jax.block_until_ready(done)
    return calls * per_call / (time.perf_counter() - started)


# --- Packs -------------------------------------------------------------------------------------


def pack_rates(case: Case, n: int, n_packs: int) -> dict[str, Any]:
    """Everything about packs of n runs, as many side by side."""
    try:
        row = steps_alone(case, n, n_packs)
        if case.chunk(n) == case.whole_chunk and n <= MOST_AS_RUN:
            row["as run"] = as_run(case, n, n_packs, row["rate"] / n_packs)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not worker.is_out_of_memory(error):
            raise
        return {"does not fit": True}
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return row | ({"peak MB": peak / 1e6} if peak else {})


def steps_alone(case: Case, n: int, n_packs: int) -> dict[str, Any]:
    """The rate of the compiled chunks, and what else they tell."""
    steps = case.chunk(n)
    packs = [load(case.runs(n)) for _ in range(n_packs)]
    rates = []
    for _ in range(ROUNDS.value):
        # The program overwrites what it is given, and every round starts anew.
        ones = [functools.partial(_rate, p.advance, _copy(p.state), n * steps) for p in packs]
        rates.append(_side_by_side(ones))
    program, shuffle = packs[0].program, packs[0].shuffle
    row: dict[str, Any] = {"chunk": steps, "compile s": packs[0].compile_seconds}
    row |= _spread(rates) | {"program MB": _megabytes(program)}
    if shuffle:
        per_second = _rate(lambda _: (None, shuffle()), None, n * steps)
        row["shuffle"] = row["rate"] / (row["rate"] + n_packs * per_second)
    return row


def as_run(case: Case, n: int, n_packs: int, rate: float) -> float:
    """Model-steps per second of packs trained as a sweep trains them."""
    method: Any = case.first.method
    chunk = case.chunk(n)
    reports = max(4, math.ceil(SECONDS.value * rate / (n * chunk)) + 2)
    if isinstance(method, Training):
        method = dataclasses.replace(method, epochs=reports)
    else:
        method = dataclasses.replace(method, steps=reports * chunk, stop_early=False)
    seeds = np.arange(n_packs * n).reshape(n_packs, n).tolist()
    packs = [
        packing.together([dataclasses.replace(case.first, method=method, seed=s) for s in of_pack])
        for of_pack in seeds
    ]
    return associations.steady_rate(packs, n * chunk)


def load(runs: Sequence[Run]) -> Loaded:
    """The pack of these runs, ready to train."""
    few = packing.together(runs[:COUNTED])
    variables = _repeated(packing.init_pack(few), len(runs))
    return (_training if isinstance(runs[0].method, Training) else _annealing)(runs, variables)


def _training(runs: Sequence[Run], variables: Any) -> Loaded:
    pack, n = packing.together(runs), len(runs)
    module, task, method, *_ = shape = training.program_shape(pack)
    program, compile_seconds = _compiled(training.compile_program, shape)
    data = training._data([task], [0] * n, method)
    key_R = jax.random.split(jax.random.key(0), n)
    rate_R = jnp.full(n, associations.METHOD.learning_rate, jnp.float32)
    order_RxCxB = program.shuffle(key_R, jnp.int32(0))

    def advance(state: Any) -> tuple[Any, Any]:
        state, (loss_RxC, _) = program.chunk(state, data, rate_R, order_RxCxB)
        return state, loss_RxC

    state = {"variables": variables, "optimizer": training.optimizer(module, method, variables)}
    one_step = jax.vmap(functools.partial(training.step, module, task, method))
    instance = _repeated(data["instances"], n)
    arguments = state, instance, rate_R, order_RxCxB[:, 0]
    shuffle = functools.partial(program.shuffle, key_R, jnp.int32(0))
    has_batches = order_RxCxB.size > 0
    return Loaded(
        compile_seconds, program.chunk, state, advance, one_step, arguments,
        shuffle if has_batches else None,
    )  # fmt: skip


def _annealing(runs: Sequence[Run], variables: Any) -> Loaded:
    n = len(runs)
    task: Any = runs[0].task
    architecture: Any = runs[0].architecture
    method: Any = runs[0].method
    setting = contexts.Setting(task.contexts, architecture.n_heads)
    shape = contexts.program(setting, n, method.evaluate_every)
    program, compile_seconds = _compiled(*shape)
    data = jax.tree.map(lambda x: x[None], contexts.data(setting.contexts))
    schedule = contexts.stacked_schedule(0, n, evaluated=0)
    few_RxCxB = np.stack([annealing.batches(run, 0) for run in runs[:COUNTED]])
    rows_RxCxB = _repeated(jnp.asarray(few_RxCxB), n)

    def advance(state: Any) -> tuple[Any, Any]:
        state, loss_R, _ = program(state, data, schedule, rows_RxCxB)
        return state, loss_R

    step = functools.partial(annealing.step, packing.together(runs[:1]).module)
    one_step = jax.vmap(step, in_axes=(None, 0, 0, 0, None))
    state = contexts.start(variables)
    arguments = data, schedule, state, rows_RxCxB[:, 0], jnp.float32(0)
    return Loaded(compile_seconds, program, state, advance, one_step, arguments, None)


@functools.cache
def _compiled(function: Any, *shape: Any) -> tuple[Any, float]:
    """A program, and what compiling it took, be it now or before."""
    return compiling.timed(function, *shape)


def _repeated(tree: Any, n: int) -> Any:
    """A stacked tree of n, the given ones again and again."""
    return jax.tree.map(lambda x: jnp.asarray(x)[jnp.arange(n) % len(x)], tree)


def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _megabytes(program: Any) -> float:
    plan = program.memory_analysis()
    arguments = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return (plan.temp_size_in_bytes + arguments) / 1e6


# --- The work of a step ------------------------------------------------------------------------


def cost(case: Case) -> dict[str, float]:
    """Operations, bytes and kernels of one model-step."""
    runs = case.runs(COUNTED)
    loaded = load(runs)
    lowered = jax.jit(loaded.one_step, compiler_options=compiling.OPTIONS).lower(*loaded.arguments)
    compiled = lowered.compile()
    kernels, by_hand = count(compiled.as_text() or "")
    n_bytes = compiled.cost_analysis()["bytes accessed"] + by_hand  # type: ignore[index]
    return {
        "FLOP": lowered.cost_analysis()["flops"] / COUNTED,  # type: ignore[index]
        "planner FLOP": case.first.method.work_per_step(packing.together(runs).module, case.first),
        "bytes": n_bytes / COUNTED,
        "by hand": by_hand / COUNTED,
        "kernels": kernels,
    }


_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call"}


def count(program: str) -> tuple[int, float]:
    """Kernels of a program in XLA's text, and bytes of those calls XLA knows nothing of.

    >>> count('''
    ... ENTRY %main (a: f32[2,8,8]) -> f32[2,8,8] {
    ...   %a = f32[2,8,8]{2,1,0} parameter(0)
    ...   %c = (f32[2,8,8]{2,1,0}, s8[4096]{0}) custom-call(%a, %a), custom_call_target="gemm"
    ...   ROOT %g = f32[2,8,8]{2,1,0} get-tuple-element(%c), index=0
    ... }''')
    (1, 1536)
    """
    # What fusions and reductions are made of is no kernel of its own.
    callers = (line for line in program.splitlines() if " call(" not in line)
    within = set(re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", "\n".join(callers)))
    kernels, by_hand, sizes, counts = 0, 0, dict[str, int](), False
    for line in program.splitlines():
        if line[:1] in ("%", "E"):
            counts = line.split()[line.startswith("ENTRY")].lstrip("%") not in within
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        name, shape, kind, operands = found.groups()
        sizes[name] = _bytes(shape)
        kernels += counts and kind not in _FREE
        if counts and kind == "custom-call":
            by_hand += sizes[name] + sum(sizes.get(x, 0) for x in re.findall(r"[\w.-]+", operands))
    return kernels, by_hand


def _bytes(shape: str) -> int:
    """Of arrays of numbers; a library's scratch space, s8, is none."""
    arrays = re.findall(r"\b[a-z]+(16|32|64)\[([\d,]*)\]", shape)
    return sum(
        int(bits) // 8 * math.prod(map(int, filter(None, n.split(",")))) for bits, n in arrays
    )


# --- Tables and figure -------------------------------------------------------------------------


def write(output: pathlib.Path, this: dict[str, str], rows: Rows) -> str:
    """Writes Markdown, CSV and figure; returns the Markdown."""
    ceilings, eager = rows.table("ceiling"), rows.table("baseline")
    fastest = eager["rate"].max() if len(eager) else math.nan
    costs, rates = summary(ceilings, rows.table("cost"), rows.table("rate"), fastest)
    draw(this["device"], costs, rates, fastest, output / "roofline.png")
    per_second = ceilings.assign(
        **{"GFLOP / s": ceilings["FLOP/s"] / 1e9, "GB / s": ceilings["bytes/s"] / 1e9}
    )
    text = MARKDOWN.format(
        ceilings=_markdown(per_second[["callers", "GFLOP / s", "GB / s"]]),
        costs=_markdown(costs),
        rates=_markdown(rates),
        baseline="–" if math.isnan(fastest) else f"{fastest:.1f} model-steps / s",
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        script=SCRIPT,
        sittings=rows.sittings(),
        **this,
    )
    (output / "roofline.md").write_text(text)
    kinds = {"ceiling": per_second, "baseline": eager, "cost": costs, "rate": rates}
    table = pd.concat([t.assign(table=kind) for kind, t in kinds.items()])
    table = table.drop(columns=["kind", "of", "sitting", "FLOP/s", "bytes/s"], errors="ignore")
    path = output / "roofline.csv"
    table.assign(**this).to_csv(path, index=False, float_format="%.4g")
    return text


def summary(
    ceilings: pd.DataFrame, costs: pd.DataFrame, rates: pd.DataFrame, baseline: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a step costs and allows, and what packs reach of it."""
    flops, copies = ceilings["FLOP/s"].max(), ceilings["bytes/s"].max()
    by_flop, by_bytes = flops / costs["FLOP"], copies / costs["bytes"]
    costs = pd.DataFrame(
        {
            "case": costs["case"],
            "MFLOP": costs["FLOP"] / 1e6,
            "planner MFLOP": costs["planner FLOP"] / 1e6,
            "MB": costs["bytes"] / 1e6,
            "of it by hand": costs["by hand"] / 1e6,
            "kernels": costs["kernels"],
            "FLOP bound / s": by_flop,
            "byte bound / s": by_bytes,
            "roofline / s": np.minimum(by_flop, by_bytes),
            "bound by": np.where(by_flop < by_bytes, "FLOP", "bytes"),
        }
    )
    if "rate" not in rates:
        return costs, rates
    names = ("as run", "shuffle", "peak MB", "does not fit")
    rates = rates.assign(**{name: math.nan for name in names if name not in rates})
    rates = rates[rates["rate"].notna()].merge(costs, on="case", sort=False)
    pack_step = 1e6 * rates["runs"] * rates["packs"] / rates["rate"]
    rates = pd.DataFrame(
        {
            "case": rates["case"],
            "packs": rates["packs"],
            "runs": rates["runs"],
            "steps alone / s": rates["rate"],
            "lowest / s": rates["lowest"],
            "highest / s": rates["highest"],
            "as run / s": rates["as run"],
            "between %": 100 * (1 - rates["as run"] / rates["rate"]),
            "shuffle %": 100 * rates["shuffle"],
            "GFLOP / s": rates["rate"] * rates["MFLOP"] / 1e3,
            "% of FLOP": 100 * rates["rate"] / rates["FLOP bound / s"],
            "GB / s": rates["rate"] * rates["MB"] / 1e3,
            "% of bytes": 100 * rates["rate"] / rates["byte bound / s"],
            "% of roofline": 100 * rates["rate"] / rates["roofline / s"],
            "µs / kernel": pack_step / rates["kernels"],
            "× PyTorch": rates["rate"].where(rates["case"].str.startswith("heads")) / baseline,
            "compile s": rates["compile s"],
            "program MB": rates["program MB"],
            "peak MB": rates["peak MB"],
        }
    )
    return costs, rates.dropna(axis="columns", how="all")


def _markdown(table: pd.DataFrame) -> str:
    return tables.markdown(table, {str(c): 1 for c in table.select_dtypes("float")})


def draw(
    device: str, costs: pd.DataFrame, rates: pd.DataFrame, baseline: float, path: pathlib.Path
) -> None:
    """One panel a case: rates against the runs of a pack, below the two bounds."""
    sns.set_theme(context="notebook", style="whitegrid")
    alone, two, run, flop, moved = sns.color_palette("colorblind", 5)
    figure, axes = plt.subplots(1, len(costs), figsize=(4.2 * len(costs), 5.0), sharey=True)
    for axis, (_, of) in zip(np.ravel(axes), costs.iterrows(), strict=True):
        mine = rates[rates["case"] == of["case"]] if len(rates) else rates
        if len(mine):
            one, both = mine[mine["packs"] == 1], mine[mine["packs"] == 2]
            axis.plot(one["runs"], one["steps alone / s"], "o-", color=alone, label="steps alone")
            if "as run / s" in one:
                style = {"color": run, "label": "as run", "mfc": "none"}
                axis.plot(one["runs"], one["as run / s"], "s", ms=10, **style)
            if len(both):
                at, style = both["runs"], {"color": two, "label": "two packs side by side"}
                axis.plot(at, both["steps alone / s"], "^", **style)
        axis.axhline(of["FLOP bound / s"], color=flop, ls="--", label="bound by operations")
        axis.axhline(of["byte bound / s"], color=moved, ls="-.", label="bound by bytes moved")
        if of["case"].startswith("heads") and not math.isnan(baseline):
            axis.axhline(baseline, color="black", ls=":", lw=2, label="PyTorch, one at a time")
        axis.set(title=of["case"], xlabel="runs of a pack", yscale="log")
        axis.set_xscale("log", base=2)
    np.ravel(axes)[0].set_ylabel("model-steps / s")
    handles = {
        label: handle
        for axis in np.ravel(axes)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(device)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
