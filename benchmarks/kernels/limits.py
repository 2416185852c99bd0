"""What this machine allows: memory reads, float and integer arithmetic, measured beside kernels."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from octavo.compute.kernels.cpu import _native

KINDS = ("read", "fma", "byte_products", "nibble_products")

UNITS = {
    "read": "GB/s",
    "fma": "GFLOP/s",
    "byte_products": "GOP/s",
    "nibble_products": "GOP/s",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, floating-point operations and products of integers a second, in giga."""

    read: float
    fma: float
    byte_products: float
    nibble_products: float

    def or_better(self, other: Limits) -> Limits:
        """The larger of each: noise only ever lowers a limit."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return Limits(**{kind: max(first, second) for (kind, first), second in pairs})


REFERENCE_ONE_CORE = {
    "avx512-vnni": Limits(14.3, 190.0, 750.0, 750.0),
    "avx2": Limits(14.3, 105.0, 198.0, 198.0),
}
"""A core of an Ice Lake server at 2.8 GHz, by instruction set (512 and 256 bits wide)."""

REFERENCE_ALL_CORES = {
    "avx512-vnni": Limits(27.0, 371.0, 1400.0, 1400.0),
    "avx2": Limits(27.0, 190.0, 380.0, 380.0),
}
"""Two such cores; more of them share the memory but add arithmetic."""

LEAST_SHARE = 0.5
"""Below this share of the reference a machine is too busy or too slow for its figures to count."""


class Meter:
    """Measures the limits of a tier again and again."""

    def __init__(self, tier: str, threads: int):
        self._native = _native.LimitMeter(tier, threads)

    def measure(self, seconds: float) -> Limits:
        """Each limit by its best burst within `seconds`."""
        return Limits(*(self._native.measure(kind, seconds) / 1e9 for kind in KINDS))


def reference(tier: str, threads: int) -> Limits | None:
    """What a machine of this tier should reach; None where nobody has measured."""
    if threads == 1:
        return REFERENCE_ONE_CORE.get(tier)
    two = REFERENCE_ALL_CORES.get(tier)
    if two is None:
        return None
    return Limits(two.read, *(value * threads / 2 for value in list(asdict(two).values())[1:]))


def shortfalls(found: Limits, expected: Limits | None) -> list[str]:
    """A sentence for each limit below half of its reference."""
    if expected is None:
        return []
    pairs = zip(asdict(found).items(), asdict(expected).values(), strict=True)
    return [
        f"{kind}: {value:.1f} {UNITS[kind]} is {value / wanted:.0%} of the reference {wanted:.1f}"
        for (kind, value), wanted in pairs
        if value < LEAST_SHARE * wanted
    ]
