"""Page tables of cache groups: what windows keep, what a request can go on from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.core.cache_groups import CacheGroups, group_layers, one_group
from octavo.memory.keys import group_key
from octavo.memory.layout import NO_PAGE, TableLayout

LAYOUT = TableLayout(4, groups=3, window_tokens=6, step_tokens=8)


class Found:
    """Whatever keys are there, numbered."""

    def __init__(self, keys: Sequence[bytes]):
        self.pages = {key: number for number, key in enumerate(keys)}

    def look_up(self, keys: Sequence[bytes]) -> list[int]:
        found: list[int] = []
        for key in keys:
            if key not in self.pages:
                break
            found.append(self.pages[key])
        return found


def chain(blocks: int) -> list[bytes]:
    return [bytes([block] * 32) for block in range(1, blocks + 1)]


def everything(keys: Sequence[bytes]) -> list[bytes]:
    return [group_key(key, group) for key in keys for group in range(3)]


def test_layers_of_gemma_make_groups_of_equal_size() -> None:
    windows = [0 if (layer + 1) % 6 == 0 else 512 for layer in range(18)]
    groups = group_layers(windows)
    assert (groups.count, groups.layers, groups.window_tokens) == (6, 3, 512)
    assert [groups.places[layer] for layer in (5, 11, 17)] == [(0, 0), (0, 1), (0, 2)]
    assert len(set(groups.places)) == 18


def test_the_last_group_may_have_fewer_layers() -> None:
    groups = group_layers([512, 512, 0, 512, 512, 512, 0])
    assert (groups.count, groups.layers) == (4, 2)
    assert groups.places == ((1, 0), (1, 1), (0, 0), (2, 0), (2, 1), (3, 0), (0, 1))


@pytest.mark.parametrize("windows", [[0, 0, 0], [8, 8], [0, 8, 16], [0, 0, 8]])
def test_other_models_have_one_group(windows: list[int]) -> None:
    assert (
        group_layers(windows)
        == one_group(len(windows))
        == CacheGroups(len(windows), tuple((0, layer) for layer in range(len(windows))))
    )


def test_one_group_is_a_plain_table() -> None:
    layout = TableLayout(4)
    assert [layout.most_pages(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert layout.most_tokens(5) == 20
    assert layout.look_up(Found(chain(2)), chain(3)) == [0, 1]


def test_windows_grow_no_further_than_their_span() -> None:
    assert [LAYOUT.first_block(tokens) for tokens in (0, 5, 8, 9, 13)] == [0, 0, 0, 1, 2]
    assert LAYOUT.span_blocks == 5
    assert [LAYOUT.most_pages(4 * blocks) for blocks in (1, 5, 6, 100)] == [3, 15, 16, 110]


@pytest.mark.parametrize("window_tokens", [1, 2, 5, 16, 17, 24])
@pytest.mark.parametrize("step_tokens", [1, 2, 3, 16, 17, 40])
def test_the_span_is_what_windows_hold_at_most(window_tokens: int, step_tokens: int) -> None:
    layout = TableLayout(16, 2, window_tokens, step_tokens)
    held = [
        (start + step_tokens - 1) // 16 + 1 - layout.first_block(start // 16 * 16)
        for start in range(200)
    ]
    assert max(held) == layout.span_blocks


def test_the_longest_request_is_the_longest_that_fits() -> None:
    for pages in range(60):
        tokens = LAYOUT.most_tokens(pages)
        assert LAYOUT.most_pages(tokens) <= pages < LAYOUT.most_pages(tokens + 1)


def test_a_request_goes_on_where_all_its_windows_are() -> None:
    keys = chain(6)
    table = LAYOUT.look_up(Found(everything(keys)), keys)
    assert len(table) == 18
    # The token behind block 5 sees two tokens of block 4 and no earlier ones.
    assert [place for place, page in enumerate(table) if page == NO_PAGE] == [
        3 * block + group for block in range(4) for group in (1, 2)
    ]
    assert LAYOUT.held(table) == [page for page in table if page != NO_PAGE]


@pytest.mark.parametrize("group", [1, 2])
def test_a_missing_window_shortens_what_is_found(group: int) -> None:
    keys = chain(6)
    pages = everything(keys)
    for gone, blocks in ((5, 5), (4, 4), (3, 6)):
        found = [key for key in pages if key != group_key(keys[gone], group)]
        assert len(LAYOUT.look_up(Found(found), keys)) == 3 * blocks
    without = [key for key in pages if key not in [group_key(key, group) for key in keys]]
    assert LAYOUT.look_up(Found(without), keys) == []


def test_a_missing_page_of_the_first_group_ends_the_run() -> None:
    keys = chain(6)
    found = [key for key in everything(keys) if key != keys[3]]
    assert len(LAYOUT.look_up(Found(found), keys)) == 3 * 3


def test_pages_in_order_of_release() -> None:
    table = [0, NO_PAGE, NO_PAGE, 3, 4, 5, 6, 7, 8]
    assert list(LAYOUT.in_order(table, 1)) == [0, 3, 6, 4, 7, 5, 8]
    assert LAYOUT.window_keys(chain(6), 6) == [
        group_key(chain(6)[block], group) for block in (4, 5) for group in (1, 2)
    ]
