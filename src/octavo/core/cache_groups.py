"""How the layers of a model share out the pages of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """Layers in groups of `layers` each, so that a page of any group has the same size.

    Group 0 has the layers that may see all tokens. Layers of the others see the last
    `window_tokens` only, so what lies before need not be kept for them; the last of them may have
    fewer layers. `places` are group and place in it of each layer.
    """

    layers: int
    places: tuple[tuple[int, int], ...]
    window_tokens: int = 0

    @property
    def count(self) -> int:
        return max(group for group, _ in self.places) + 1


def one_group(layers: int) -> CacheGroups:
    """All layers keep all tokens."""
    return CacheGroups(layers, tuple((0, layer) for layer in range(layers)))


def group_layers(windows: Sequence[int]) -> CacheGroups:
    """Groups for layers that see so many tokens each (0: all).

    There is one group unless some layers see everything and at least as many have one window.
    """
    full = [layer for layer, window in enumerate(windows) if not window]
    windowed = [layer for layer, window in enumerate(windows) if window]
    sizes = {windows[layer] for layer in windowed}
    if not full or len(windowed) < len(full) or len(sizes) != 1:
        return one_group(len(windows))
    places = {layer: (0, place) for place, layer in enumerate(full)}
    for place, layer in enumerate(windowed):
        places[layer] = (1 + place // len(full), place % len(full))
    return CacheGroups(len(full), tuple(place for _, place in sorted(places.items())), sizes.pop())
