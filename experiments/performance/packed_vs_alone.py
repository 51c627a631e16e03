"""Packed training against training one model at a time: model-steps per second, and wall time.

Everything is measured in one run on one machine. It prints, and writes to --output as Markdown and
CSV, two tables:

1. Throughput of one size, the attention-only Transformer of `dana2025/heads` with d = 10, H = 21
   on N = 50 tokens, batch 256. The baseline is PyTorch as its user would write it: eager, one model
   after another, one module per head; the better of its default thread count and one thread counts.
   Against it stand packs of memobench's runs. Rates are steady ones: without compilation, and from
   the end of a pack's first 64 steps to the end of its last but one 64. A round measures every row
   once, baseline first; a row's rate is its median over the rounds, its ratio that over the
   baseline's. Both sides shuffle every epoch and follow the learning rate; memobench also records
   loss and accuracy at every step, the baseline does not.
2. Wall time, compilation included, of the 77 sizes of experiment 1 (d = 3..13, H = 1, 6, .., 31),
   one seed each: the packs that `packing.plan` chooses, against a loop that trains one run after
   another, each at its true size in its own compiled program. The loop is measured on every
   --solo_every-th size, in order of arithmetic, and its sum is scaled to all 77. Once each.

PyTorch is an optional extra, `pip install -e .[torch]`; without it the rows that need it are left
out. A busy machine makes the numbers worthless; the columns `lowest` and `highest` tell.

    make performance
    python experiments/performance/packed_vs_alone.py --epochs=64 --output=elsewhere
"""

import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import math
import pathlib
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from absl import app, flags, logging

from memobench import compiling, models, packing, results, training, worker
from memobench.errors import UserError
from memobench.executors import Ended, local
from memobench.report import tables
from memobench.specs import Architecture, Run, Task, Training

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

OUTPUT = flags.DEFINE_string(
    "output", "results/performance", "Folder of packed_vs_alone.md and packed_vs_alone.csv."
)
ROUNDS = flags.DEFINE_integer("rounds", 2, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 5.0, "At least how long a measurement of a rate lasts.", lower_bound=0.1
)
EPOCHS = flags.DEFINE_integer(
    "epochs", 16, "Epochs of the 77 sizes; experiment 1 itself has 64.", lower_bound=1
)
SOLO_EVERY = flags.DEFINE_integer(
    "solo_every", 7, "The loop is measured on every so many-th size.", lower_bound=1
)

SCRIPT = "experiments/performance/packed_vs_alone.py"
TASK = Task(vocab_size=50)
METHOD = Training(
    batch_size=256, n_batches=64, epochs=64, learning_rate=1e-2, final_learning_rate=5e-4
)
D_MODEL, N_HEADS = 10, 21
SIZES = tuple(itertools.product(range(3, 14), (1, 6, 11, 16, 21, 26, 31)))
WARM_UP_STEPS = 20

