"""Divisors of a whole number, and those near another number: what a message suggests instead."""

from functools import cache
from math import isqrt


def divisor_from(number: int, least: int) -> int:
    """Return the smallest divisor of `number` of at least `least`; the number itself beyond it.

    >>> divisor_from(128256, 8), divisor_from(12, 5), divisor_from(12, 13)
    (8, 6, 12)
    """
    return next((n for n in range(least, number) if number % n == 0), number)


def divisor_up_to(number: int, most: int) -> int:
    """Return the largest divisor of `number` of at most `most`, which is at least 1.

    >>> divisor_up_to(12, 5), divisor_up_to(12, 13)
    (4, 12)
    """
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return (*low, *(number // n for n in reversed(low) if n * n != number))


@cache
def factored(number: int, most: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every way to write a number as an ordered product of factors up to these limits.

    >>> factored(4, (4, 2))
    [(2, 2), (4, 1)]
    """
    first, *others = most
    if not others:
        return [(number,)] if number <= first else []
    return [
        (size, *rest)
        for size in divisors(number)
        if size <= first
        for rest in factored(number // size, tuple(others))
    ]
