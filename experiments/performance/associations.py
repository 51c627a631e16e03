"""The size of `dana2025/heads` that performance is measured at: its packs, and PyTorch's way.

The attention-only Transformer with d = 10, H = 21 on N = 50 tokens, batch 256. Shared by the
scripts beside this file.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytorch

from memobench.common import settings
from memobench.core.module import count_parameters
from memobench.core.run import PackResult, Run
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.runtime import local, worker
from memobench.tasks.associations import Associations

torch: Any = pytorch.torch

TASK = Associations(vocab_size=50)
METHOD = Training(
    batch_size=256, n_batches=64, epochs=64, learning_rate=1e-2, final_learning_rate=5e-4
)
D_MODEL, N_HEADS = 10, 21
WARM_UP_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A packed configuration of d = 10, H = 21: equal packs, trained together."""

    name: str
    n_runs: int
    n_packs: int = 1
    method: Training = METHOD

    def packs(self, epochs: int) -> list[packing.Pack]:
        """The packs, every run with a seed of its own."""
        method = dataclasses.replace(self.method, epochs=epochs)
        return [
            packing.make_pack([run(D_MODEL, N_HEADS, method, seed) for seed in seeds])
            for seeds in np.arange(self.n_packs * self.n_runs).reshape(self.n_packs, -1).tolist()
        ]


def run(d_model: int, n_heads: int, method: Training, seed: int = 0) -> Run:
    """A run of attention alone with wide heads on TASK."""
    architecture = AttentionOnly(d_model=d_model, d_head=d_model, n_heads=n_heads)
    return Run(task=TASK, architecture=architecture, method=method, seed=seed)


def packed_rate(case: Case, epochs: int) -> float:
    """Model-steps per second of all packs together, over the time in which each is steady."""
    times, steps = progress(case.packs(epochs)), case.n_runs * case.method.chunk_steps
    # The first report comes after initialisation, the last after evaluation.
    start, stop = max(t[0] for t in times), min(t[-2] for t in times)
    if stop <= start:
        return math.nan
    done = [steps * np.diff(np.interp([start, stop], t, np.arange(len(t))))[0] for t in times]
    return float(sum(done) / (stop - start))


def progress(packs: Sequence[packing.Pack]) -> list[list[float]]:
    """For each pack, when it reported its chunks of steps."""
    times: dict[str, list[float]] = {pack.runs[0].run_id: [] for pack in packs}

    def on_steps(pack: packing.Pack, _: int) -> None:
        times[pack.runs[0].run_id].append(time.perf_counter())

    for _ in train_packs(packs, on_steps):
        pass
    return list(times.values())


def train_packs(
    packs: Sequence[packing.Pack],
    on_steps: Callable[[packing.Pack, int], None] = lambda pack, steps: None,
) -> Iterator[PackResult]:
    """Trains packs side by side as a sweep does, and makes their rows; yields each as it ends."""

    @settings.pin
    def train(pack: packing.Pack) -> PackResult:
        result = worker.make_trainer(functools.partial(on_steps, pack))(pack)
        worker.rows_of(pack, result)
        return result

    limits = local.limit_blas()
    with concurrent.futures.ThreadPoolExecutor(local.n_workers()) as pool:
        for future in concurrent.futures.as_completed([pool.submit(train, x) for x in packs]):
            yield future.result()
    limits.restore_original_limits()


# --- PyTorch -----------------------------------------------------------------------------------


def pytorch_rate(n_threads: int, seconds: float) -> float:
    """Steps per second of one model after another in eager PyTorch."""
    return pytorch.rate(_pytorch_steps, n_threads, seconds, WARM_UP_STEPS)


def pytorch_vmap_rate(n_seeds: int, compiled: bool, n_threads: int, seconds: float) -> float:
    """Model-steps per second of so many seeds side by side in PyTorch."""
    steps = functools.partial(_pytorch_vmap_steps, n_seeds, compiled)
    return n_seeds * pytorch.rate(steps, n_threads, seconds, WARM_UP_STEPS)


def _pytorch_steps(device: str) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    cross_entropy = torch.nn.functional.cross_entropy
    for seed in itertools.count():
        torch.manual_seed(seed)
        tokens_MxS, label_M = _pytorch_examples((), device)
        model = _pytorch_model().to(device)
        orders = (torch.randperm(len(label_M), device=device) for _ in range(METHOD.epochs))
        batches = itertools.chain.from_iterable(x.split(METHOD.batch_size) for x in orders)
        losses = (cross_entropy(model(tokens_MxS[x_B]), label_M[x_B]) for x_B in batches)
        yield from pytorch.steps(model.parameters(), _pytorch_rates(), losses)


