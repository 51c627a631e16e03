"""Training on labelled contexts: model-steps per second of packs, and of all tokens one at a time.

The setting of Mahdavi, Liao & Thrampoulidis (2024): vectors of 64 entries, n = 32, d_model =
d_head = 64, values of dimension 1, 100 classes, batches of 256, Adam; shared and random contexts, H
= 20 and 60; 8192 examples. Everything is measured in one run on one machine. It prints, and writes
to --output as Markdown and CSV, one table. Its rows, for each kind of contexts and each H:

1. PyTorch as its user would write it: eager, one model after another; all n + 1 tokens are
   embedded, get positions and attend to all but themselves, and the query's output is read. With
   one module per head and with one module for all heads, each with its default number of threads
   and with one; the fastest of these rows is the baseline.
2. The same in JAX, jitted: all tokens, one model after another. What is left of memobench's lead
   over it is not due to compilation.
3. memobench: one run, packs of 2 to 16, and on a CPU two packs side by side, as `memobench run`
   trains them. Rounds of `annealing.compile_round`.

Rates are steady ones: without compilation and initialisation. A round measures every row once,
baseline first; a row's rate is its median over the rounds, a ratio is one of medians. All shuffle
every epoch, on the host, and follow the learning rate. Nothing is evaluated, but in the column
`evaluated / s`: there memobench evaluates all examples after every 500 steps, as it does in truth.
Its rounds are of 25 steps here, by turns without and with an evaluation at their end; what that
takes is the difference, counted once per 500 steps.

PyTorch is an optional extra, `pip install -e .[torch]`; without it the rows that need it are left
out. A busy machine makes the numbers worthless; the columns `lowest` and `highest` tell.

    make performance
    python experiments/performance/labelled_contexts.py --rounds=1 --seconds=1 --output=elsewhere

Shape letters: I input_dim, D d_model, H heads, K d_head, V d_value = 1, N context_length, M = N + 1
tokens, T examples, B batch, C classes.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import contexts
import jax
import jax.numpy as jnp
import measuring
import numpy as np
import optax
import pandas as pd
from absl import app, flags, logging
from contexts import METHOD, N_EXAMPLES, Setting

from memobench import annealing, compiling, metrics, packing, positions, results
from memobench.errors import UserError
from memobench.models import base as models
from memobench.report import tables
from memobench.runs import Run
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import Labelled

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

OUTPUT = flags.DEFINE_string(
    "output", "results/performance", "Folder of labelled_contexts.md and labelled_contexts.csv."
)
ROUNDS = flags.DEFINE_integer("rounds", 3, "How often every rate is measured.", lower_bound=1)
SECONDS = flags.DEFINE_float(
    "seconds", 5.0, "At least how long a measurement of a rate lasts.", lower_bound=0.1
)

SCRIPT = "experiments/performance/labelled_contexts.py"
# Rounds are short ones here, so that a measurement holds several.
ROUND = dataclasses.replace(METHOD, evaluate_every=25)
WIDTHS = (1, 2, 4, 8, 16)
SIDE_BY_SIDE = (2, 4)
WARM_UP_STEPS = 3

_ADAM = optax.scale_by_adam()

MARKDOWN = """\
# Labelled contexts: packs against all tokens one model at a time

{device}; {date}; jax {jax}, torch {torch}. Written by `{command}`; never edited by hand.

Vectors of 64 entries, n = 32, d_model = d_head = 64, values of dimension 1, 100 classes, {examples}
examples, batch 256, Adam.

{rates}

