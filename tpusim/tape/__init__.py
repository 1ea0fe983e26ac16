"""Recording of arithmetic: numbers that know how they were computed.

A function of numbers runs once on traced numbers and leaves a tape: its operations, and the
decisions that its path depended on. For other numbers the tape gives the same results bit by bit,
without running the function, as long as every decision comes out as it did.
"""

from tpusim.tape.builder import Builder, builder_of
from tpusim.tape.recorded_function import RecordedFunction, recorded_function
from tpusim.tape.tape import Answer, Question, Tape, tape_of
from tpusim.tape.traced import Traced, TracedHashError, call, uncached_if_traced, untraced

__all__ = [
    "Answer",
    "Builder",
    "Question",
    "RecordedFunction",
    "Tape",
    "Traced",
    "TracedHashError",
    "builder_of",
    "call",
    "recorded_function",
    "tape_of",
    "uncached_if_traced",
    "untraced",
]