def _pytorch_vmap_steps(n_seeds: int, compiled: bool, device: str) -> Iterator[None]:
    """Trains models side by side for ever, by torch.func; yields after every step of all."""
    losses_of = _pytorch_losses(compiled)
    seeds_Rx1 = torch.arange(n_seeds, device=device)[:, None]
    n, s, h, d = TASK.vocab_size, TASK.context_length, N_HEADS, D_MODEL
    shapes = (n, d), (s, d), (h, d, d), (h, d, d), (h, d, d), (h, d, d), (n, d)
    while True:
        params = [d**-0.5 * torch.randn(n_seeds, *shape, device=device) for shape in shapes]
        tokens_RxMxS, label_RxM = _pytorch_examples((n_seeds,), device)
        orders = (torch.rand(label_RxM.shape, device=device).argsort() for _ in itertools.count())
        batches = itertools.chain.from_iterable(x.split(METHOD.batch_size, 1) for x in orders)
        losses = (
            losses_of(params, tokens_RxMxS[seeds_Rx1, x_RxB], label_RxM[seeds_Rx1, x_RxB]).sum()
            for x_RxB in batches
        )
        for param in params:
            param.requires_grad_()
        yield from pytorch.steps(params, _pytorch_rates(), losses)


@functools.cache
def _pytorch_losses(compiled: bool) -> Any:
    """Maps what seeds stacked along R have to loss_R."""
    losses_of = torch.func.vmap(_pytorch_loss)
    return torch.compile(losses_of) if compiled else losses_of


def _pytorch_loss(params: Any, tokens_BxS: Any, label_B: Any) -> Any:
    """The mean loss of the model of `plain.py`, in PyTorch."""
    embedding, position, query, key, value, output, unembedding = params
    stream = torch.nn.functional.embedding(tokens_BxS, embedding)
    x = stream + position
    queries = torch.einsum("bd,hkd->bhk", x[:, -1], query)
    keys, values = (torch.einsum("btd,hkd->bthk", x, weight) for weight in (key, value))
    attention = torch.einsum("bhk,bthk->bht", queries, keys).mul(D_MODEL**-0.5).softmax(-1)
    heads = torch.einsum("bht,bthk->bhk", attention, values)
    added = torch.einsum("bhk,hdk->bd", heads, output)
    logits = (stream[:, -1] + added) @ unembedding.T
    return torch.nn.functional.cross_entropy(logits, label_B)


def _pytorch_rates() -> list[float]:
    """The learning rate of every step."""
    rates = np.linspace(METHOD.learning_rate, METHOD.final_learning_rate, METHOD.epochs + 1)
    return np.repeat(rates[:-1], METHOD.n_batches).tolist()


def _pytorch_examples(seeds: tuple[int, ...], device: str) -> tuple[Any, Any]:
    """Tokens and labels of an epoch, stacked over seeds."""
    size = (*seeds, METHOD.batch_size * METHOD.n_batches)  # type: ignore[operator]
    tokens = torch.randint(TASK.vocab_size, (*size, TASK.context_length), device=device)
    return tokens, torch.randint(TASK.vocab_size, size, device=device)


def _pytorch_model() -> Any:
    """The model of `dana2025/heads` as a PyTorch user would write it, with as many parameters."""

    class AttentionOnly(torch.nn.Module):
        def __init__(self, vocab_size: int, context_length: int, d_model: int, n_heads: int):
            super().__init__()
            self.token_embedding = torch.nn.Embedding(vocab_size, d_model)
            self.position_embedding = torch.nn.Embedding(context_length, d_model)
            future_SxS = torch.ones(context_length, context_length, dtype=torch.bool).triu(1)
            self.heads = pytorch.heads(n_heads, d_model, d_model, future_SxS)
            self.unembedding = torch.nn.Linear(d_model, vocab_size, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.token_embedding(tokens)
            x = x + self.heads(x + self.position_embedding.weight)
            return self.unembedding(x[:, -1])

    model = AttentionOnly(TASK.vocab_size, TASK.context_length, D_MODEL, N_HEADS)
    ours = run(D_MODEL, N_HEADS, METHOD).module()
    pytorch.check_size(model, count_parameters(ours, TASK.context_length)[0])
    return model
