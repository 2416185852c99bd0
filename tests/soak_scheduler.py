"""Random loads on the scheduler for as many steps as asked; every promise is checked.

python tests/soak_scheduler.py [--steps 1000000] [--seed 0] [--first-round 0]

A round is one scheduler with limits of its own, some hundred steps of load, and the end of all its
requests. Each step is checked as in tests/property/test_schedule_classes_machine.py; the audit,
which reads everything, runs in some of them. A failure names its round, with which it comes again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))

from schedule_load import CheckedLoad, classes_of

ROUND_STEPS = 500
AUDIT_STEPS = 16
PREFIXES = ((), (1, 2, 1, 2), (5, 5, 5, 5, 5, 5), (1, 2, 3, 1, 2, 3, 1, 2, 3))
SHARES = ((0.3, 0.6, 0.9), (0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (0.1, 0.2, 0.3))
POLICIES = ("continuous", "continuous", "continuous", "dynamic", "static")


def limits_of(random: Random) -> dict[str, object]:
    """Settings of one round: tiny in most, so that everything is short of something."""
    is_large = random.random() < 0.2
    return {
        "pages": random.randint(30, 120) if is_large else random.randint(3, 16),
        "page_tokens": random.choice((1, 2, 4)),
        "token_budget": random.randint(16, 64) if is_large else random.randint(4, 16),
        "max_rows": random.randint(4, 16) if is_large else random.randint(1, 4),
        "max_context": random.choice((12, 40)),
        "classes": classes_of(
            random.choice(SHARES), random.choice((0.0, 0.01, 0.05)), random.choice((None, 6))
        ),
        "max_step_seconds": random.choice((None, 0.001, 0.006, 0.02)),
        "starvation_seconds": random.choice((0.02, 0.2)),
        "batching": random.choice(POLICIES),
        "static_padding": random.random() < 0.5,
        "slab_pages": random.choice((1, 4)),
        "shares_prefixes": random.random() < 0.8,
        "keeps_pages": random.random() < 0.8,
        "is_contiguous": random.random() < 0.15,
    }


def arrive(load: CheckedLoad, random: Random) -> None:
    """One request, some of whose prompt others have too."""
    tail = tuple(random.randrange(4) for _ in range(random.randint(1, 8)))
    load.arrive(
        random.choice(PREFIXES) + tail,
        {
            "max_new_tokens": random.randint(0, 8),
            "seed": random.randrange(3),
            "stop_ids": random.sample(range(11), random.choice((0, 0, 2))),
            "service_class": random.choice(("fast", "standard", "bulk")),
            "tenant": random.choice("ab"),
            "salt": random.choice((b"", b"", b"tenant")),
            "prompt_logprobs": random.choice((None, None, None, 0)),
        },
    )


def run_round(random: Random, steps: int) -> int:
    """Load a scheduler for `steps` steps and see everybody off; how many steps there were."""
    load = CheckedLoad(limits_of(random))
    arrivals = random.choice((0.05, 0.2, 1.0))
    for step in range(steps):
        for _ in range(4):
            if random.random() < arrivals and len(load.live) < 60:
                arrive(load, random)
        if load.live and random.random() < 0.05:
            load.cancel(random.randrange(len(load.live)))
        if random.random() < 0.05:
            load.driver.wait(random.choice((0.005, 0.1)))
        load.step()
        if step % AUDIT_STEPS == 0:
            assert load.scheduler.audit() == []
    load.finish()
    assert load.scheduler.audit() == []
    return len(load.driver.plans)


def soak(steps: int, seed: int, first_round: int) -> int:
    """Rounds until there were `steps` steps; how many rounds.

    Raises:
        AssertionError: a promise was broken; its notes name the round.
    """
    done, number = 0, first_round
    with tqdm(total=steps, unit="step", file=sys.stderr) as progress:
        while done < steps:
            try:
                taken = run_round(Random(f"{seed}/{number}"), min(ROUND_STEPS, steps - done))
            except Exception as error:
                error.add_note(f"again with --seed {seed} --first-round {number}")
                raise
            number += 1
            done += taken
            progress.update(taken)
    return number - first_round


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first-round", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    rounds = soak(options.steps, options.seed, options.first_round)
    print(f"{options.steps} steps in {rounds} rounds: every promise was kept")


if __name__ == "__main__":
    main()
