"""Bodies of functions: the operations of a graph, one after the other, and its scans."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from tpusim.export.cached_source import cache_source, keeps_cache
from tpusim.export.library_source import library_names, names_in
from tpusim.export.names import (
    check_distinct,
    function_name,
    local_name,
    quoted,
    spec,
    target_name,
    unsaid,
    value_name,
    weight_name,
)
from tpusim.export.operations import expression, names_residual, read_layout
from tpusim.export.routing import made_besides
from tpusim.export.served_weights import scale_of
from tpusim.export.step_context import StepContext
from tpusim.export.step_line import StepLine, assignment, indented, plain
from tpusim.export.weight_source import WeightSource, weight_source
from tpusim.graph import (
    COPY,
    CachedAttention,
    Einsum,
    Op,
    Pointwise,
    Scan,
    Tensor,
    TensorRole,
)

POLICIES = {"full": "", "minimal": "dots_with_no_batch_dims_saveable", "dots": "dots_saveable"}
"""JAX's checkpoint policy for each of the plan's; `full` needs none."""

CHECKPOINTS = "jax.checkpoint_policies"


@dataclass(slots=True)
class StepBodies:
    """The functions of a step, as they are written.

    weights: each weight once, in the order of use.
    caches: arrays of keys and values, of a step of a server.
    functions: those of scans over layers.
    staged: axes of the stages while the layers of a pipeline are written, as source.
    """

    context: StepContext
    weights: dict[tuple[str, str], WeightSource] = field(default_factory=dict)
    caches: list[WeightSource] = field(default_factory=list)
    functions: list[StepLine] = field(default_factory=list)
    staged: str = ""

    def lines(
        self, ops: Iterable[Op], group: str = "", own: frozenset[str] = frozenset()
    ) -> list[StepLine]:
        """Return the lines of operations.

        group: the scan that they are in.
        own: names of the weights of which each iteration of that scan has its own.
        """
        ops, made = tuple(ops), list[StepLine]()
        results = (tensor for op in ops for tensor in op.outputs)
        check_distinct(((value_name(tensor), tensor.name) for tensor in results), "results")
        for op in ops:
            if isinstance(op, Scan):
                made += self._scan(op)
                continue
            for tensor in op.inputs:
                if tensor.role is TensorRole.PARAM:
                    self._add_weight(tensor, group if tensor.name in own else "")
            if isinstance(op, Einsum) and (scale := scale_of(op)) is not None:
                self._add_weight(scale, group)
            if isinstance(op, CachedAttention):
                self.caches += cache_source(op, group, self.context)
            made += self._operation(op)
        return made

    def _add_weight(self, tensor: Tensor, group: str) -> None:
        made = weight_source(self.context, tensor, group, self.staged)
        known = self.weights.setdefault((group, made.name), made)
        check_distinct([(one.name, one.tensor) for one in (known, made)], "weights")

    def _operation(self, op: Op) -> list[StepLine]:
        """Return the assignment of an operation's results, each with its sharding."""
        context = self.context
        if isinstance(op, Pointwise) and op.function == COPY:
            return [
                line
                for given, made in zip(op.inputs, op.outputs, strict=True)
                for line in self._result(
                    made,
                    value_name(given),
                    op.name,
                    context.layouts[given.name] != context.layouts[made.name],
                    named=given.short in context.named,
                )
            ]
        value = expression(op, context)
        function = op.function.name if isinstance(op, Pointwise) and op.function else ""
        if function not in library_names() and value.startswith(f"{function}("):
            raise unsaid(op.name, f"the function {function}")
        besides = made_besides(op, context)
        if len(op.outputs) == 1 and not besides:
            return self._result(op.outputs[0], value, op.name, named=names_residual(op))
        names = [*(value_name(tensor) for tensor in op.outputs), *besides]
        lines = assignment(", ".join(names), value, op.name)
        for tensor in op.outputs:
            lines += self._result(tensor, value_name(tensor), op.name)
        return lines

    def _result(
        self, tensor: Tensor, value: str, op: str, constrained: bool = True, named: bool = False
    ) -> list[StepLine]:
        """Return the assignment of a result. named: its value has the name that saves it."""
        if constrained:
            value = f"shard({value}, {self.context.value_spec(tensor)})"
        if tensor.short in self.context.named and not named:
            value = f"checkpoint_name({value}, {quoted(tensor.short)})"
        return assignment(value_name(tensor), value, op)

    def _scan(self, op: Scan) -> list[StepLine]:
        if op.steps:
            return self._recurrence(op)
        if op.slices or op.stacks or not op.carries:
            return self._scan_over_parts(op)
        if len(op.carries) > 1 and (self.context.stages or self._saves_iterations()):
            raise unsaid(op.name, f"a pipeline that carries {len(op.carries)} tensors")
        carried = [tuple(map(value_name, each)) for each in op.carries]
        carried += _carried_cache(op)
        before, first, last, after = (", ".join(each) for each in zip(*carried, strict=True))
        own = frozenset(
            tensor.name
            for one in op.body
            for tensor in one.inputs
            if tensor.role is TensorRole.PARAM
        )
        body = self._layers(op, own)
        name = function_name(op.name.removesuffix("s"))
        saved = [
            StepLine(
                f"{value_name(given)} = checkpoint_name({value_name(given)}, {quoted(given.short)})"
            )
            for _, given, _, _ in op.carries
            if given.short in self.context.named or self._saves_iterations()
        ]
        shared = [value_name(tensor) for tensor in op.shared]
        shared += _given_to_all(self.context, body)
        several = len(carried) > 1
        left = f"({last})" if several else last
        self.functions += [
            *plain(f"\n\ndef {name}({', '.join([*shared, first])}, w):"),
            *indented([*saved, *body, StepLine(f"return {left}, None")]),
        ]
        if self.context.stages:
            return self._pipeline(op, name)
        each = "*x" if several else "x"
        given = ", ".join([*shared, each])
        layer = f"lambda x, w: {name}({given}, w)" if shared or several else name
        start, end = (f"({before})", f"({after})") if several else (before, after)
        loop = "lax.scan" if self.context.scans_layers else "unrolled"
        loop = "layers_with_caches" if keeps_cache(op) else loop
        call = f"{loop}({self._checkpointed(layer)}, {start}, w[{quoted(op.name)}])"
        return assignment(f"{end}, _", call, op.name)

    def _recurrence(self, op: Scan) -> list[StepLine]:
        """Return a scan over the steps of a sequence, which carries states and stacks some."""
        before, entered, left, _ = (
            ", ".join(map(value_name, each)) for each in zip(*op.carries, strict=True)
        )
        parts, wholes = (
            ", ".join(map(value_name, each))
            for each in ((part for _, part in op.slices), (inside for inside, _ in op.stacks))
        )
        given = [
            f"jnp.moveaxis({value_name(whole)}, {whole.dims.index(op.steps)}, 0)"
            for whole, _ in op.slices
        ]
        name, outside = local_name(op.name), self.context
        saved = _sums(op)
        self.context = replace(outside, named=outside.named | saved)
        body, self.context = self.lines(op.body), outside
        start = (f"{entered}, = states", f"{parts}, = parts")
        end = f"return ({left},), ({wholes},)"
        names = ", ".join(map(quoted, sorted(saved)))
        policy = f"{CHECKPOINTS}.save_only_these_names({names})"
        step = f"jax.checkpoint({name}, prevent_cse=False, policy={policy})"
        call = f"lax.scan({step}, ({before},), ({', '.join(given)},))"
        lines = _local_function(f"{name}(states, parts)", start, body, end)
        lines += assignment(f"_, {name}_steps", call, op.name)
        for number, (_, whole) in enumerate(op.stacks):
            moved = f"jnp.moveaxis({name}_steps[{number}], 0, {whole.dims.index(op.steps)})"
            lines += self._result(whole, moved, op.name)
        return lines

    def _layers(self, op: Scan, own: frozenset[str]) -> list[StepLine]:
        """Return the body of a scan over layers, of one microbatch."""
        outside = self.context
        self.context, self.staged = replace(outside, stages=""), outside.stages
        body = self.lines(op.body, op.name, own)
        self.context, self.staged = outside, ""
        return body

    def _pipeline(self, op: Scan, layer: str) -> list[StepLine]:
        """Return the layers as chunks of stages that work on a microbatch each."""
        ((before, first, _, after),) = op.carries
        self._check_alike(op)
        given = value_name(first)
        self.functions += [
            *plain(f"\n\ndef chunk({given}, w):"),
            *indented(
                [
                    StepLine('"""Run the layers of a stage in one of its rounds."""'),
                    *assignment(
                        f"{given}, _", f"lax.scan({self._checkpointed(layer)}, {given}, w)", ""
                    ),
                    StepLine(f"return {given}"),
                ]
            ),
        ]
        weights = f"w[{quoted(op.name)}], SPECS[{quoted(op.name)}]"
        spec = self.context.value_spec(before)
        policy = f", policy={self._of_iteration(first.short)}" if self._has_rounds() else ""
        call = f"circular_pipeline(chunk, {value_name(before)}, {weights}, {spec}{policy})"
        return assignment(value_name(after), call, op.name)

    def _check_alike(self, op: Scan) -> None:
        """Raise PlanError for layers of several kinds, or a pattern that stages cut through."""
        plan, graph = self.context.plan, self.context.graph
        parts = plan.stages * plan.pipeline.virtual_stages
        kinds = [one for one in graph.ops if isinstance(one, Scan) and one.carries]
        if len(kinds) > 1:
            raise unsaid(op.name, "one of several kinds of layers in a pipeline")
        if op.trips % parts:
            raise unsaid(op.name, f"a scan over layers that {parts} equal stages cannot share")

    def _has_rounds(self) -> bool:
        return self.context.plan.pipeline.virtual_stages > 1

    def _saves_iterations(self) -> bool:
        """Return True if the inputs of layers are saved by name."""
        plan = self.context.plan
        return plan.stages > 1 and self._has_rounds() and plan.remat.policy != "none"

    def _of_iteration(self, layer_input: str) -> str:
        """Return the policy of a whole iteration: as of its layers, and their inputs."""
        if self.context.plan.remat.policy == "none":
            return f'{CHECKPOINTS}.save_anything_except_these_names("chunk_weights")'
        return self._policy(layer_input)

    def _checkpointed(self, name: str) -> str:
        remat = self.context.plan.remat
        if remat.policy == "none":
            return name
        policy = self._policy()
        barred = ", prevent_cse=False" if self.context.scans_layers else ""
        given = f", policy={policy}" if policy else ""
        return f"jax.checkpoint({name}{barred}{given})"

    def _policy(self, *more: str) -> str:
        """Return JAX's policy as source, empty for none. more: names that it saves besides."""
        remat, of = self.context.plan.remat, CHECKPOINTS
        known = "" if self.context.plan.dtypes.quantised else POLICIES[remat.policy]
        base = known and f"{of}.{known}"
        saved = sorted((self.context.named - set(remat.offload)) | set(more))
        names = ", ".join(map(quoted, saved))
        if remat.offload:
            moved = ", ".join(map(quoted, remat.offload))
            return (
                f"{of}.save_and_offload_only_these_names(names_which_can_be_saved=[{names}], "
                f'names_which_can_be_offloaded=[{moved}], offload_src="device", '
                'offload_dst="pinned_host")'
            )
        by_name = names and f"{of}.save_only_these_names({names})"
        if base and by_name:
            return f"{of}.save_from_both_policies({base}, {by_name})"
        return base or by_name

    def _scan_over_parts(self, op: Scan) -> list[StepLine]:
        """Return a scan whose iterations have parts of tensors: the loss in tiles."""
        if op.carries or len(op.stacks) != 1:
            raise unsaid(op.name, "a scan that carries tensors beside parts of others")
        ((inside, outside),) = op.stacks
        names = [_read_name(part) for _, part in op.slices]
        given = [self._tiles(whole, part) for whole, part in op.slices]
        body, name = self.lines(op.body), local_name(op.name)
        start, end = f"{', '.join(names)} = parts", f"return None, {value_name(inside)}"
        call = f"lax.scan(jax.checkpoint({name}, prevent_cse=False), None, ({', '.join(given)}))"
        return [
            *([] if op.apart else self._gathered_before(op)),
            *_local_function(f"{name}(_, parts)", (start,), body, end),
            *assignment(f"_, {value_name(outside)}", call, op.name),
        ]

    def _gathered_before(self, op: Scan) -> list[StepLine]:
        """Return the lines that gather the weights of all iterations before the scan."""
        return [
            StepLine(f"w = w | {{{key}: shard(w[{key}], {spec(layout)})}}", one.name)
            for one in op.body
            if isinstance(one, Einsum) and one.rhs.role is TensorRole.PARAM
            for key in (quoted(weight_name(one.rhs)),)
            if (layout := read_layout(one, self.context)) != self.context.layouts[one.rhs.name]
        ]

    def _tiles(self, whole: Tensor, part: Tensor) -> str:
        """Return a tensor cut into the parts of the iterations."""
        sizes, mesh = self.context.graph.sizes, self.context.plan.mesh
        layout = self.context.layouts[whole.name]
        cuts = [
            f"({place}, {sizes[dim] // sizes[own]}, {prod(mesh[axis] for axis in axes)})"
            for place, (dim, own, axes) in enumerate(
                zip(whole.dims, part.dims, layout, strict=True)
            )
            if dim != own
        ]
        return f"tiles({', '.join([_read_name(whole), *cuts])})"


