"""Counts of kernels and bytes of a step, from XLA's text of a compiled program."""

import collections
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)")
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call"),
    # Ends of asynchronous copies, which are counted at their start.
    *("copy-done", "async-done", "slice-done"),
}
# The kind, sizes, order of axes from the last on, and tiles and memory of an array.
_ARRAY = re.compile(
    r"\b(pred|[a-z]+(?:16|32|64))\[([\d,]*)\](?:\{([\d,]*):?((?:[A-Z]\([^)]*\))*)[^}]*\})?"
)
# Instructions that read no more of their first operand than they return.
_SLICES = {"dynamic-slice", "gather", "slice"}


class Instruction(NamedTuple):
    """One line, `name = shape kind(operands)`, and the computations that it calls."""

    name: str
    shape: str
    kind: str
    operands: list[str]
    called: list[str]


class Step(NamedTuple):
    """The work of one turn of a program's loop.

    Attributes:
      launches: of kernels and copies.
      sorts: the number of them.
      loops: the number of inner loops.
      products: of matrices, by the kind of kernel.
      bytes: read and written, if every kernel reads its operands and writes its results once; on a
        TPU as tiles hold them, without what stays on the chip.
    """

    launches: int
    sorts: int
    loops: int
    products: dict[str, int]
    bytes: float


def step(program: str) -> Step:
    """The work of one turn of the loop that a program's entry runs.

    >>> step('''
    ... %body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
    ...   %p = (s32[], f32[8,4]{1,0}) parameter(0)
    ...   %x = f32[8,4]{1,0} get-tuple-element(%p), index=1
    ...   %s = f32[8,4]{1,0} sort(%x), dimensions={1}, to_apply=%less
    ... }
    ... ENTRY %main (a: f32[8,4]) -> f32[8,4] {
    ...   %w = (s32[], f32[8,4]{1,0}) while(%t), condition=%c, body=%body
    ... }''')
    Step(launches=1, sorts=1, loops=0, products={}, bytes=256.0)
    """
    computations = _computations(program)
    entry = computations[re.findall(r"^ENTRY %?([\w.-]+)", program, re.MULTILINE)[0]]
    (body,) = (name for x in entry if x.kind == "while" for name in x.called)
    lines = list(_launched(computations[body], computations))
    inside = {x.name: list(_walk(x, computations)) for x in lines}
    products = collections.Counter(
        "library" if x.kind == "custom-call" else "fused" if x.kind == "fusion" else "alone"
        for x in lines
        if any(y.kind in ("dot", "convolution") or "gemm" in y.name for y in inside[x.name])
    )
    sizes = {x.name: _bytes(x.shape) for x in computations[body]}
    return Step(
        launches=sum(x.kind not in _FREE for x in lines),
        sorts=sum(y.kind == "sort" for x in lines for y in inside[x.name]),
        loops=sum(y.kind == "while" for x in lines for y in inside[x.name]),
        products=dict(products),
        bytes=float(sum(_moved(x, sizes, computations) for x in lines if x.kind not in _FREE)),
    )


def _computations(program: str) -> dict[str, list[Instruction]]:
    """The instructions of every computation, by its name."""
    found: dict[str, list[Instruction]] = {}
    lines: list[Instruction] = []
    for line in re.sub(r"/\*.*?\*/", "", program).splitlines():
        if line[:1] in ("%", "E"):
            lines = found.setdefault(line.split()[line.startswith("ENTRY")].lstrip("%"), [])
        elif match := _INSTRUCTION.match(line):
            name, shape, kind, operands, rest = match.groups()
            # `condition` is left out: it decides and does no work.
            called = re.findall(r"(?:calls|to_apply|body)=%?([\w.-]+)", rest)
            names = re.findall(r"[\w.-]+", operands)
            lines.append(Instruction(name, shape, kind, names, called))
    return found


def _launched(lines: Iterable[Instruction], computations: dict) -> Iterator[Instruction]:
    """The instructions of a computation and of those that it calls one after another."""
    for x in lines:
        if x.kind == "call":
            yield from _launched(computations.get(x.called[0], ()), computations)
        else:
            yield x


def _walk(x: Instruction, computations: dict) -> Iterator[Instruction]:
    """An instruction, and all that it is made of."""
    yield x
    for name in x.called:
        for y in computations.get(name, ()):
            yield from _walk(y, computations)


def _moved(x: Instruction, sizes: dict[str, int], computations: dict) -> float:
    """Bytes that an instruction reads and writes."""
    if x.kind.endswith("-start"):
        # (whole, part, ..): a part on its way between the device's memory and its chip.
        _, (kind, size, order, places), *_ = _ARRAY.findall(x.shape)
        return _array_bytes(kind, size, order, re.sub(r"S\(\d+\)", "", places))
    made_of = computations.get(x.called[0], []) if x.kind == "fusion" else [x]
    shapes = {y.name: _bytes(y.shape) for y in made_of}
    moved = 0.0
    for place, operand in enumerate(x.operands):
        whole = sizes.get(operand, 0)
        if x.kind != "fusion":
            moved += min(whole, _bytes(x.shape)) if x.kind in _SLICES else whole
            continue
        (parameter,) = (
            y.name for y in made_of if y.kind == "parameter" and y.operands == [str(place)]
        )
        users = [y for y in made_of if parameter in y.operands]
        if users and all(y.kind in _SLICES and y.operands[0] == parameter for y in users):
            whole = min(whole, sum(shapes[y.name] for y in users))
        elif users and all(_updates(y, parameter) for y in users):
            whole = 0
        moved += whole
    updates = [y for y in made_of if y.kind == "dynamic-update-slice"]
    written = _bytes(x.shape)
    for y in updates:
        # Only the slice is written; the rest stays where it is.
        written += shapes.get(y.operands[1], 0) - _bytes(y.shape)
    return moved + max(written, 0)


def _updates(x: Instruction, name: str) -> bool:
    return x.kind == "dynamic-update-slice" and x.operands[0] == name


def _bytes(shape: str) -> int:
    """Bytes of arrays in the device's memory; a library's scratch space, s8, is not counted.

    A TPU's arrays fill whole tiles, such as T(8,128) of the last two axes of their layout. Those in
    S(1) stay on the chip.

    >>> _bytes("f32[3,2]"), _bytes("f32[2,3]{0,1:T(8,128)}"), _bytes("f32[2]{0:T(128)S(1)}")
    (24, 4096, 0)
    """
    return sum(_array_bytes(*parts) for parts in _ARRAY.findall(shape))


def _array_bytes(kind: str, sizes: str, order: str, places: str) -> int:
    if re.search(r"S\([1-9]", places):
        return 0
    size = [int(n) for n in sizes.split(",") if n]
    tile = re.match(r"T\(([\d,]+)\)", places)
    of_tile = [int(n) for n in tile.group(1).split(",")] if tile else []
    for axis, multiple in zip(order.split(","), reversed(of_tile), strict=False):
        if axis:
            size[int(axis)] = -(-size[int(axis)] // multiple) * multiple
    return _width(kind) * math.prod(size)


def _width(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[-2:]) // 8
