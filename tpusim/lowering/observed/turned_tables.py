"""Tables whose shards have few columns: their words are in the lanes, whole and in parts."""

from collections.abc import Sequence

from tpusim.graph import Gather, Scatter
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.collective_choice import REDUCTIONS
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.observed.exchange_copies import copied
from tpusim.partition import CollectiveNode, ComputeNode, LocalShape, Purpose, is_across
from tpusim.program import LANES, CollectiveKind


def turn_tables(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Insert a copy after the gather of such a table, and before the reduction of its gradient.

    A shard of fewer columns than a register has lanes would be padded to them, so it has the words
    there, and so has what an all-gather makes of it. A lookup reads rows, and its gradient adds to
    rows: the whole table is copied into the order of rows, and its gradient back into that of the
    shards. An all-gather that is the all-reduce of a cleared buffer leaves rows as they are, and a
    loop over microbatches has its tables and their sums in rows, padded.
    """
    computes = [entry for entry in entries if isinstance(entry, ComputeNode)]
    looked_up = {key for one in computes if isinstance(one.op, Gather) for key in one.reads}
    added_up = {key for one in computes if isinstance(one.op, Scatter) for key in one.writes}

    def sides(collective: CollectiveNode, by_sum: bool) -> tuple[bool, bool]:
        gathers = collective.purpose is Purpose.WEIGHT and not by_sum
        source, made = collective.reads[0], collective.writes[0]
        before = collective.kind in REDUCTIONS and source in added_up
        after = gathers and made in looked_up
        shard = made if before else source
        few = (before or after) and not is_across(collective.axes)
        few = few and body.ask(_has_few_columns, body.buffers[shard].local)
        return few and before, few and after

    result: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, PlannedCollective):
            result.append(entry)
            continue
        by_sum = entry.algorithm == CollectiveKind.ALL_REDUCE
        turned = [sides(collective, by_sum) for collective in entry.collectives]
        moves = any(map(any, turned))
        result.extend(copied(entry, turned, "turn", body.buffers) if moves else (entry,))
    return result


def _has_few_columns(decisions: LoweringDecisions, shard: LocalShape) -> bool:
    columns = decisions.sizes.extent(shard.dims[-1], shard.layout[-1])
    return bool(columns < LANES) and not decisions.choices.repeated