def cache_after(op: Scan) -> str:
    """Return the variable of the cache of layers after a step."""
    return f"kv_cache_of_{local_name(op.name)}"


def _carried_cache(op: Scan) -> list[tuple[str, ...]]:
    """Return the names of the cache before, in and after layers that keep one."""
    if not keeps_cache(op):
        return []
    return [(f"kv_cache[{quoted(op.name)}]", "kv_cache", "kv_cache", cache_after(op))]


def _given_to_all(context: StepContext, body: Iterable[StepLine]) -> list[str]:
    """Return what the layers of a step of a server read of its inputs."""
    if context.served is None:
        return []
    used = names_in("\n".join(map(str, body)))
    return [name for name in ("kv_lengths", "kv_positions", "kv_pages") if name in used]


def _local_function(
    head: str, start: Iterable[str], body: Iterable[StepLine], end: str
) -> list[StepLine]:
    """Return the body of a scan as a function within another."""
    inner = [*map(StepLine, start), *body, StepLine(end)]
    return [StepLine(""), StepLine(f"def {head}:"), *indented(inner), StepLine("")]


def _sums(op: Scan) -> frozenset[str]:
    """Return the short names of the sums of matmuls, which a recurrence saves for its gradient."""
    summed = [one for one in op.body if isinstance(one, Pointwise) and one.linear]
    terms = {tensor.name for one in summed for tensor in one.inputs}
    products = [t for one in op.body if isinstance(one, Einsum) for t in one.outputs]
    made = [*(t for one in summed for t in one.outputs), *products]
    return frozenset(tensor.short for tensor in made if tensor.name not in terms)


def _read_name(tensor: Tensor) -> str:
    """Return the variable of a tensor that the loss reads; of an input, it reads the targets."""
    return target_name(tensor) if tensor.role is TensorRole.INPUT else value_name(tensor)
