"""Buckets chosen from the sizes that really come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...errors import ArgumentError

__all__ = ["padded_work", "suggest_buckets"]


def suggest_buckets(sizes: Iterable[int] | Mapping[int, int], count: int) -> list[int]:
    """The buckets with which the least is computed in vain for these sizes.

    Each size is padded to the smallest bucket that holds it. The answer is exact: of all choices of
    ``count`` buckets none pads less in sum.

    Args:
        sizes: sizes as they came (each at least 1), or how often each came.
        count: how many buckets, at least 1. Fewer come back if there are fewer different sizes.

    Returns:
        The buckets in ascending order; the last is the largest size.

    Raises:
        ArgumentError: there are no sizes, one of them is no whole number from 1, or ``count`` is
            less than 1.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"suggest_buckets(count={count!r}): expected a whole number from 1.")
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise ArgumentError(
            f"suggest_buckets({sizes!r}): expected sizes as they came, or how often each came."
        )
    histogram = Counter(sizes)
    for size, times in histogram.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(f"suggest_buckets(): {size!r} is no size, a whole number from 1.")
        if not isinstance(times, int) or isinstance(times, bool) or times < 0:
            raise ArgumentError(
                f"suggest_buckets(): size {size} came {times!r} times; expected a whole number "
                "from 0."
            )
    found = sorted(size for size, times in histogram.items() if times)
    if not found:
        raise ArgumentError("suggest_buckets(): there are no sizes to choose buckets for.")
    calls, work = [0], [0]  # up to each size: calls, and elements that they bring
    for size in found:
        calls.append(calls[-1] + histogram[size])
        work.append(work[-1] + histogram[size] * size)

    def waste(first: int, last: int) -> int:
        """Padding of the sizes from one position to another, all padded to the last."""
        taken = calls[last + 1] - calls[first]
        return taken * found[last] - (work[last + 1] - work[first])

    # least[j]: for the sizes up to j with so many buckets, the last of which is size j. The best
    # place of the bucket before moves to the right with j, so each row is filled by halving.
    least = [waste(0, last) for last in range(len(found))]
    choices: list[list[int]] = []
    for used in range(1, min(count, len(found))):
        row = list(least)
        choice = [-1] * len(found)
        todo = [(used, len(found) - 1, used - 1, len(found) - 2)]
        while todo:
            low, high, left, right = todo.pop()
            if low > high:
                continue
            middle = (low + high) // 2
            row[middle], choice[middle] = min(
                (least[before] + waste(before + 1, middle), before)
                for before in range(left, min(middle - 1, right) + 1)
            )
            todo += [
                (low, middle - 1, left, choice[middle]),
                (middle + 1, high, choice[middle], right),
            ]
        least = row
        choices.append(choice)
    buckets = [len(found) - 1]
    for choice in reversed(choices):
        if choice[buckets[-1]] < 0:
            break
        buckets.append(choice[buckets[-1]])
    return [found[position] for position in reversed(buckets)]


def padded_work(sizes: Iterable[int] | Mapping[int, int], buckets: Iterable[int]) -> int:
    """How many elements are computed in vain when each size is padded to its bucket.

    Args:
        sizes: sizes as they came, or how often each came; those above all buckets are not padded.
        buckets: the buckets.
    """
    ascending = sorted(buckets)
    return sum(
        times * (next((b for b in ascending if b >= size), size) - size)
        for size, times in Counter(sizes).items()
    )
