"""A kernel that keeps a model on one multiprocessor for a chunk of steps: a study, not the engine.

Of the size that `associations.py` measures. A block loads weights and moments into shared memory,
takes all steps of a chunk (`resident.cuh`), and writes them back; see docs/resident-kernel.md. One
source runs on CPUs, where a block is one thread, and on NVIDIA's GPUs. Needs NVIDIA Warp:

    pip install -e .[warp]
    python experiments/performance/resident.py  # Compiles for an H100, and prints what it takes.
"""

# mypy: disable-error-code="valid-type"

import pathlib
import time
from typing import Any

import numpy as np
from associations import D_MODEL, METHOD, N_HEADS, TASK

try:
    import warp as wp
except ImportError:
    wp = None  # type: ignore[assignment]

NAMES = (
    *("token_embedding", "position_embedding"),
    *("layer0_query", "layer0_key", "layer0_value", "layer0_output"),
    "unembedding",
)
BATCH_SIZE, THREADS = 256, 256
GROUPS = 3  # Of heads: a thread keeps the gradients of a row of each head of a group.
N_PARAMS = 2 * TASK.vocab_size * D_MODEL + 2 * D_MODEL + 4 * N_HEADS * D_MODEL**2
# Weights and moments, products of the heads' maps, and of every example its token and 96 numbers.
FLOATS = 3 * N_PARAMS + 2 * N_HEADS * D_MODEL**2 + 2 * D_MODEL**2 + 97 * BATCH_SIZE
_CONSTANTS = {"D": D_MODEL, "H": N_HEADS, "N": TASK.vocab_size, "B": BATCH_SIZE, "G": GROUPS}

if wp is not None:
    _FLOATS, _INTS = wp.array(dtype=wp.float32), wp.array(dtype=wp.int32)

    @wp.func_native(
        f"constexpr int {', '.join(f'{k} = {v}' for k, v in _CONSTANTS.items())};\n"
        f"constexpr int FLOATS = {FLOATS};\nconstexpr float SCALE = {D_MODEL**-0.5}f;\n"
        + pathlib.Path(__file__).with_suffix(".cuh").read_text()
    )
    def _train(
        lane: wp.int32,
        first_step: wp.int32,
        n_steps: wp.int32,
        weights: _FLOATS,
        means: _FLOATS,
        squares: _FLOATS,
        batch: _INTS,
        rates: _FLOATS,
        loss: _FLOATS,
        accuracy: _FLOATS,
    ) -> None: ...

    @wp.kernel(enable_backward=False)
    def _train_chunk(
        first_step: wp.int32,
        n_steps: wp.int32,
        weights: _FLOATS,
        means: _FLOATS,
        squares: _FLOATS,
        batch: _INTS,
        rates: _FLOATS,
        loss: _FLOATS,
        accuracy: _FLOATS,
    ):
        lane, _ = wp.tid()
        # Never read here: it makes Warp reserve the shared memory.
        room = wp.tile_zeros(shape=(FLOATS,), dtype=wp.float32, storage="shared")  # noqa: F841
        _train(
            lane,
            first_step,
            n_steps,
            weights,
            means,
            squares,
            batch,
            rates,
            loss,
            accuracy,
        )


class Trainer:
    """Models that a device trains side by side, a block each.

    Args:
      weights_RxP: of every model, as `flatten` has them.
    """

    def __init__(self, weights_RxP: np.ndarray) -> None:
        self._n_models, self._step = len(weights_RxP), 0
        start = weights_RxP, np.zeros_like(weights_RxP), np.zeros_like(weights_RxP)
        self._state = [wp.array(x.reshape(-1), dtype=wp.float32) for x in start]

    def train_chunk(
        self, sequence_RxCxB: np.ndarray, label_RxCxB: np.ndarray, rate_C: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """loss_RxC and accuracy_RxC of a chunk of steps on sequences, by number, and labels."""
        shape = sequence_RxCxB.shape[:2]
        first, last = np.divmod(sequence_RxCxB, TASK.vocab_size)
        batch = wp.array((first | last << 8 | label_RxCxB << 16).reshape(-1), dtype=wp.int32)
        rates = wp.array(np.broadcast_to(rate_C, shape).reshape(-1), dtype=wp.float32)
        seen = [wp.zeros(shape[0] * shape[1], dtype=wp.float32) for _ in range(2)]
        self._launch(shape[1], batch, rates, seen)
        return tuple(x.numpy().reshape(shape) for x in seen)  # type: ignore[return-value]

    def rate(self, seconds: float) -> float:
        """Model-steps per second in at least so many seconds, on the same examples again."""
        n_steps = METHOD.chunk_steps
        random = np.random.default_rng(0)
        size = (self._n_models * n_steps * BATCH_SIZE, 3)
        batch = (random.integers(0, TASK.vocab_size, size) << [0, 8, 16]).sum(axis=1)
        inputs = wp.array(batch, dtype=wp.int32), wp.full(size[0] // BATCH_SIZE, 1e-3, wp.float32)
        seen = [wp.zeros(len(inputs[1]), dtype=wp.float32) for _ in range(2)]
        self._launch(n_steps, *inputs, seen)
        wp.synchronize()
        started, n_done = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            self._launch(n_steps, *inputs, seen)
            wp.synchronize()
            n_done += self._n_models * n_steps
        return n_done / (time.perf_counter() - started)

    def weights(self) -> np.ndarray:
        """weights_RxP."""
        return self._state[0].numpy().reshape(self._n_models, N_PARAMS)

    def _launch(self, n_steps: int, batch: Any, rates: Any, seen: Any) -> None:
        inputs = [self._step, n_steps, *self._state, batch, rates, *seen]
        wp.launch_tiled(_train_chunk, dim=[self._n_models], inputs=inputs, block_dim=THREADS)
        self._step += n_steps


def flatten(params: Any) -> np.ndarray:
    """The parameters of a model of memobench, one after another."""
    return np.concatenate([np.asarray(params[name]).reshape(-1) for name in NAMES])


if __name__ == "__main__":
    _train_chunk.module.options["block_dim"] = THREADS
    folder = "build/resident"
    wp.compile_aot_module(_train_chunk.module, arch=90, module_dir=folder, use_ptx=False)
    print(f"compiled for sm_90 in {folder}: {4 * FLOATS} bytes of shared memory for tiles")
