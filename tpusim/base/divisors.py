"""Divisors of a whole number near another number: what a message suggests instead."""


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
