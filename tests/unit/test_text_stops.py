"""Stop strings, however the text is divided."""

from __future__ import annotations

import pytest

from octavo.text.stops import StopSearch


def run(
    stops: list[str], pieces: list[str], *, include_stop: bool = False
) -> tuple[str, str | None]:
    search = StopSearch(stops, include_stop=include_stop)
    sent = ""
    for piece in pieces:
        text, stop = search.push(piece)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + search.flush(), None


@pytest.mark.parametrize("pieces", [["ab STOP cd"], ["ab ST", "OP cd"], list("ab STOP cd")])
def test_cut_exactly_before_the_stop(pieces: list[str]) -> None:
    assert run(["STOP"], pieces) == ("ab ", "STOP")
    assert run(["STOP"], pieces, include_stop=True) == ("ab STOP", "STOP")


@pytest.mark.parametrize("pieces", [["abcd"], list("abcd"), ["ab", "cd"]])
def test_the_first_complete_match_wins_and_the_longest_of_equals(pieces: list[str]) -> None:
    assert run(["abcd", "bc"], pieces) == ("a", "bc")
    assert run(["bc", "abc"], pieces) == ("", "abc")


def test_only_a_possible_beginning_is_held_back() -> None:
    search = StopSearch(["\n\nUser:"])
    assert search.push("line\n") == ("line", None)
    assert search.push("\nUs") == ("", None)
    assert search.push("e the") == ("\n\nUse the", None)
    assert search.push("\n\n\n") == ("\n", None)
    assert search.flush() == "\n\n"
    assert search.flush() == ""


def test_a_beginning_inside_a_broken_match_still_counts() -> None:
    assert run(["aab"], list("aaab")) == ("a", "aab")
    assert run(["abab!"], list("ababab!")) == ("ab", "abab!")


def test_nothing_is_sent_after_a_match() -> None:
    search = StopSearch(["x"])
    assert search.push("axb") == ("a", "x")
    assert search.push("more") == ("", "x")
    assert search.flush() == ""


def test_without_stop_strings_all_passes_at_once() -> None:
    assert run([], ["a", "b"]) == ("ab", None)
    assert run([""], ["a"]) == ("a", None)
