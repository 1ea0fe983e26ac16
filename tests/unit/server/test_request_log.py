import numpy as np
import pytest

from tpusim.server.request_log import RequestLog
from tpusim.server.span_log import SpanLog, joined_spans
from tpusim.traffic import Requests


def no_requests() -> Requests:
    none = np.zeros(0, np.int64)
    return Requests(arrival_ps=none, prompt=none, output=none)


@pytest.mark.parametrize("gap", [0, 1, 255, 256, 1_000_003, 123_456_789_012, 2**62])
def test_gaps_are_kept_within_two_fifths_of_a_percent(gap: int) -> None:
    records = RequestLog(no_requests())
    records.gap(gap, 3)
    ((value, count),) = records.gaps.items()
    assert abs(value - gap) <= 0.004 * gap
    assert count == 3


def test_many_spans_are_merged_and_their_sums_kept() -> None:
    log = SpanLog(100)
    for step in range(10_000):
        log.add((10 * step, 10 * step + 8, 8, 2, 2 * 7, 5, step, step % 3))
    spans = joined_spans([log, SpanLog(100)])
    assert 25 <= len(spans.steps) <= 100
    assert spans.start_ps[0] == 0
    assert spans.end_ps[-1] == 99_998
    assert (spans.start_ps[1:] >= spans.end_ps[:-1]).all()
    assert spans.busy_ps.sum() == 80_000
    assert spans.steps.sum() == 20_000
    assert spans.prefills.sum() == 50_000
    assert (spans.decodes == 7).all()
    assert spans.pages[-1] == 9_999


def test_no_requests_are_served_at_once() -> None:
    served = RequestLog(no_requests()).served([SpanLog(10)])
    assert len(served.output) == len(served.spans.steps) == served.gaps[0].size == 0
