"""A scheduler under any load, with the promises that hold in each of its steps."""

from __future__ import annotations

from octavo.core.errors import CapacityError, Overloaded, PromptTooLong
from octavo.core.request import Request
from octavo.core.service_classes import ServiceClass
from octavo.schedule.cost import CostProfile
from octavo.schedule.lane import Lane
from octavo.schedule.plan import StepPlan
from octavo.schedule.sequence import MOST_PREEMPTIONS, Sequence
from schedule_harness import Driver, alone, request

COST = CostProfile(0.001, 0.001, 0.0005, 1e-6, 1e-6)


def classes_of(
    kv_shares: tuple[float, float, float], longest_wait_seconds: float, bulk_requests: int | None
) -> tuple[ServiceClass, ...]:
    """Three classes, whose least numbers to admit together are small enough to matter."""
    fast, standard, bulk = kv_shares
    return (
        ServiceClass("fast", 0.05, 0.01, weight=3, admit_max=2, kv_share=fast),
        ServiceClass(
            "standard",
            0.2,
            0.05,
            weight=2,
            admit_min=2,
            admit_max=3,
            longest_wait_seconds=longest_wait_seconds,
            kv_share=standard,
        ),
        ServiceClass(
            "bulk",
            weight=1,
            admit_min=3,
            admit_max=4,
            longest_wait_seconds=longest_wait_seconds * 2,
            kv_share=bulk,
            queue_requests=bulk_requests,
        ),
    )


class CheckedLoad:
    """Drives a scheduler; everybody ends with the answer it would have alone.

    `limits` are those of `Scheduler`, `classes` and `max_step_seconds` among them. Steps take a
    tenth more or less than predicted.
    """

    def __init__(self, limits: dict[str, object]):
        self.limits = limits
        self.driver = Driver(**limits, profile=COST)
        self.driver.step_seconds = self._seconds_of
        self.scheduler = self.driver.scheduler
        self.live: dict[str, Request] = {}
        self.arrived = 0

    def _seconds_of(self, plan: StepPlan) -> float:
        return plan.predicted_seconds * (1.1 if plan.number % 2 else 0.9)

    def arrive(self, prompt: tuple[int, ...], extras: dict[str, object]) -> bool:
        """Add a request; False if it was refused."""
        self.arrived += 1
        asked = request(f"r{self.arrived}", prompt, **extras)  # type: ignore[arg-type]
        try:
            self.scheduler.add(asked)
        except (PromptTooLong, CapacityError):
            return False
        except Overloaded:
            assert asked.service_class == "bulk"
            assert self.scheduler.class_counters["bulk"].refused
            return False
        self.live[asked.id] = asked
        return True

    def cancel(self, index: int) -> None:
        """Cancel one of those who are there."""
        name = list(self.live)[index % len(self.live)]
        assert self.scheduler.cancel(name)
        del self.live[name]

    def step(self) -> None:
        """One step, or the wait that the scheduler asks for."""
        patience = self.scheduler.patience_seconds
        lanes = self.scheduler._lanes
        over = {lane for lane in lanes if lane.pages > self._page_limit(lane)}
        running = {s.id: s for s in self.scheduler._ledger.running}
        wanting = [lane for lane in lanes if len(lane.queue) and lane not in over]
        before = {lane: (lane.pages, len(lane.running)) for lane in lanes}
        held_pages = self.scheduler.cache.pool.held_count
        plan = self.driver.step()
        self._check_shares(plan, wanting, before)
        if patience and plan.is_empty:
            self.driver.wait(patience)
            return
        assert plan.is_empty == (not self.live), "work was left undone"
        self._check_limits(plan)
        self._check_victims(plan, running, over)
        self._check_nobody_idles(plan, running, held_pages)
        self._collect()

    def finish(self) -> None:
        """Step until everybody has an answer; nothing is left behind."""
        for _ in range(200 + 400 * len(self.live)):
            if not self.live:
                break
            self.step()
        assert not self.live, "requests were starved"
        self.driver.step()
        assert self.scheduler.cache.pool.held_count == 0
        assert self.scheduler.running_count == self.scheduler.waiting_count == 0
        assert self.driver.model.rows == {}

    def _check_limits(self, plan: StepPlan) -> None:
        assert plan.token_count <= int(self.limits["token_budget"])  # type: ignore[call-overload]
        limit = self.limits["max_step_seconds"]
        # A starved class gets its minimum share beside tokens that are due.
        has_minimum = any(lane.counters.starved for lane in self.scheduler._lanes)
        if limit is not None and plan.row_count > 1 and not has_minimum:
            assert plan.predicted_seconds <= float(limit) + 1e-9  # type: ignore[arg-type]

    def _check_shares(
        self, plan: StepPlan, wanting: list[Lane], before: dict[Lane, tuple[int, int]]
    ) -> None:
        """Nobody gets a row beyond the share of its class while another class waits for pages."""
        by_class = {lane.service.name: lane for lane in before}
        for admission in plan.admissions:
            lane = by_class[admission.request.service_class]
            pages, running = before[lane]
            tokens = len(admission.request.prompt) + len(admission.generated)
            needed = -(-tokens // self.scheduler.page_tokens)
            if pages + needed > self._page_limit(lane) and running:
                assert all(other is lane for other in wanting), "a share was exceeded"

    def _check_victims(self, plan: StepPlan, running: dict[str, Sequence], over: set[Lane]) -> None:
        for preemption in plan.preemptions:
            victim = running[preemption.request_id]
            if preemption.reason == "nobody could move otherwise" or victim.ghost:
                continue
            if over and preemption.reason == "out of pages":
                assert victim.home in over, "a class under its ceiling gave way"
            if preemption.reason.startswith("made room"):
                assert victim.preemptions <= MOST_PREEMPTIONS

    def _check_nobody_idles(
        self, plan: StepPlan, running: dict[str, Sequence], held_pages: int
    ) -> None:
        """Whoever has a row gets on while tokens, pages and time are left."""
        rows = plan.rows
        held_pages += sum(len(row.new_pages) for row in rows)
        is_bounded = (
            self.limits["max_step_seconds"] is not None
            or plan.token_count >= int(self.limits["token_budget"])  # type: ignore[call-overload]
            or held_pages >= self.scheduler.cache.pool.pages
            or plan.preemptions
        )
        if not is_bounded:
            assert running.keys() <= {row.request_id for row in rows}, "a row stood idle"

    def _page_limit(self, lane: Lane) -> float:
        return lane.service.kv_share * self.scheduler.cache.pool.pages

    def _collect(self) -> None:
        for name in list(self.live):
            answer = self.driver.answers.get(name)
            if answer is not None and answer.finish_reason is not None:
                assert answer == alone(self.live.pop(name), self.scheduler.limit_tokens)
                # A long run keeps nothing of those who have gone.
                del self.driver.answers[name]
