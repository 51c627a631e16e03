"""Model-steps per second of packs, against the roofline of the device.

Four cases: `dana2025/heads` at d = 10, H = 21, N = 50, batch 256, by the published protocol and by
the exact gradient; labelled contexts as in labelled_contexts.py, H = 20, shared and random. Each in
packs of 1, 2, 4, .. runs (1, 4, 16, .. on accelerators), up to --most or until one does not fit.
Beside them, in the same process, the ceilings and PyTorch, one model after another, as in
packed_vs_alone.py.

*Ceilings* are the best of several: a float32 matrix product at the precision we train with, and a
copy, bytes read and bytes written counted. On a CPU also with two callers side by side, as
`memobench run` has two packs; the higher counts.

*A step's work* is XLA's count for one step of a pack, per run: operations of the program before it
is optimised (which knows all matrix products, and no kernel calls), bytes of the compiled one, in
which each kernel reads its operands and writes its results. What XLA cannot look into, calls of a
library's matrix products, it counts as nothing; their operands and results are added by hand. Loops
are counted once, whatever they repeat; a step has one only where XLA made it of a scatter. The
roofline is the larger of operations and bytes over their ceilings. Packs that stay in a cache move
less than is counted, so that small ones may exceed the ceiling of the copy.

*Rates*: `steps alone` calls the compiled chunk of steps again and again with one call in flight, no
shuffles, no evaluations; the median over rounds. `as run` is `memobench run` from its first report
of progress to its last but one, with all that happens between chunks; `between` is the share of
time that this adds. A chunk is one of training's (64 steps, or 500 between two evaluations); on a
CPU chunks of large packs are cut to 512 model-steps, and such packs are not measured as run.

Every row is appended to roofline.jsonl as it is measured. After --minutes the rest is left, and the
same command, with the same device and versions, measures on where it stopped; remove the file to
begin anew. Tables and figure are written from it: roofline.md, roofline.csv, roofline.png.

    make performance
    python experiments/performance/roofline.py --most=8 --rounds=1 --seconds=0.2 --output=elsewhere

PyTorch is an optional extra, `pip install -e .[torch]`; without it its row is left out. A busy
machine makes the numbers worthless; the columns `lowest` and `highest` tell.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import associations
import ceilings
import contexts
import jax
import jax.numpy as jnp
import measuring
import numpy as np
import pytorch
import roofline_page
import xla_text
from absl import app, flags
from rows import Rows

from memobench import engine
from memobench.core.run import Run
from memobench.engine import compiling, initializing
from memobench.experiments.mahdavi2024 import own_methods as annealing
from memobench.methods import training
from memobench.methods.training import Training
from memobench.planner import packing
from memobench.runtime import worker

OUTPUT = measuring.output_flag()
ROUNDS = flags.DEFINE_integer("rounds", 3, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 1.0, "At least how long a measurement of a rate lasts.", lower_bound=0.01
)
MOST = flags.DEFINE_integer("most", None, "Runs of the largest pack; 64 on a CPU, else 65536.")
MINUTES = flags.DEFINE_float("minutes", 9.0, "No measurement begins later.", lower_bound=0)

SCRIPT = "experiments/performance/roofline.py"
SIDE_BY_SIDE = (2, 8)
# Model-steps of a chunk on a CPU, at most about.
CHUNK = 512
# Runs of which a step is counted, and whose weights larger packs repeat.
COUNTED = 16
# Larger packs take the host longer to begin than to train a while.
MOST_AS_RUN = 1024


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of pack, of runs that differ from the first in their seeds."""

    name: str
    first: Run

    @property
    def whole_chunk(self) -> int:
        """Steps of a chunk in training."""
        method: Any = self.first.method
        if isinstance(method, Training):
            return method.chunk_steps
        return method.evaluate_every

    def chunk(self, n: int) -> int:
        """Steps of a chunk of a pack of n, here."""
        return min(self.whole_chunk, max(4, CHUNK // n)) if _on_cpu() else self.whole_chunk

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

    Attributes:
      compile_seconds: of its program.
      program: its engine.
      state: the first.
      advance: takes a chunk of steps from a state to the next, and to something to wait for.
      one_step: a single step of all runs, to be counted.
      arguments: of `one_step`.
      shuffle: the work on the device between chunks, if any.
    """

    compile_seconds: float
    program: Any
    state: Any
    advance: Callable[[Any], tuple[Any, Any]]
    one_step: Callable[..., Any]
    arguments: tuple[Any, ...]
    shuffle: Callable[[], Any] | None


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT) | pytorch.version()
    settings = {"seconds": SECONDS.value, "rounds": ROUNDS.value}
    of = {name: about[name] for name in ("device", "jax", "torch")}
    of |= {name: str(value) for name, value in settings.items()}
    rows = Rows(output / "roofline.jsonl", of, MINUTES.value)
    measure(rows)
    print(roofline_page.write(output, about, rows, {**settings, "script": SCRIPT}))
    if rows.left:
        print(f"Time was over with {rows.left} measurements left: the same command goes on.")


def measure(rows: Rows) -> None:
    """Adds what is not in the rows yet."""
    for callers in (1, 2) if _on_cpu() else (1,):
        ceiling = functools.partial(ceilings.measure, callers, ROUNDS.value, SECONDS.value)
        rows.add({"kind": "ceiling", "callers": callers}, ceiling)
    for n_threads in pytorch.threads():
        key = {"kind": "baseline", "name": associations.pytorch_name(n_threads)}
        rows.add(key, functools.partial(baseline, n_threads))
    for case in CASES:
        rows.add({"kind": "cost", "case": case.name}, functools.partial(cost, case))
    for case in CASES:
        for n_packs, n in _sizes():
            key = {"kind": "rate", "case": case.name, "packs": n_packs, "runs": n}
            row = rows.add(key, functools.partial(pack_rates, case, n, n_packs))
            if not row or "does not fit" in row:
                break


def _sizes() -> Iterator[tuple[int, int]]:
    most, factor = MOST.value or (64 if _on_cpu() else 65536), 2 if _on_cpu() else 4
    for n in itertools.takewhile(lambda n: n <= most, (factor**i for i in itertools.count())):
        yield 1, n
    if _on_cpu():  # Elsewhere a driver trains one pack at a time.
        yield from ((2, n) for n in SIDE_BY_SIDE if n <= most)


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def baseline(n_threads: int) -> dict[str, float]:
    """The rates of PyTorch."""
    rate = functools.partial(associations.pytorch_rate, n_threads, SECONDS.value)
    return measuring.spread([rate() for _ in range(ROUNDS.value)])


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
        calls = [
            functools.partial(measuring.calls_in_a_row, p.advance, _copy(p.state), SECONDS.value)
            for p in packs
        ]
        rates.append(n * steps * sum(measuring.side_by_side(calls)))
    program, shuffle = packs[0].program, packs[0].shuffle
    row: dict[str, Any] = {"chunk": steps, "compile s": packs[0].compile_seconds}
    row |= measuring.spread(rates) | {"program MB": _megabytes(program)}
    if shuffle:
        shuffles = measuring.calls_in_a_row(lambda _: (None, shuffle()), None, SECONDS.value)
        per_second = n * steps * shuffles
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
        packing.make_pack([dataclasses.replace(case.first, method=method, seed=s) for s in of_pack])
        for of_pack in seeds
    ]
    return associations.steady_rate(packs, n * chunk)


def load(runs: Sequence[Run]) -> Loaded:
    """The pack of these runs, ready to train."""
    pack = dataclasses.replace(packing.make_pack(runs), slots=len(runs))
    few = initializing.init_pack(packing.make_pack(runs[:COUNTED]))
    by_epoch = isinstance(runs[0].method, Training)
    variables = _repeated(few, len(runs))
    policy: Any = (
        training.TrainingPolicy(pack, variables) if by_epoch else annealing.AnnealingPolicy(pack)
    )
    lanes = engine.Lanes(policy)
    lanes.fill()
    lanes.train()
    program, lane_R, steps_R = lanes.program, lanes.lane_R, np.zeros(len(runs), int)
    rate_RxC, order_RxCxB = policy.feed(program, steps_R)

    def advance(state: Any) -> tuple[Any, Any]:
        state, _ = program.chunk(state, policy.data, lane_R, rate_RxC, order_RxCxB)
        # A copy: the next call overwrites the state.
        return state, jnp.copy(min(jax.tree.leaves(state.variables), key=jnp.size))

    def one_step(state: Any, lane: Any, rate: Any, order_B: Any) -> Any:
        return engine.one_step(policy.signature, state, policy.data, lane, rate, order_B)

    arguments = lanes.state, lane_R, rate_RxC[:, 0], order_RxCxB[:, 0]
    shuffle = None
    if program.shuffle is not None:
        key_R = jax.random.split(jax.random.key(0), len(runs))
        shuffle = functools.partial(program.shuffle, key_R, jnp.zeros(len(runs), jnp.int32))
    return Loaded(
        lanes.compile_seconds, program.chunk, lanes.state, advance, jax.vmap(one_step), arguments,
        shuffle,
    )  # fmt: skip


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


def operations(runs: Sequence[Run], platform: str = "cpu") -> float:
    """XLA's count of what a step of all runs computes, before the program is optimised."""
    pack = packing.make_pack(runs, platform=platform)
    needed: Any = packing.programs(pack)
    ((signature, _, n_instances),) = needed
    chunk = engine.to_compile(signature, len(runs), n_instances)["chunk"]
    # The body of the loop over steps counts once.
    return jax.jit(chunk.function).lower(*chunk.arguments).cost_analysis()["flops"]  # type: ignore[index]


def cost(case: Case) -> dict[str, float]:
    """Operations, bytes and kernels of one model-step."""
    runs = case.runs(COUNTED)
    loaded = load(runs)
    one_step = jax.jit(loaded.one_step, compiler_options=compiling.options())
    compiled = one_step.lower(*loaded.arguments).compile()
    kernels, by_hand = xla_text.count(compiled.as_text() or "")
    n_bytes = compiled.cost_analysis()["bytes accessed"] + by_hand  # type: ignore[index]
    return {
        "FLOP": operations(runs) / COUNTED,
        "planner FLOP": planned_operations(case),
        "bytes": n_bytes / COUNTED,
        "by hand": by_hand / COUNTED,
        "kernels": kernels,
    }


def planned_operations(case: Case) -> float:
    """The planner's count for one model-step."""
    module = packing.make_pack(case.runs(COUNTED)).module
    return case.first.method.cost(case.first, module).flops_per_step


if __name__ == "__main__":
    app.run(main)