MARKDOWN = """\
# Packed training against one model at a time

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`; never edited by hand.

## One size: d = 10, H = 21, N = 50, batch 256

{rates}

Steady rates without compilation. A round measures all rows one after another, each for at least
{seconds:g} s; a rate is the median over {rounds} rounds, lowest and highest are over rounds, too.
`× PyTorch` is the ratio of medians, over the faster PyTorch row. A shape compiles once, however
many packs there are of it.

## Experiment 1: 77 sizes, d = 3..13, H = 1, 6, .., 31, one seed, {epochs} of 64 epochs

{sweeps}

Wall time and model-steps per second with everything in them, each row measured once. `compile s` is
that of the training programs alone; initialisation, too, compiles once for every size.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A packed configuration of d = 10, H = 21: equal packs, handed to the executor together."""

    name: str
    n_runs: int
    n_packs: int = 1
    method: Training = METHOD

    def packs(self, epochs: int) -> list[packing.Pack]:
        """The packs, every run with a seed of its own."""
        method = dataclasses.replace(self.method, epochs=epochs)
        return [
            packing.together([_run(D_MODEL, N_HEADS, method, seed) for seed in seeds])
            for seeds in np.arange(self.n_packs * self.n_runs).reshape(self.n_packs, -1).tolist()
        ]


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    logging.set_verbosity(logging.WARNING)
    try:
        output = results.check_writable(OUTPUT.value)
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    if torch is None:
        print("PyTorch cannot be imported: the rows that need it are left out.")
    rates = measure_rates(_cases(), ROUNDS.value, SECONDS.value)
    sweeps = measure_sweeps(EPOCHS.value, SOLO_EVERY.value)
    about = {
        "device": worker.device_name(jax.devices()[0]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "torch": "not installed" if torch is None else torch.__version__,
        "command": shlex.join(["python", SCRIPT, *sys.argv[1:]]),
    }
    print(write(output, about, rates, sweeps))


def write(
    output: pathlib.Path, about: dict[str, str], rates: pd.DataFrame, sweeps: pd.DataFrame
) -> str:
    """Writes the Markdown and the CSV file; returns the Markdown."""
    text = MARKDOWN.format(
        rates=_markdown(rates),
        sweeps=_markdown(sweeps),
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        epochs=EPOCHS.value,
        **about,
    )
    (output / "packed_vs_alone.md").write_text(text)
    table = pd.concat([rates.assign(table="rates"), sweeps.assign(table="sweeps")])
    table.assign(**about).to_csv(output / "packed_vs_alone.csv", index=False, float_format="%.4g")
    return text


def _markdown(table: pd.DataFrame) -> str:
    return tables.markdown(table, {str(c): 1 for c in table.select_dtypes("float")})


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _run(d_model: int, n_heads: int, method: Training, seed: int = 0) -> Run:
    architecture = Architecture(
        name="attention_only", d_model=d_model, d_head=d_model, n_heads=n_heads
    )
    return Run(task=TASK, architecture=architecture, method=method, seed=seed)


# --- Rates -------------------------------------------------------------------------------------


def _cases() -> list[Case]:
    cases = [Case(f"pack of {n}", n) for n in (1, 4, 16, 64)]
    if jax.default_backend() == "cpu":  # Elsewhere the executor trains one pack at a time.
        cases += [Case(f"two packs of {n} side by side", n, n_packs=2) for n in (8, 16)]
    return [*cases, Case("pack of 16, exact protocol", 16, method=METHOD.exact())]


def measure_rates(cases: Sequence[Case], rounds: int, seconds: float) -> pd.DataFrame:
    """One row per PyTorch thread count and per case, measured in turns."""
    compile_seconds: dict[str, float] = {}
    measures: dict[str, Callable[[], float]] = {
        _pytorch_name(threads): functools.partial(pytorch_rate, threads, seconds)
        for threads in _pytorch_threads()
    }
    baselines = list(measures)
    for case in cases:
        _say(f"{case.name}: compiling, and sizing its measurement")
        compile_seconds[case.name] = _compile_seconds(case)
        measures[case.name] = functools.partial(packed_rate, case, _epochs(case, seconds))

    rates = collections.defaultdict(list)
    for turn in range(rounds):
        for name, measure in measures.items():
            rates[name].append(measure())
            _say(f"round {turn + 1} of {rounds}: {name}: {rates[name][-1]:,.1f} model-steps/s")
    baseline = max((statistics.median(rates[name]) for name in baselines), default=math.nan)
    n_runs = {case.name: case.n_runs * case.n_packs for case in cases}
    return pd.DataFrame(
        {
            "configuration": name,
            "runs": n_runs.get(name, 1),
            "model-steps / s": statistics.median(rates[name]),
            "lowest / s": min(rates[name]),
            "highest / s": max(rates[name]),
            "× PyTorch": statistics.median(rates[name]) / baseline,
            "compile s": compile_seconds.get(name, math.nan),
        }
        for name in measures
    )


def packed_rate(case: Case, epochs: int) -> float:
    """Model-steps per second of all packs together, over the time in which each is steady."""
    times = _progress(case.packs(epochs))
    # The first report comes after initialisation, the last after evaluation.
    start, stop = max(t[0] for t in times), min(t[-2] for t in times)
    if stop <= start:
        return math.nan
    steps = case.n_runs * training.steps_per_chunk(case.method)
    done = [steps * np.diff(np.interp([start, stop], t, np.arange(len(t))))[0] for t in times]
    return float(sum(done) / (stop - start))


def _progress(packs: Sequence[packing.Pack]) -> list[list[float]]:
    """For each pack, when it reported its chunks of steps."""
    times: dict[str, list[float]] = {pack.runs[0].run_id: [] for pack in packs}

    def on_steps(pack: packing.Pack, _: int) -> None:
        times[pack.runs[0].run_id].append(time.perf_counter())

    for _ in _trained(packs, on_steps):
        pass
    return list(times.values())


def _trained(
    packs: Sequence[packing.Pack],
    on_steps: Callable[[packing.Pack, int], None] = lambda pack, steps: None,
) -> Iterator[Ended]:
    """Trains packs as a sweep without a folder does; yields each as it ends."""
    engine = local.Local(functools.partial(worker.work, None), on_steps)
    with contextlib.closing(engine):
        engine.submit(packs)
        left = len(packs)
        while left:
            ended = engine.ended(60.0)
            left -= len(ended)
            yield from ended


def _compile_seconds(case: Case) -> float:
    _, seconds = compiling.timed(training.compile_program, training.program_shape(case.packs(1)[0]))
    return seconds


def _epochs(case: Case, seconds: float) -> int:
    """How many epochs keep the case steady for so many seconds."""
    times = _progress(case.packs(2))
    chunk_seconds = max(t[-1] - t[0] for t in times) / (len(times[0]) - 1)
    chunks = max(2, math.ceil(seconds / chunk_seconds)) + 2
    return math.ceil(chunks * training.steps_per_chunk(case.method) / case.method.n_batches)


# --- PyTorch -----------------------------------------------------------------------------------


def _pytorch_threads() -> list[int]:
    """The thread counts to try: none without PyTorch, and one where it has a GPU."""
    if torch is None:
        return []
    default = torch.get_num_threads()
    return [default] if torch.cuda.is_available() else sorted({1, default}, reverse=True)


def _pytorch_name(threads: int) -> str:
    where = "GPU" if torch.cuda.is_available() else f"{threads} thread" + "s" * (threads > 1)
    return f"PyTorch, {where}"


def pytorch_rate(threads: int, seconds: float) -> float:
    """Steps per second of one model after another in eager PyTorch."""
    cuda = torch.cuda.is_available()
    default = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training_steps = _pytorch_steps("cuda" if cuda else "cpu")
        for _ in range(WARM_UP_STEPS):
            next(training_steps)
        if cuda:
            torch.cuda.synchronize()
        started, steps = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            next(training_steps)
            steps += 1
        if cuda:
            torch.cuda.synchronize()
        return steps / (time.perf_counter() - started)
    finally:
        torch.set_num_threads(default)


def _pytorch_steps(device: str) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    n_draws = METHOD.batch_size * METHOD.n_batches  # type: ignore[operator]
    rates = np.linspace(METHOD.learning_rate, METHOD.final_learning_rate, METHOD.epochs + 1)
    for seed in itertools.count():
        torch.manual_seed(seed)
        size = (n_draws, TASK.context_length)
        tokens_MxS = torch.randint(TASK.vocab_size, size, device=device)
        labels_M = torch.randint(TASK.vocab_size, (n_draws,), device=device)
        model = _pytorch_model().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=METHOD.learning_rate)
        for rate in rates[:-1]:
            optimizer.param_groups[0]["lr"] = float(rate)
            for batch_B in torch.randperm(n_draws, device=device).split(METHOD.batch_size):
                optimizer.zero_grad()
                logits_BxN = model(tokens_MxS[batch_B])
                torch.nn.functional.cross_entropy(logits_BxN, labels_M[batch_B]).backward()
                optimizer.step()
                yield


