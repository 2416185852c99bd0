"""Promises by example: classes, time limits, admission control, policies, the cost model."""

from __future__ import annotations

import pytest

from octavo.core.errors import InvalidRequest, Overloaded, SettingsError
from octavo.core.ids import RequestId
from octavo.core.service_class_settings import parse_classes, parse_routes, show_classes
from octavo.core.service_classes import BUILT_IN, UNIFORM, Route, ServiceClass, choose_class
from octavo.schedule.cost import CostModel, CostProfile, StepShape
from octavo.schedule.counters import ClassCounters, SchedulerCounters
from octavo.schedule.events import Decision
from octavo.schedule.plan import StepPlan
from schedule_harness import Driver, alone, request

COST = CostProfile(0.002, 0.001, 0.001, 0.0, 0.0)
FAST = ServiceClass("fast", 0.5, 0.02, weight=3)
STANDARD = ServiceClass("standard", weight=1)


def driver(**changes: object) -> Driver:
    settings = {"pages": 64, "page_tokens": 4, "max_rows": 8, "classes": (STANDARD, FAST)}
    driven = Driver(**{**settings, "profile": COST, **changes})
    driven.step_seconds = lambda plan: plan.predicted_seconds
    return driven


def lengths(plan: StepPlan) -> dict[str, int]:
    return {row.request_id: len(row.tokens) for row in plan.rows}


def test_chunks_are_cut_to_the_time_of_a_step() -> None:
    driven = driver(max_step_seconds=0.05)
    driven.add(request("long", range(200)))
    plan = driven.step()
    assert 20 <= lengths(plan)["long"] <= 48
    assert plan.predicted_seconds <= 0.05


def test_the_target_of_a_decoding_class_bounds_steps_of_all() -> None:
    driven = driver(max_step_seconds=0.1)
    driven.add(request("f", [1], service_class="fast", max_new_tokens=50))
    driven.step()
    driven.add(request("long", range(150)))
    for _ in range(5):
        plan = driven.step()
        assert plan.predicted_seconds <= 0.02
        assert set(lengths(plan)) == {"f", "long"}


def test_a_stricter_class_takes_a_row() -> None:
    driven = driver(max_rows=1)
    driven.add(request("s", [1, 2], max_new_tokens=20))
    driven.step()
    driven.add(request("f", [3, 4], service_class="fast"))
    plan = driven.step()
    assert [(each.request_id, each.reason) for each in plan.preemptions] == [
        ("s", "made room for class fast")
    ]
    assert list(lengths(plan)) == ["f"]
    driven.run()
    assert set(driven.answers) == {"s", "f"}


def test_a_full_queue_tells_when_to_come_back() -> None:
    driven = driver(classes=(ServiceClass("standard", queue_requests=2),))
    driven.add(request("a", [1]), request("b", [2]))
    waits = []
    for number in range(2):
        with pytest.raises(Overloaded, match="2 requests wait") as raised:
            driven.scheduler.add(request(f"c{number}", [3]))
        waits.append(raised.value.retry_after_seconds)
    assert all(seconds >= 1 for seconds in waits)
    assert driven.scheduler.class_counters["standard"].refused == 2
    refusals = [each for each in driven.events if isinstance(each, Decision)]
    assert [each.kind for each in refusals] == ["refused", "refused"]


@pytest.mark.parametrize("on_miss", ["run", "degrade", "refuse"])
def test_a_request_that_would_be_late(on_miss: str) -> None:
    late = ServiceClass("fast", 0.01, 0.02, on_miss=on_miss)
    driven = driver(classes=(late, STANDARD))
    # Who finds nobody else is taken: it could not come sooner.
    driven.add(request("first", range(100), service_class="fast"))
    assert driven.scheduler.class_of(RequestId("first")) == "fast"
    asked = request("a", range(100, 200), service_class="fast")
    if on_miss == "refuse":
        with pytest.raises(Overloaded):
            driven.add(asked)
        return
    driven.add(asked)
    wanted = {"run": "fast", "degrade": "standard"}[on_miss]
    assert driven.scheduler.class_of(asked.id) == wanted


