"""GSPMD: from a graph and a plan to a partitioned graph, whose sizes are still symbols."""

from tpusim.partition.body_builder import HEADS
from tpusim.partition.context import exchanged_by, sends_keys_round
from tpusim.partition.epilogues import unfused
from tpusim.partition.expert_load import buffers_of, loads
from tpusim.partition.graph_choices import kernel_copies, loss_parts
from tpusim.partition.gspmd import partition_graph, partition_parts
from tpusim.partition.halo import Edge, Halo
from tpusim.partition.late_reductions import ACCUMULATORS, late_reductions
from tpusim.partition.layout import Layout, LocalShape, across_slices, is_across, within_slice
from tpusim.partition.matrix_stack import MatrixStack, matrix_stack
from tpusim.partition.partitioned_graph import (
    STATE,
    Buffer,
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    StoredState,
    StoredWeight,
    body_nodes,
)
from tpusim.partition.propagate import layouts
from tpusim.partition.reshard import reshard
from tpusim.partition.rules import (
    ShardingRules,
    check_batch,
    distinct_drops,
    idle_rules,
    resolve_rules,
    rule_prefixes,
    weights_are_tiled,
)
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.update_layouts import WeightUpdates, update_layouts

__all__ = [
    "ACCUMULATORS",
    "DTYPE_BYTES",
    "HEADS",
    "STATE",
    "Buffer",
    "CollectiveNode",
    "ComputeNode",
    "Edge",
    "Halo",
    "Layout",
    "LocalShape",
    "LoopNode",
    "MatrixStack",
    "Node",
    "PartitionedGraph",
    "Purpose",
    "ShardingRules",
    "Sizes",
    "StoredState",
    "StoredWeight",
    "WeightUpdates",
    "across_slices",
    "body_nodes",
    "buffers_of",
    "check_batch",
    "distinct_drops",
    "exchanged_by",
    "idle_rules",
    "is_across",
    "kernel_copies",
    "late_reductions",
    "layouts",
    "loads",
    "loss_parts",
    "matrix_stack",
    "partition_graph",
    "partition_parts",
    "reshard",
    "resolve_rules",
    "rule_prefixes",
    "sends_keys_round",
    "unfused",
    "update_layouts",
    "weights_are_tiled",
    "within_slice",
]