def _pytorch_model() -> Any:
    """The model of `dana2025/heads` as a PyTorch user would write it, with as many parameters."""

    class Head(torch.nn.Module):
        def __init__(self, d_model: int, context_length: int) -> None:
            super().__init__()
            self.query = torch.nn.Linear(d_model, d_model, bias=False)
            self.key = torch.nn.Linear(d_model, d_model, bias=False)
            self.value = torch.nn.Linear(d_model, d_model, bias=False)
            self.output = torch.nn.Linear(d_model, d_model, bias=False)
            future = torch.ones(context_length, context_length, dtype=torch.bool).triu(1)
            self.register_buffer("future", future)
            self.scale = d_model**-0.5

        def forward(self, x: Any) -> Any:
            scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.scale
            attention = scores.masked_fill(self.future, -math.inf).softmax(-1)
            return self.output(attention @ self.value(x))

    class AttentionOnly(torch.nn.Module):
        def __init__(self, vocab_size: int, context_length: int, d_model: int, n_heads: int):
            super().__init__()
            self.token_embedding = torch.nn.Embedding(vocab_size, d_model)
            self.position_embedding = torch.nn.Embedding(context_length, d_model)
            self.heads = torch.nn.ModuleList(Head(d_model, context_length) for _ in range(n_heads))
            self.unembedding = torch.nn.Linear(d_model, vocab_size, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.token_embedding(tokens)
            heads_input = x + self.position_embedding.weight
            x = x + sum(head(heads_input) for head in self.heads)
            return self.unembedding(x[:, -1])

    model = AttentionOnly(TASK.vocab_size, TASK.context_length, D_MODEL, N_HEADS)
    ours = models.build(_run(D_MODEL, N_HEADS, METHOD))
    expected, _ = models.count_parameters(ours, TASK.context_length)
    if sum(p.numel() for p in model.parameters()) != expected:
        raise AssertionError("the PyTorch model is not the same as memobench's")
    return model


# --- The sizes of experiment 1 -----------------------------------------------------------------


def measure_sweeps(epochs: int, solo_every: int) -> pd.DataFrame:
    """One row for the packs and one for the loop."""
    method = dataclasses.replace(METHOD, epochs=epochs)
    runs = [_run(d_model, n_heads, method) for d_model, n_heads in SIZES]
    packs = packing.plan(runs, jax.default_backend())
    _say(f"{len(runs)} sizes in {len(packs)} packs")
    packed = _packed_sweep(packs)

    by_work = sorted(runs, key=lambda run: packing.work_per_step(models.build(run), run))
    sample = by_work[min(solo_every, len(by_work)) // 2 :: solo_every]
    _forget_programs()
    solo = np.sum([_solo(run) for run in sample], axis=0) * len(runs) / len(sample)
    steps = sum(run.method.steps for run in runs)
    scaled = f"measured {len(sample)} of {len(runs)}, scaled"
    rows = [
        (f"{len(packs)} packs", *packed, steps / packed[0], solo[0] / packed[0]),
        (f"loop of solo runs, {scaled}", *solo, steps / solo[0], 1.0),
    ]
    columns = ["configuration", "wall s", "compile s", "model-steps / s", "× loop"]
    return pd.DataFrame(rows, columns=columns)


def _forget_programs() -> None:
    """Forgets everything compiled but what any run needs, so that what comes next compiles it."""
    training.compile_program.cache_clear()
    jax.clear_caches()
    training.train_one(_run(2, 1, dataclasses.replace(METHOD, epochs=1)))  # None of the 77.


def _packed_sweep(packs: Sequence[packing.Pack]) -> tuple[float, float]:
    """Wall seconds of training all packs as a sweep does, and seconds of compilation in it."""
    _forget_programs()
    started = time.perf_counter()
    compile_seconds = 0.0
    for ended in _trained(packs):
        compile_seconds += sum(about["compile_seconds"] for _, about in ended.shards)
        _say(f"{len(ended.pack.runs)} sizes done after {time.perf_counter() - started:.0f} s")
    return time.perf_counter() - started, compile_seconds


def _solo(run: Run) -> tuple[float, float]:
    """Wall seconds of training one run alone, and seconds of compilation in it."""
    started = time.perf_counter()
    compile_seconds = training.train_one(run).compile_seconds
    seconds = time.perf_counter() - started
    architecture = run.architecture
    _say(f"d = {architecture.d_model}, H = {architecture.n_heads} alone took {seconds:.1f} s")
    return seconds, compile_seconds


if __name__ == "__main__":
    app.run(main)