def test_tenants_share_by_tokens() -> None:
    driven = driver(max_rows=1, pages=2000, max_chunk_tokens=2048)
    for number in range(4):
        driven.add(request(f"a{number}", range(1500), max_new_tokens=1, tenant="a"))
    driven.add(request("b", range(3000, 4500), max_new_tokens=1, tenant="b"))
    driven.run()
    order = [each.request.id for plan in driven.plans for each in plan.admissions]
    assert order.index("b") == 1


def decisions(driven: Driver, kind: str) -> list[tuple[str, str]]:
    found = [each for each in driven.events if isinstance(each, Decision)]
    return [(each.request_id, each.reason) for each in found if each.kind == kind]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_chunk_tokens": 30}, "30 of 100 tokens: a chunk has no more"),
        ({"token_budget": 40}, "40 of 100 tokens: the tokens of the step are spent"),
        ({"max_step_seconds": 0.05}, "tokens: the time of the step is spent"),
    ],
)
def test_a_prompt_in_parts_is_told_with_its_reason(changes: dict[str, object], reason: str) -> None:
    driven = driver(**changes)
    driven.add(request("long", range(100)))
    driven.step()
    ((name, told),) = decisions(driven, "chunked")
    assert name == "long"
    assert told.endswith(reason)
    assert driven.scheduler.class_counters["standard"].chunked == 1


def test_pages_beyond_a_share_are_told_as_lent() -> None:
    greedy = ServiceClass("standard", kv_share=0.25)
    driven = driver(classes=(FAST, greedy))
    driven.add(request("a", range(80)), request("b", range(100, 120)))
    driven.run()
    assert [name for name, _ in decisions(driven, "lent")] == ["a", "b"]
    assert driven.scheduler.class_counters["standard"].lent == 2


def test_an_unknown_class_is_refused_where_there_are_several() -> None:
    with pytest.raises(InvalidRequest, match="must be one of fast, standard"):
        driver().add(request("a", [1], service_class="gold"))


def test_static_batches_keep_their_rows_to_the_end() -> None:
    driven = driver(classes=UNIFORM, batching="static", max_rows=2)
    driven.add(request("short", [1, 2], max_new_tokens=1))
    driven.add(request("long", [3, 4], max_new_tokens=6))
    driven.add(request("next", [5, 6], max_new_tokens=1))
    plans = []
    while driven.scheduler.has_work:
        plans.append(driven.step())
    rows = [len(plan.rows) for plan in plans]
    assert rows[:6] == [2] * 6
    assert all("next" not in lengths(plan) for plan in plans[:6])


def test_a_static_row_computes_on_when_its_request_ends_in_prefill() -> None:
    """Its reader left; the row goes on through the prompt, and needs pages for that."""
    driven = driver(classes=UNIFORM, batching="static", max_rows=2, token_budget=9)
    driven.add(
        request("other", [1], max_new_tokens=9), request("left", range(40), max_new_tokens=2)
    )
    driven.step()
    driven.step()
    assert driven.scheduler.finish("left")
    assert "left" in lengths(driven.step())
    driven.run()
    assert driven.scheduler.cache.pool.held_count == 0


def test_padded_batches_compute_what_a_tensor_of_them_would() -> None:
    driven = driver(classes=UNIFORM, batching="static", max_rows=2, static_padding=True)
    asked = [
        request("short", [1, 2], max_new_tokens=13),
        request("long", range(3, 43), max_new_tokens=2),
        request("later", range(50, 60), max_new_tokens=2),
    ]
    driven.add(*asked)
    driven.run()
    padding = [row for plan in driven.plans for row in plan.chunks if row.is_padding]
    # The second batch has one prompt, which is the longest.
    assert [(row.request_id, len(row.tokens)) for row in padding] == [("short", 38)]
    for each in asked:
        assert driven.answers[each.id] == alone(each, driven.scheduler.limit_tokens)
    assert driven.scheduler.cache.pool.held_count == 0


