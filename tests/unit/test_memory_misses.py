"""Why a prefix was not found, and who may find whose."""

from __future__ import annotations

import pytest

from octavo.core.request import Request
from octavo.memory.cache import PageCache
from octavo.memory.keys import child_key, root_key
from octavo.memory.misses import MissHistory, MissReason
from octavo.schedule.events import Decision
from octavo.schedule.sequence import tenant_salt
from schedule_harness import Driver, request

PROMPT = [5, 6, 7, 8] * 3


def ask(driver: Driver, name: str, prompt: list[int], **fields: object) -> int:
    """Run a request alone; how many of its tokens came from the cache."""
    driver.add(request(name, prompt, max_new_tokens=1, **fields))  # type: ignore[arg-type]
    driver.run()
    return max(output.cached_tokens for output in driver.outputs if output.request_id == name)


def misses(driver: Driver) -> dict[str, int]:
    return dict(driver.scheduler.counters.prefix_misses)


def test_the_first_time_is_a_miss_and_the_second_is_none() -> None:
    driver = Driver(pages=32, page_tokens=4)
    assert ask(driver, "a", PROMPT) == 0
    assert misses(driver) == {"first_time": 1}
    assert ask(driver, "b", PROMPT) == 8
    assert misses(driver) == {"first_time": 1}
    assert ask(driver, "c", [*PROMPT[:8], 1, 1, 1, 1, 1]) == 8
    assert misses(driver) == {"first_time": 2}
    told = [event for event in driver.events if isinstance(event, Decision)]
    assert [event.reason for event in told if event.kind == "prefix_missed"] == [
        "first_time after 0 pages",
        "first_time after 2 pages",
    ]


def test_a_page_that_was_given_up_is_known_to_have_been_there() -> None:
    driver = Driver(pages=32, page_tokens=4)
    ask(driver, "a", PROMPT)
    driver.scheduler.cache.give_up_oldest(32)
    assert ask(driver, "b", PROMPT) == 0
    assert misses(driver) == {"first_time": 1, "evicted": 1}
    eager = Driver(pages=32, page_tokens=4, keeps_pages=False)
    ask(eager, "a", PROMPT)
    ask(eager, "b", PROMPT)
    assert misses(eager) == {"first_time": 1, "evicted": 1}


def test_another_salt_is_told_from_another_prompt() -> None:
    driver = Driver(pages=32, page_tokens=4)
    ask(driver, "a", PROMPT, salt=b"x")
    assert ask(driver, "b", PROMPT, salt=b"y") == 0
    assert misses(driver) == {"first_time": 1, "salt": 1}


@pytest.mark.parametrize(("separates", "cached"), [(True, 0), (False, 8)])
def test_tenants_share_pages_only_if_that_is_wanted(separates: bool, cached: int) -> None:
    driver = Driver(pages=32, page_tokens=4, separates_tenants=separates)
    ask(driver, "a", PROMPT, tenant="one")
    assert ask(driver, "b", PROMPT, tenant="two") == cached
    assert ask(driver, "c", PROMPT, tenant="one") == 8
    assert misses(driver).get("salt", 0) == separates


def test_salts_of_tenants_do_not_run_into_each_other() -> None:
    def salt(tenant: str, own: bytes) -> bytes:
        asked: Request = request("a", [1], tenant=tenant, salt=own)
        return tenant_salt(asked)

    salts = {salt("a", b"bc"), salt("ab", b"c"), salt("abc", b""), salt("anonymous", b"abc")}
    assert len(salts) == 4


def test_history_of_beginnings_is_bounded_and_forgets_the_oldest() -> None:
    history = MissHistory(remembered=2)
    root, other = root_key(b"model", b""), root_key(b"model", b"salt")
    for number in range(3):
        history.explain(root, (number,), was_given_up=False)
    reasons = [history.explain(other, (number,), was_given_up=False) for number in (2, 0)]
    assert reasons == [MissReason.SALT, MissReason.FIRST_TIME]


def test_history_of_lost_pages_is_bounded_and_forgets_the_oldest() -> None:
    cache = PageCache(1)
    root = root_key(b"model", b"")
    keys = [child_key(root, [number]) for number in range((1 << 15) + 3)]
    for key in (keys[0], *keys):
        cache.publish(cache.allocate(), key, None)
        cache.release([0])
    # The last one is still there, all but the newest of the others are forgotten.
    assert [cache.was_given_up(keys[place]) for place in (0, 1, 2, -2, -1)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert cache.audit([]) == []
