"""What XLA's text of a program tells that its counts do not."""

import math
import re

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