def test_padding_goes_on_when_not_a_token_fits_into_a_step() -> None:
    """A position in the padding costs more than any that the prompt itself has."""
    driven = driver(
        classes=UNIFORM,
        batching="static",
        max_rows=2,
        static_padding=True,
        max_step_seconds=0.001,
        profile=CostProfile(0.001, 0.001, 0.0005, 1e-6, 1e-6),
    )
    asked = [
        request("short", [1], max_new_tokens=2),
        request("long", range(3, 13), max_new_tokens=2),
    ]
    driven.add(*asked)
    driven.run()
    for each in asked:
        assert driven.answers[each.id] == alone(each, driven.scheduler.limit_tokens)


def test_nobody_is_preempted_for_pages_that_others_hold_too() -> None:
    driven = driver(pages=10)
    shared = range(24)
    for name, service_class in (("f", "fast"), ("s1", "standard"), ("s2", "standard")):
        own = (50 + len(driven.answers), 60)
        asked = request(name, (*shared, *own), service_class=service_class, max_new_tokens=20)
        driven.add(asked)
        driven.step()
    driven.add(request("new", range(100, 112), service_class="fast"))
    plan = driven.step()
    # Without them two pages are free that are theirs alone, and two that they would grow into.
    assert plan.preemptions == ()
    assert "new" not in lengths(plan)


def test_who_is_done_in_a_static_batch_computes_no_further_than_its_run_of_pages() -> None:
    bulk, fast = (
        ServiceClass(name, first, gap, admit_max=1)
        for name, first, gap in (("bulk", None, None), ("fast", 0.05, 0.01))
    )
    driven = driver(
        pages=42,
        page_tokens=2,
        token_budget=16,
        max_rows=5,
        max_context=40,
        batching="static",
        is_contiguous=True,
        max_step_seconds=0.02,
        classes=(fast, bulk),
        profile=CostProfile(0.001, 0.001, 0.0005, 1e-6, 1e-6),
    )
    coming = {0: [(6, 8, "bulk")], 2: [(5, 1, "bulk")], 4: [(4, 8, "fast"), (2, 2, "fast")]}
    coming[6] = [(4, 2, "fast")]
    asked = []
    for step in range(8):
        for prompt, new, service_class in coming.get(step, ()):
            prompt_tokens = [len(asked)] * prompt
            asked.append(
                request(
                    str(len(asked)),
                    prompt_tokens,
                    max_new_tokens=new,
                    service_class=service_class,
                )
            )
            driven.add(asked[-1])
        driven.step()
    driven.run()
    for each in asked:
        assert driven.answers[each.id] == alone(each, driven.scheduler.limit_tokens)


def test_tokens_that_seem_to_be_free_do_not_stop_the_engine() -> None:
    """Where steps without work last longer than is allowed, there is no time left for them."""
    driven = driver(max_step_seconds=0.1, profile=CostProfile(0.2, 0.0, 0.0, 0.0, 0.0))
    driven.add(*(request(str(place), [1, 2, place]) for place in range(8)))
    assert not driven.step().is_empty


def test_dynamic_batches_wait_for_company() -> None:
    driven = driver(classes=UNIFORM, batching="dynamic", max_rows=2, max_wait_seconds=0.5)
    driven.add(request("a", [1]))
    assert driven.step().is_empty
    assert driven.scheduler.patience_seconds == pytest.approx(0.5)
    driven.scheduler.add(request("b", [2]))
    assert set(lengths(driven.step())) == {"a", "b"}


def test_the_cost_model_learns_what_steps_cost() -> None:
    model = CostModel()
    truth = CostModel(CostProfile(0.01, 0.002, 0.003, 0.0, 0.0))
    for number in range(300):
        shape = StepShape()
        shape.add_decodes(number % 7, 100 * (number % 7))
        shape.add_chunk(1 + number * 13 % 200, 0)
        model.observe(shape, truth.predict(shape))
    shape = StepShape()
    shape.add_decodes(3, 300)
    shape.add_chunk(50, 0)
    assert model.predict(shape) == pytest.approx(truth.predict(shape), rel=0.1)
    assert model.error < 0.1
    assert model.chunk_within(model.chunk(40, 100), 100) == 40


