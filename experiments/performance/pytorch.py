"""PyTorch as its user would write it, if it is installed: eager, one model after another."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import measuring

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


def version() -> dict[str, str]:
    """PyTorch's version, for a page; prints a line where it is missing."""
    if torch is None:
        print("PyTorch cannot be imported: the rows that need it are left out.")
    return {"torch": "not installed" if torch is None else torch.__version__}


def threads() -> list[int]:
    """The thread counts to try: none without PyTorch, and one where it has a GPU."""
    if torch is None:
        return []
    default = torch.get_num_threads()
    return [default] if torch.cuda.is_available() else sorted({1, default}, reverse=True)


def where(n_threads: int) -> str:
    """On what PyTorch computes, for the name of a row."""
    return "GPU" if torch.cuda.is_available() else f"{n_threads} thread" + "s" * (n_threads > 1)


def rate(
    steps_on: Callable[[str], Iterator[None]], n_threads: int, seconds: float, warm_up: int
) -> float:
    """Steps per second of what trains on a device, given its name, and yields after each step."""
    cuda, default = torch.cuda.is_available(), torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        steps = steps_on("cuda" if cuda else "cpu")
        wait = torch.cuda.synchronize if cuda else lambda: None
        return measuring.steady(steps, seconds, warm_up, wait)
    finally:
        torch.set_num_threads(default)


def steps(params: Iterable[Any], rates: Iterable[float], losses: Iterable[Any]) -> Iterator[None]:
    """Trains parameters by Adam, each step on the next loss at the next rate; yields after each."""
    optimizer = torch.optim.Adam(params)
    for rate, loss in zip(rates, losses, strict=False):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def heads(n_heads: int, d_model: int, d_value: int, hidden_SxS: Any) -> Any:
    """Attention as the sum of one module per head; hidden_SxS masks what tokens do not read."""

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(d_model, d_model, bias=False)
            self.key = torch.nn.Linear(d_model, d_model, bias=False)
            self.value = torch.nn.Linear(d_model, d_value, bias=False)
            self.output = torch.nn.Linear(d_value, d_model, bias=False)
            self.register_buffer("hidden", hidden_SxS)

        def forward(self, x: Any) -> Any:
            scores = self.query(x) @ self.key(x).transpose(-2, -1) * d_model**-0.5
            attention = scores.masked_fill(self.hidden, -math.inf).softmax(-1)
            return self.output(attention @ self.value(x))

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.ModuleList(Head() for _ in range(n_heads))

        def forward(self, x: Any) -> Any:
            return sum(head(x) for head in self.heads)

    return Heads()


def check_size(model: Any, n_params: int) -> None:
    """Raises AssertionError unless a model has as many parameters as memobench's."""
    if sum(p.numel() for p in model.parameters()) != n_params:
        raise AssertionError("the PyTorch model is not the same as memobench's")
