from __future__ import annotations

from random import Random

from octavo.schedule._steps import LeastSquares

COUNT = 5


def reference(
    theta: list[float], ridge: list[float], seen: list[tuple[list[float], float]]
) -> list[float]:
    """Two sweeps after each observation, which halves the weight of those before it."""
    theta, start = list(theta), list(theta)
    gram = [[0.0] * COUNT for _ in range(COUNT)]
    moments = [0.0] * COUNT
    for features, target in seen:
        for i in range(COUNT):
            gram[i] = [0.5 * gram[i][j] + features[i] * features[j] for j in range(COUNT)]
            moments[i] = 0.5 * moments[i] + features[i] * target
        for i in 2 * list(range(COUNT)):
            others = gram[i][0] * theta[0]
            for j in range(1, COUNT):
                others += gram[i][j] * theta[j]
            right = moments[i] + ridge[i] * start[i]
            best = (right - (others - gram[i][i] * theta[i])) / (gram[i][i] + ridge[i])
            theta[i] = max(best, 0.0)
    return theta


def test_the_fit_has_the_bits_of_its_definition() -> None:
    random = Random(0)
    theta = [random.random() for _ in range(COUNT)]
    ridge = [random.uniform(0.01, 1.0) for _ in range(COUNT)]
    fit = LeastSquares(theta, ridge, forgetting=0.5, sweeps=2)
    seen: list[tuple[list[float], float]] = []
    for _ in range(30):
        seen.append(([random.uniform(0, 3) for _ in range(COUNT)], random.uniform(0, 4)))
        fit.observe(*seen[-1])
        assert list(fit.theta) == reference(theta, ridge, seen)


def test_coefficients_never_fall_below_zero() -> None:
    fit = LeastSquares([1.0] * COUNT, [0.01] * COUNT, forgetting=0.9, sweeps=4)
    for place in 2 * list(range(COUNT)):
        fit.observe([float(each == place) for each in range(COUNT)], -1.0)
    assert list(fit.theta) == [0.0] * COUNT


def test_what_was_never_seen_stays_where_it_began() -> None:
    fit = LeastSquares([2.0, 3.0, 5.0, 7.0, 11.0], [1.0] * COUNT, forgetting=0.995, sweeps=4)
    for _ in range(2000):
        fit.observe([1.0, 0.0, 0.0, 0.0, 0.0], 4.0)
    assert abs(fit.theta[0] - 4.0) < 0.02
    assert fit.theta[1:] == (3.0, 5.0, 7.0, 11.0)