def test_without_a_profile_larger_models_are_expected_to_be_slower() -> None:
    shape = StepShape()
    shape.add_chunk(64, 0)
    small, large = CostModel(weight_bytes=100 << 20), CostModel(weight_bytes=1000 << 20)
    assert large.predict(shape) == pytest.approx(10 * small.predict(shape))
    truth = small.predict(shape) * 3
    large.observe(shape, truth)
    assert large.predict(shape) == pytest.approx(truth, rel=0.05)


def test_a_warm_up_leaves_no_trace() -> None:
    driven = driver()
    driven.add(request("a", range(40), service_class="fast"))
    driven.run()
    assert driven.scheduler.class_counters["fast"].offered == 1
    assert driven.scheduler.cost.observations > 0
    driven.scheduler.forget()
    assert driven.scheduler.class_counters["fast"] == ClassCounters()
    assert driven.scheduler.counters == SchedulerCounters()
    assert driven.scheduler.cost.observations == 0
    assert driven.scheduler.cost.token == pytest.approx(COST.token)


def test_names_tiers_and_routes_choose_the_class() -> None:
    routes = (Route("batch", prompt_tokens_above=4096), Route("realtime", path="/v1/voice"))
    assert choose_class(BUILT_IN, named="batch") == "batch"
    assert choose_class(BUILT_IN, tier="priority") == "realtime"
    assert choose_class(BUILT_IN, routes=routes, prompt_tokens=5000) == "batch"
    assert choose_class(BUILT_IN, routes=routes, path="/v1/voice/1") == "realtime"
    assert choose_class(BUILT_IN, tier="auto", routes=routes) == "standard"
    with pytest.raises(InvalidRequest):
        choose_class(BUILT_IN, tier="gold")


def test_classes_are_read_and_shown_as_settings() -> None:
    classes = parse_classes('{"night": {"weight": 0.5}, "batch": null}', "classes")
    assert [each.name for each in classes] == ["realtime", "standard", "night"]
    assert parse_classes(show_classes(classes), "classes") == classes
    assert parse_classes("off", "classes") == UNIFORM
    assert parse_routes('[{"service_class": "night"}]', "routes") == (Route("night"),)
    for wrong in ('{"standard": null}', '{"a": {"wieght": 1}}', '{"a": {"weight": 0}}', "[1]", "x"):
        with pytest.raises(SettingsError):
            parse_classes(wrong, "classes")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"nächtlich": {}}', "classes: .* is not a name of a class .*A-Z, a-z"),
        ('{"a\\nb": {}}', "is not a name of a class"),
        ('{"batch": {"weight": 1}, "batch": {"weight": 2}}', "classes: has the key 'batch' twice"),
        ('{"batch": {"weight": 1, "weight": 2}}', "classes: has the key 'weight' twice"),
        ('{"nightly": null}', "classes.nightly: is null, but there is no such class"),
        ('{"batch": {"kv_share": NaN}}', "classes.batch.kv_share: must be more than 0"),
        ('{"batch": {"queue_requests": 1e3}}', "queue_requests: must be a whole number"),
        ('{"batch": {"admit_max": 1' + "0" * 30 + "}}", "admit_max: must be a whole number from 0"),
    ],
)
def test_a_wrong_class_is_told_where_it_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse_classes(text, "classes")


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"key": "sk-secret"}, r"routes\[0\]\.key: .*SHA-256"),
        ({"key": "ABCDEF0123456789"}, r"routes\[0\]\.key: .*in small letters"),
        ({"path": "v1/chat"}, r"routes\[0\]\.path: is no beginning of a path"),
        ({"prompt_tokens_above": 10, "prompt_tokens_below": 11}, "no prompt is so short"),
        ({"prompt_tokens_below": 1}, "no prompt is so short"),
        ({"prompt_tokens_above": -1}, "must be a whole number from 0"),
    ],
)
def test_a_rule_that_can_never_match_is_refused(rule: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse_routes([{"service_class": "batch", **rule}], "routes")
    rule = {"key": "anonymous", "prompt_tokens_above": 10, "prompt_tokens_below": 12}
    assert parse_routes([{"service_class": "batch", **rule}], "routes")[0].matches(
        11, "/v1/completions", "anonymous"
    )