Steady rates without compilation. A round measures all rows one after another, each for at least
{seconds:g} s; a rate is the median over {rounds} rounds, lowest and highest are over rounds, too.
`model-steps / s` has batches, shuffling and the learning rate in it on all sides and no evaluation;
`evaluated / s` also has memobench's evaluation of all examples after every 500 steps. `× PyTorch`
and `× JAX` are ratios of medians of `model-steps / s`, over the fastest PyTorch row and over the
JAX row of the same contexts and H; both of these compute all tokens of one model after another.
"""


class Rates(NamedTuple):
    """Model-steps per second, without evaluations and with them."""

    plain: float
    evaluated: float = math.nan


SETTINGS = tuple(Setting(contexts, h) for h in (20, 60) for contexts in ("shared", "random"))


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    logging.set_verbosity(logging.WARNING)
    try:
        output = results.check_writable(OUTPUT.value)
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    if torch is None:
        print("PyTorch cannot be imported: the rows that need it are left out.")
    about = measuring.about(SCRIPT)
    print(write(output, about, measure(SETTINGS, ROUNDS.value, SECONDS.value)))


def write(output: pathlib.Path, about: dict[str, str], rates: pd.DataFrame) -> str:
    """Writes the Markdown and the CSV file; returns the Markdown."""
    text = MARKDOWN.format(
        rates=tables.markdown(rates, {str(c): 1 for c in rates.select_dtypes("float")}),
        rounds=ROUNDS.value,
        seconds=SECONDS.value,
        examples=N_EXAMPLES,
        **about,
    )
    (output / "labelled_contexts.md").write_text(text)
    path = output / "labelled_contexts.csv"
    rates.assign(**about).to_csv(path, index=False, float_format="%.4g")
    return text


def measure(settings: Sequence[Setting], rounds: int, seconds: float) -> pd.DataFrame:
    """The rows of every setting, measured in turns."""
    rows: dict[Setting, dict[str, Callable[[float], Rates]]] = {}
    compile_seconds: dict[tuple[Setting, str], float] = {}
    for setting in settings:
        rows[setting] = baselines(setting)
        for width in WIDTHS:
            name = _packed_name(width)
            _, compile_seconds[setting, name] = compiling.timed(*_program(setting, width))
            measuring.say(f"{setting}, {name}: compiled")
            rows[setting][name] = functools.partial(packed_rates, setting, width, 1)
        if jax.default_backend() == "cpu":  # Elsewhere the executor trains one pack at a time.
            for width in SIDE_BY_SIDE:
                side_by_side = functools.partial(packed_rates, setting, width, 2)
                rows[setting][_packed_name(width, 2)] = side_by_side

    rates = collections.defaultdict(list)
    for turn, (setting, its_rows) in itertools.product(range(rounds), rows.items()):
        for name, rate in its_rows.items():
            rates[setting, name].append(rate(seconds))
            said = f"{rates[setting, name][-1].plain:,.1f} model-steps/s"
            measuring.say(f"round {turn + 1} of {rounds}: {setting}, {name}: {said}")
    median = {key: Rates(*map(statistics.median, zip(*rates[key], strict=True))) for key in rates}

    def fastest(setting: Setting, framework: str) -> float:
        of = [median[setting, name].plain for name in rows[setting] if name.startswith(framework)]
        return max(of, default=math.nan)

    return pd.DataFrame(
        {
            "contexts": setting.contexts,
            "H": setting.n_heads,
            "configuration": name,
            "model-steps / s": median[setting, name].plain,
            "lowest / s": min(rates[setting, name]).plain,
            "highest / s": max(rates[setting, name]).plain,
            "evaluated / s": median[setting, name].evaluated,
            "× PyTorch": median[setting, name].plain / fastest(setting, "PyTorch"),
            "× JAX": median[setting, name].plain / fastest(setting, "JAX"),
            "compile s": compile_seconds.get((setting, name), math.nan),
        }
        for setting, name in rates
    )


# --- memobench ---------------------------------------------------------------------------------


def packed_rates(setting: Setting, width: int, n_packs: int, seconds: float) -> Rates:
    """Rates of as many packs of as many runs, side by side."""
    trainings = [
        _round_seconds(setting, [setting.run(pack * width + i, ROUND) for i in range(width)])
        for pack in range(n_packs)
    ]
    for rounds in trainings:
        next(rounds)

    def work(rounds: Iterator[tuple[float, float]]) -> np.ndarray:
        started, taken = time.perf_counter(), []
        while time.perf_counter() < started + seconds:
            taken.append(next(rounds))
        plain, evaluated = np.mean(taken, axis=0)
        per_step = plain / ROUND.evaluate_every
        evaluation = max(0.0, evaluated - plain) / METHOD.evaluate_every
        return width / np.array([per_step, per_step + evaluation])

    with concurrent.futures.ThreadPoolExecutor(n_packs) as pool:
        return Rates(*np.sum(list(pool.map(work, trainings)), axis=0).tolist())


def _round_seconds(setting: Setting, runs: Sequence[Run]) -> Iterator[tuple[float, float]]:
    """Trains a pack for ever; yields how long a round took, one without evaluation and one with."""
    program, _ = compiling.timed(*_program(setting, len(runs)))
    state = contexts.start(packing.init_pack(packing.together(runs)))
    one_set = jax.tree.map(lambda x: x[None], contexts.data(setting.contexts))

    def seconds(step: int, n_evaluated: int) -> float:
        nonlocal state
        started = time.perf_counter()
        rows_RxCxB = np.stack([annealing.batches(run, step) for run in runs])
        schedule = contexts.stacked_schedule(step, len(runs), n_evaluated)
        state, *_ = jax.block_until_ready(program(state, one_set, schedule, rows_RxCxB))
        return time.perf_counter() - started

    every = ROUND.evaluate_every
    for step in itertools.cycle(range(0, METHOD.steps, 2 * every)):
        yield seconds(step, 0), seconds(step + every, N_EXAMPLES)


def _program(setting: Setting, width: int) -> tuple[Any, ...]:
    """What compiles a round, and of which shapes."""
    return contexts.program(setting, width, ROUND.evaluate_every)


def _packed_name(width: int, n_packs: int = 1) -> str:
    name = f"pack of {width}" if width > 1 else "one run"
    return f"two packs of {width} side by side" if n_packs == 2 else name


# --- All tokens, one model after another ---------------------------------------------------------


def baselines(setting: Setting) -> dict[str, Callable[[float], Rates]]:
    """The rows to compare with, by name."""
    rows: dict[str, Callable[[float], Rates]] = {}
    ways = {"one module per head": _module_per_head, "heads batched": _heads_batched}
    for (way, heads), threads in itertools.product(ways.items(), _pytorch_threads()):
        where = "GPU" if torch.cuda.is_available() else f"{threads} thread" + "s" * (threads > 1)
        rate = functools.partial(pytorch_rates, setting, heads, threads)
        rows[f"PyTorch, {way}, {where}"] = rate
    return rows | {"JAX, jitted, all tokens": functools.partial(jax_rates, setting)}


def _steady(steps: Iterator[None], seconds: float, wait: Callable[[], Any]) -> Rates:
    """Steps per second after the first few; waits for the device before either reading."""
    for _ in range(WARM_UP_STEPS):
        next(steps)
    wait()
    started, n = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        next(steps)
        n += 1
    wait()
    return Rates(n / (time.perf_counter() - started))


def _learning_rates() -> list[float]:
    """Of every step of a run."""
    return np.asarray(annealing.rate(contexts.schedule(0), jnp.arange(METHOD.steps))).tolist()


def jax_rates(setting: Setting, seconds: float) -> Rates:
    """The rate of one model after another, jitted, that computes all tokens."""
    return _steady(_jax_steps(setting), seconds, lambda: None)


def _jax_steps(setting: Setting) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    data, step = contexts.data(setting.contexts), _jax_step(setting)
    module = setting.run().module()
    for seed in itertools.count():
        params = models.init(module, 0, packing.init_key(setting.run(seed)))["params"]
        moments = _ADAM.init(params)
        rows = _batches(np.random.default_rng(seed))
        for size, rows_B in zip(_learning_rates(), rows, strict=False):
            # Were they not waited for, steps would queue up and outlast the measurement.
            params, moments = jax.block_until_ready(step(params, moments, data, rows_B, size))
            yield


@functools.cache
def _jax_step(setting: Setting) -> Any:
    """A jitted step: (params, moments, data, rows_B, learning rate) -> params, moments."""
    position_MxD = jnp.asarray(positions.sinusoidal(33, 64), jnp.float32)
    _check(setting, position_MxD)

    def loss(params: Any, data: Labelled, rows_B: jax.Array) -> jax.Array:
        def one(row: jax.Array) -> jax.Array:
            query_I, context_NxI = labelled_contexts.inputs(data, row)
            output_C = _all_tokens(params, position_MxD, query_I, context_NxI)
            return metrics.loss_and_correct(output_C, data.label_T[row])[0]

        return jax.vmap(one)(rows_B).mean()

    def step(params: Any, moments: Any, data: Labelled, rows_B: jax.Array, size: Any) -> Any:
        update, moments = _ADAM.update(jax.grad(loss)(params, data, rows_B), moments)
        return jax.tree.map(lambda p, u: p - size * u, params, update), moments

    return jax.jit(step, donate_argnums=(0, 1))


def _all_tokens(params: Any, position_MxD: Any, query_I: Any, context_NxI: Any) -> jax.Array:
    """output_C at the query, token 0, where every token attends to all others."""
    tokens_MxI = jnp.concatenate([query_I[None], context_NxI])
    x_MxD = tokens_MxI @ params["embedding"] + params["embedding_bias"][None] + position_MxD
    query_HxMxK = jnp.einsum("md,hdk->hmk", x_MxD, params["layer0_query"])
    key_HxMxK = jnp.einsum("md,hdk->hmk", x_MxD, params["layer0_key"])
    score_HxMxM = jnp.einsum("hmk,hnk->hmn", query_HxMxK, key_HxMxK) / math.sqrt(x_MxD.shape[1])
    own_MxM = jnp.eye(len(x_MxD), dtype=bool)
    attention_HxMxM = jax.nn.softmax(jnp.where(own_MxM[None], -jnp.inf, score_HxMxM))
    value_HxMxV = jnp.einsum("md,hdv->hmv", x_MxD, params["layer0_value"])
    head_HxMxV = jnp.einsum("hmn,hnv->hmv", attention_HxMxM, value_HxMxV)
    out_MxD = jnp.einsum("hmv,hvd->md", head_HxMxV, params["layer0_output"])
    return out_MxD[0] @ params["decoder"] + params["decoder_bias"]


def _check(setting: Setting, position_MxD: jax.Array) -> None:
    """Raises AssertionError unless `_all_tokens` is memobench's model."""
    module = setting.run().module()
    variables = models.init(module, 0, jax.random.key(0))
    example = labelled_contexts.inputs(contexts.data(setting.contexts), jnp.int32(0))
    expected_C: Any = module.apply(variables, *example)
    output_C = _all_tokens(variables["params"], position_MxD, *example)
    np.testing.assert_allclose(output_C, expected_C, rtol=1e-3, atol=1e-4)


