"""Leaves of a world (guard_worlds.py): values as source, each with another that differs, sometimes only in a bit or a type;
and the number that a value is to the step."""

from __future__ import annotations

import struct
import zlib


def token(value) -> bytes:
    """Differs whenever a bit or a type does."""
    kind = type(value)
    if kind is float:
        return b"f" + struct.pack("d", value)
    if kind is complex:
        return b"c" + struct.pack("dd", value.real, value.imag)
    if kind in (tuple, list):
        return kind.__name__.encode() + b"(" + b",".join([token(v) for v in value]) + b")"
    if kind in (set, frozenset):
        return b"s" + b",".join(sorted([token(v) for v in value]))
    if kind is dict:
        return b"d" + b",".join([token(k) + b":" + token(v) for k, v in value.items()])
    if kind in (bytearray, memoryview):
        return b"b" + bytes(value)
    if hasattr(value, "tobytes"):
        return str(getattr(value, "dtype", getattr(value, "typecode", ""))).encode() + value.tobytes()
    if callable(value):
        return b"()" + token(value())
    return kind.__name__.encode() + repr(value).encode()


def num(value) -> float:
    return 0.5 + zlib.crc32(token(value)) / 2**32


# Source of a value, and of one that differs.
LEAVES = [
    ("1.5", "2.5"),
    ("0.0", "-0.0"),
    ("1", "True"),
    ("1", "1.0"),
    ("'a'", "'b'"),
    ("'a'", "b'a'"),
    ("(2,)", "(2.0,)"),
    ("None", "0"),
    ("3", "4"),
    ("2**70", "2**70 + 1"),
    ("1j", "-1j"),
    ("complex(0.0, 0.0)", "complex(0.0, -0.0)"),
    ("(1, (0.0,))", "(1, (-0.0,))"),
    ("float('nan')", "-float('nan')"),
    ("frozenset({1})", "frozenset({2})"),
    ("torch.float32", "torch.float64"),
    ("np.float32(1)", "np.float32(2)"),
    ("np.float64(0.0)", "np.float64(-0.0)"),
    ("torch.Size([2])", "torch.Size([3])"),
    ("Color.RED", "Color.BLUE"),
    ("range(3)", "range(4)"),
    ("slice(1, 2)", "slice(1, 3)"),
    ("lambda: 1.0", "lambda: 2.0"),
    ("float('inf')", "-float('inf')"),
    ("5e-324", "0.0"),
    ("'x' * 300", "'x' * 299 + 'y'"),
    ("Fraction(1, 3)", "Fraction(1, 4)"),
    ("Decimal('1.0')", "Decimal('1.00')"),
]
# Leaves that change in place: source, statements that change them.
MUTABLE = [
    (
        "[1.0, 2.0]",
        ["E[0] = 3.0", "E.append(1)", "E.pop()", "E.reverse()", "E[0] = 1", "E.clear()", "del E[:1]", "E += [2]"],
    ),
    (
        "{'x': 1.0, 'y': 2.0}",
        [
            "E['x'] = 5.0",
            "E['z'] = 1",
            "del E['y']",
            "E['x'] = E.pop('x')",
            "E.clear()",
            "E.update(x=-1)",
            "E |= {'q': 1}",
        ],
    ),
    ("{1, 2, 3}", ["E.add(9)", "E.discard(2)", "E.clear()", "E ^= {1}"]),
    ("bytearray(b'abc')", ["E[0] = 1", "E.append(1)"]),
    ("np.array([1.0, 2.0])", ["E[0] = 7.0", "E *= -1", "E.sort(); E[1] = 9"]),
    ("np.zeros((3, 4))[:, ::2]", ["E[0, 1] = 7.0", "E[...] = -0.0"]),
    ("np.zeros(70000, np.uint8)", ["E[69999] = 1", "E[0] = 1"]),
    ("array.array('d', [1.0])", ["E[0] = -1.0"]),
    ("[[1.0], [2.0]]", ["E[0][0] = 3.0", "E[1] = [4.0]"]),
    ("[{'x': {1: [0.0]}}]", ["E[0]['x'][1][0] = -0.0", "E[0]['x'][2] = 1"]),
    ("memoryview(bytearray(b'abcd'))", ["E[1] = 0"]),
]