def _batches(random: np.random.Generator) -> Iterator[np.ndarray]:
    """rows_B of one batch after another, for ever."""
    while True:
        yield from random.permutation(N_EXAMPLES).astype(np.int32).reshape(-1, METHOD.batch_size)


# --- PyTorch -----------------------------------------------------------------------------------


def _pytorch_threads() -> list[int]:
    """The thread counts to try: none without PyTorch, and one where it has a GPU."""
    if torch is None:
        return []
    default = torch.get_num_threads()
    return [default] if torch.cuda.is_available() else sorted({1, default}, reverse=True)


def pytorch_rates(setting: Setting, heads: Any, threads: int, seconds: float) -> Rates:
    """The rate of one model after another in eager PyTorch."""
    cuda, default = torch.cuda.is_available(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training_steps = _pytorch_steps(setting, heads, "cuda" if cuda else "cpu")
        return _steady(training_steps, seconds, torch.cuda.synchronize if cuda else lambda: None)
    finally:
        torch.set_num_threads(default)


def _pytorch_steps(setting: Setting, heads: Any, device: str) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    query_TxI, context, _, label_T = (
        torch.tensor(np.asarray(x), device=device) for x in contexts.data(setting.contexts)
    )
    label_T = label_T.long()
    for seed in itertools.count():
        torch.manual_seed(seed)
        model = _pytorch_model(setting, heads).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=METHOD.learning_rate)
        rows = _batches(np.random.default_rng(seed))
        for rate, rows_B in zip(_learning_rates(), rows, strict=False):
            batch_B = torch.as_tensor(rows_B, device=device)
            own = context.expand(len(batch_B), -1, -1) if context.ndim == 2 else context[batch_B]
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            logits_BxC = model(torch.cat([query_TxI[batch_B, None], own], dim=1))
            torch.nn.functional.cross_entropy(logits_BxC, label_T[batch_B]).backward()
            optimizer.step()
            yield


def _pytorch_model(setting: Setting, heads: Any) -> Any:
    """The model as a PyTorch user would write it, with as many parameters as memobench's."""

    class Model(torch.nn.Module):
        def __init__(self, input_dim: int, d_model: int, n_classes: int) -> None:
            super().__init__()
            self.embedding = torch.nn.Linear(input_dim, d_model)
            position = torch.tensor(positions.sinusoidal(33, d_model), dtype=torch.float32)
            self.register_buffer("position", position)
            self.attention = heads(setting.n_heads, d_model, len(position))
            self.decoder = torch.nn.Linear(d_model, n_classes)

        def forward(self, tokens: Any) -> Any:
            return self.decoder(self.attention(self.embedding(tokens) + self.position)[:, 0])

    model = Model(input_dim=64, d_model=64, n_classes=100)
    expected, _ = models.count_parameters(setting.run().module(), 0)
    if sum(p.numel() for p in model.parameters()) != expected:
        raise AssertionError("the PyTorch model is not the same as memobench's")
    return model


def _module_per_head(n_heads: int, d_model: int, n_tokens: int) -> Any:
    """Attention as the sum of one module per head."""

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(d_model, d_model, bias=False)
            self.key = torch.nn.Linear(d_model, d_model, bias=False)
            self.value = torch.nn.Linear(d_model, 1, bias=False)
            self.output = torch.nn.Linear(1, d_model, bias=False)
            self.register_buffer("own", torch.eye(n_tokens, dtype=torch.bool))

        def forward(self, x: Any) -> Any:
            scores = self.query(x) @ self.key(x).transpose(-2, -1) * d_model**-0.5
            attention = scores.masked_fill(self.own, -math.inf).softmax(-1)
            return self.output(attention @ self.value(x))

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.ModuleList(Head() for _ in range(n_heads))

        def forward(self, x: Any) -> Any:
            return sum(head(x) for head in self.heads)

    return Heads()


def _heads_batched(n_heads: int, d_model: int, n_tokens: int) -> Any:
    """Attention as one module whose heads are an axis of its tensors."""

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(d_model, n_heads * d_model, bias=False)
            self.key = torch.nn.Linear(d_model, n_heads * d_model, bias=False)
            self.value = torch.nn.Linear(d_model, n_heads, bias=False)
            self.output = torch.nn.Linear(n_heads, d_model, bias=False)
            self.register_buffer("own", torch.eye(n_tokens, dtype=torch.bool))

        def forward(self, x: Any) -> Any:
            query, key, value = (
                maps(x).unflatten(-1, (n_heads, -1)).transpose(-3, -2)
                for maps in (self.query, self.key, self.value)
            )
            scores = query @ key.transpose(-2, -1) * d_model**-0.5
            attention = scores.masked_fill(self.own, -math.inf).softmax(-1)
            return self.output((attention @ value).transpose(-3, -2).flatten(-2))

    return Heads()


if __name__ == "__main__":
    app.run(main)
