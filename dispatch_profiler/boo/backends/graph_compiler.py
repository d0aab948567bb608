"""`backend`: the function that `torch.compile` calls with each graph."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.backends.background import compiled_in_background
from dispatch_profiler.boo.backends.frozen_calls import without_weights
from dispatch_profiler.boo.backends.graph_choice import (
    ALONE,
    FUSED,
    Build,
    Compiled,
    Graph,
    GraphCandidate,
    GraphChoice,
)
from dispatch_profiler.boo.backends.graph_kernels import (
    Fallbacks,
    FusedGraph,
    SilentFallbacks,
    copied,
    distinct,
    fuse,
    return_owners,
    with_direct_calls,
    with_eager_strides,
)
from dispatch_profiler.boo.backends.handed_graphs import BackgroundSettings
from dispatch_profiler.boo.backends.inductor import (
    FROZEN,
    FrozenGraph,
    check_strides,
    decompositions_without,
    informed,
    prepare_inductor,
    wanted_strides,
)
from dispatch_profiler.boo.backends.known_graphs import GraphEntry, entry_of
from dispatch_profiler.boo.backends.lower_bounds import kernels_alone
from dispatch_profiler.boo.backends.measuring import Measure, in_turns
from dispatch_profiler.boo.backends.region_kernels import (
    RegionChoice,
    attention_choice,
    device_of,
    has_kernels,
)
from dispatch_profiler.boo.environment import (
    LOGGER,
    QUICK,
    Autotune,
    autotunes,
    compiles_in_background,
    configure_logging,
    freezes_weights,
    uses_backward_kernels,
)
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.execute.torch_gradients import keep_memory_formats
from dispatch_profiler.boo.fusion.folding import needs_no_compiler
from dispatch_profiler.boo.fusion.match.matching import operators_of_regions
from dispatch_profiler.boo.fusion.nodes import is_on_cpu
from dispatch_profiler.boo.fusion.plan.eager_strides import correct_strides, report_strides
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.schema import (
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
    GRADIENTS,
    MEASURED,
    FusionSchema,
)
from dispatch_profiler.boo.fusion.strides import let_views_copy
from dispatch_profiler.boo.fusion.traced_graphs import (
    GraphKind,
    added_gradients,
    boxed,
    compiled_by,
    has_bodies,
    results_for_callers,
    schema_of,
)
from dispatch_profiler.boo.kernels.uses import UsedKernel, summary_of
from dispatch_profiler.boo.progress import compiling, current
from dispatch_profiler.boo.rounds import Rounds, in_rounds, in_short_rounds
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import UsageError

_torch: Any = torch
_INDUCTOR = "inductor"
#: Our kernel may take this many times as long as torch: consecutive regions wait only once, and each change to torch's
#: threads and back takes time, so a region that is a little slower alone is not slower in a model. The second value is
#: for `autotune` True, which also measures whole graphs.
_SLOWER, _MUCH_SLOWER = 1.1, 1.5
#: Options of torch.compile that this backend takes, with alternative spellings -> fields of `Backend`.
_OPTIONS = {"autotune": "autotune", "freeze": "freeze", "freezing": "freeze", "background": "background"}
_LEFT = "all of it is left to torch; dispatch-profiler explain says why"
_STRICT = "background and strict cannot be combined: a call cannot raise the errors of another process"


@dataclass(frozen=True)
class Backend:
    """A backend of `torch.compile`. See `backend`."""

    nested: str | Callable[..., Any] | None
    schema: FusionSchema
    #: What is measured (see `backend`); None leaves it to the environment.
    autotune: Autotune | None = None
    strict: bool = False
    #: Whether weights are frozen; None leaves it to the environment.
    freeze: bool | None = None
    #: Whether kernels are compiled in another process; None leaves it to the environment.
    background: bool | None = None
    #: Times the candidates of `autotune`.
    measure: Rounds = in_rounds
    #: Times a region and torch.
    measure_region: Measure = in_turns
    #: Times a graph with and without our regions.
    measure_graph: Rounds = in_short_rounds
    #: Decisions about graphs in this process, by the names of their notes.
    _decisions: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    _fallbacks: Fallbacks = field(init=False, compare=False, repr=False)

    @property
    def __name__(self) -> str:
        """The backend's name in torch's messages."""
        return (
            "iree_boo" if self.nested is None else f"iree_boo_{getattr(self.nested, '__name__', self.nested)}"
        )

    def __post_init__(self) -> None:
        if not (self.nested is None or isinstance(self.nested, str) or callable(self.nested)):
            raise UsageError(f"nested_backend must be a name, a function or None, but got {self.nested!r}")
        if not isinstance(self.schema, FusionSchema):
            raise UsageError(
                f"fusion_schema must be a FusionSchema, but got {self.schema!r}",
                hint="see dispatch_profiler.boo.fusion.schema",
            )
        for name in ("autotune", "strict", "freeze", "background"):
            given = getattr(self, name)
            if given is not None or name == "strict":
                _check_option(name, name, given)
        if self.background and self.strict:
            raise UsageError(_STRICT, hint="leave out one of them")
        object.__setattr__(self, "_fallbacks", Fallbacks(self.strict))

    @property
    def runs_eagerly(self) -> bool:
        """Whether eager torch computes everything outside regions.

        If not, the backward recomputes cheap values (see `compiled_by`), which eager torch stores.
        """
        return self.nested is None

    @property
    def computes_gradients(self) -> bool:
        """Whether graphs of gradients may have regions."""
        return any(map(schema_of(GraphKind.BACKWARD, self.schema).rule_for, (*GRADIENTS, MATRIX_PRODUCT)))

    def _known(self, entry: GraphEntry) -> Callable[..., Any] | None:
        """The function for a graph whose runs are in the cache; None if they are not, or cannot be used."""
        log = logging.getLogger(LOGGER)
        try:
            runs = entry.find()
            if runs is None or not has_kernels(runs.regions):
                return None
            log.debug("the runs of a graph are in the cache: the graph is not traced again")
            current().summarize(f"known graph: {summary_of(each.kernel for each in runs.regions)}")
            return runs.function(strict=self.strict)
        except Exception as error:  # tracing the graph reports the error
            log.debug("cached runs of a graph are not used: %s", error)
            return None

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """What AOTAutograd decomposes in training: with inductor, what it would, but for operators of regions."""
        return decompositions_without(operators_of_regions(self.schema)) if self.nested == _INDUCTOR else {}

    def calls_runs(self, options: Mapping[str, Any]) -> bool:
        """Whether a graph that consists of runs bypasses the nested backend, given the options for the nested backend.

        Inductor takes seconds to load, and would only call our kernels. With options, inductor is called nevertheless,
        since it checks them.
        """
        return self.nested is None or (self.nested == _INDUCTOR and not options)

    def region_choice(self, kind: GraphKind, autotune: Autotune = QUICK) -> RegionChoice | None:
        """The choice between our kernels and torch for each region of a graph; None if our kernels compute all regions.

        Each region is measured; in graphs with gradients, batch norms and other operators of torch are between regions.
        With `autotune` True, whole graphs are measured, too, and only regions that are much slower are left to torch.
        Gradients that only the environment asks for are always measured. With `strict`, nothing else is measured.
        Products of graphs with gradients are compiled only if a rule says that their kernels may be fast enough.
        """
        limits: dict[str, float] = {}
        if autotune and not self.strict:
            limits = dict.fromkeys(MEASURED, _SLOWER if autotune == QUICK else _MUCH_SLOWER)
        judged = frozenset[str]()
        if kind is GraphKind.BACKWARD:
            judged = frozenset(rule.root for rule in added_gradients(self.schema))
            limits |= dict.fromkeys(judged, 1.0)
        if not limits:
            return None
        chooses_kernels = bool(autotune) and not self.strict
        optional = frozenset((MATRIX_PRODUCT,)) if self._tries_products(kind, autotune) else frozenset[str]()
        if kind is not GraphKind.INFERENCE:
            judged |= optional
        apart = kind is not GraphKind.INFERENCE and autotune is not True
        return RegionChoice(limits, self.measure_region, chooses_kernels, optional, judged, apart)

    def schema_for(self, kind: GraphKind, graph: Any, autotune: Autotune = QUICK) -> FusionSchema:
        """The rules for a graph of this kind. With `quick`, products are tried on the CPU, since they are measured.

        In a backward, where they are gradients, only if the environment asks for gradients by our kernels.
        """
        schema = schema_of(kind, self.schema)
        if self._tries_products(kind, autotune) and is_on_cpu(graph):
            return schema.with_rules(
                filter(None, [BOO_FUSIONS_WITH_MATRIX_PRODUCTS.rule_for(MATRIX_PRODUCT)])
            )
        return schema

    def _tries_products(self, kind: GraphKind, autotune: Autotune) -> bool:
        """Whether products may be measured that the schema has no rule for: unless the user has chosen the schema."""
        is_usual = self.schema == DEFAULT_SUPPORTED_BOO_FUSIONS
        is_asked_for = kind is not GraphKind.BACKWARD or uses_backward_kernels()
        return autotune == QUICK and not self.strict and is_asked_for and is_usual

    def measures_graphs(self, kind: GraphKind, autotune: Autotune = QUICK) -> bool:
        """Whether whole graphs of a kind are measured.

        With `quick`, inference graphs are compared with eager torch or inductor. Forward graphs are compared only with
        eager torch, since inductor would compile each of them twice.
        """
        if autotune != QUICK:
            return autotune
        if self.strict:
            return False
        if kind is GraphKind.FORWARD:
            return self.runs_eagerly
        return kind is GraphKind.INFERENCE and self.nested in (None, _INDUCTOR)

    def __call__(self, module: Any, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Compile a graph module of Dynamo. `options` are `mode` and `options` of torch.compile, for the nested backend.

        The option `autotune` replaces `autotune` of the backend, and the modes `max-autotune...` mean True;
        `options={"freeze": True}` freezes weights; with `options={"background": True}`, another process compiles the
        kernels. Raises UsageError for other options without a nested backend, and the errors of the nested
        backend.
        """
        configure_logging()
        own, options = self._split(options)
        with compiling(self.__name__):
            function = self._function(module, example_inputs, own, options)
        if own["freeze"] and not torch.is_grad_enabled():
            return without_weights(function, module, example_inputs)
        return function

    def _function(
        self, module: Any, example_inputs: Sequence[Any], own: Mapping[str, Any], options: dict[str, Any]
    ) -> Callable[..., Any]:
        """The function that computes a graph module of Dynamo. `own` and `options` are the results of `_split`."""
        autotune, freeze = own["autotune"], bool(own["freeze"])
        if options and self.nested is None:
            given = ", ".join(f"{name}={option!r}" for name, option in options.items())
            raise UsageError(
                f"torch.compile(backend={self.__name__!r}) takes neither mode nor options, but got {given}",
                hint="use backend='iree_boo_inductor', which passes them on to inductor",
            )
        may_be_known = self.calls_runs(options) and autotune is not True
        # Measurements depend on them.
        threads = [torch.get_num_threads(), usable_threads()] if autotune else []
        content = (
            self.schema.text,
            str(self.runs_eagerly),
            f"frozen: {freeze}, autotune: {autotune}, strict: {self.strict}, threads: {threads}",
        )
        entry = entry_of(module, example_inputs, content) if may_be_known else None
        if entry is not None and (known := self._known(entry)) is not None:
            return known
        if own["background"]:
            settings = BackgroundSettings(self.nested, self.schema, autotune, freeze)
            started = compiled_in_background(settings, module, example_inputs, options, content)
            if started is not None:
                return started
        real_inputs = list(example_inputs) if autotune else []
        return GraphCompiler(self, options, autotune, freeze, real_inputs, entry).compiled(
            module, example_inputs
        )

    def freezes(self) -> bool:
        """Whether weights are frozen if the options of torch.compile do not say so."""
        return freezes_weights() if self.freeze is None else self.freeze

    def autotunes(self) -> Autotune:
        """The value of `autotune` if the options of torch.compile do not set it."""
        return autotunes() if self.autotune is None else self.autotune

    def _split(self, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of this backend by name, and the options for the nested backend. Raises UsageError."""
        given = dict(options.get("options") or {})
        is_thorough = str(options.get("mode")).startswith("max-autotune")
        own: dict[str, Any] = {
            "autotune": is_thorough or self.autotunes(),
            "freeze": self.freezes(),
            "background": compiles_in_background() if self.background is None else self.background,
        }
        for name in (each for each in _OPTIONS if each in given):
            own[_OPTIONS[name]] = _check_option(_OPTIONS[name], f"the option {name}", given.pop(name))
        if own["background"] and self.strict:
            raise UsageError(_STRICT, hint="leave out one of them")
        left = {name: option for name, option in options.items() if name != "options"}
        return own, {**left, "options": given} if given else left


def _check_option(name: str, label: str, given: Any) -> Any:
    """`given`, if it is a value of the field `name` of `Backend`. Raises UsageError, whose message begins with `label`."""
    if isinstance(given, bool) or (name == "autotune" and isinstance(given, str) and given == QUICK):
        return given
    others = "'quick', True or False" if name == "autotune" else "True or False"
    raise UsageError(f"{label} must be {others}, but got {given!r}")


@dataclass
class GraphCompiler:
    """Compiles the graphs that AOTAutograd makes from one graph of Dynamo."""

    backend: Backend
    options: dict[str, Any]
    autotune: Autotune
    freeze: bool
    #: The inputs of Dynamo's graph, while its forward or inference graph is compiled.
    real_inputs: list[Any]
    #: The place of the graph in the cache; None for graphs that cannot be cached, such as graphs with gradients.
    entry: GraphEntry | None = None
    #: The runs that compute all of Dynamo's graph, once they are in the cache.
    runs: RunGraph | None = None
    #: Whether eager torch computes all of Dynamo's graph and its gradients.
    is_left_to_torch: bool = False
    #: Whether our kernels compute all of an inference graph for inductor.
    leaves_nothing: bool = False
    #: Called with the kind of each graph, and with the graph of runs and operators that computes it: None if the nested
    #: backend computes all of it. AOTAutograd waits meanwhile.
    on_chosen: Callable[[GraphKind, Any | None], None] | None = None
    #: Whether regions lack a kernel that another attempt may provide.
    has_failures: bool = False
    #: For `on_chosen`: the graphs with runs by the names of their candidates, and the last one that was made.
    _graphs: dict[str, Any] = field(default_factory=dict)
    #: For the summary: the kernels of each candidate, and the number of regions that it leaves to torch.
    _found: dict[str, tuple[list[UsedKernel], int]] = field(default_factory=dict)
    _last_graph: Any = None

    def compiled(self, module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The function that computes a graph module of Dynamo. Raises the errors of the nested backend."""
        try:
            compiled = compiled_by(
                self,
                module,
                example_inputs,
                saves_memory=not self.backend.runs_eagerly,
                freezes=self.freeze,
                decompositions=self.backend.decompositions,
                is_ours=attention_choice(measures=bool(self.autotune) and not self.backend.strict),
            )
        finally:
            self.real_inputs.clear()  # the graph of the backward is compiled much later
        # Bypasses AOTAutograd, whose work in each call takes longer than some graphs.
        if self.is_left_to_torch and not has_bodies(module.graph):
            function: Callable[..., Any] = module.forward
            return function
        return compiled if self.runs is None else self.runs.function(strict=self.backend.strict)

    @cached_property
    def graph_choice(self) -> GraphChoice:
        """The choice between candidates for whole graphs."""
        backend = self.backend
        name = backend.__name__.removeprefix("iree_boo").removeprefix("_") or "eager"
        if callable(backend.nested):  # functions of other modules may have the same name
            nested: Any = backend.nested
            name = f"{getattr(nested, '__module__', '')}.{getattr(nested, '__qualname__', nested)}"
        setting = f"{name} {sorted(self.options.items(), key=str)}" if self.options else name
        setting = f"{setting}, frozen" if self.freeze else setting
        known, report = backend._decisions, backend._fallbacks.report
        if self.autotune is True:
            return GraphChoice(setting, backend.measure, known, report)
        return GraphChoice(f"{setting}, guarded", backend.measure_graph, known, report, is_guard=True)

    def __call__(self, kind: GraphKind, module: Any, example_inputs: Sequence[Any]) -> Compiled:
        """The function that computes one of the graphs."""
        with compiling(self.backend.__name__) as progress:
            self._found.clear()
            name, function = self._chosen(kind, module, example_inputs)
            progress.summarize(f"{kind.value} graph: {self._summary(name)}")
        return function

    def _summary(self, name: str) -> str:
        """What computes a graph with the candidate `name`."""
        if name in self._found:
            return summary_of(*self._found[name])
        left = [left for kernels, left in self._found.values() if not kernels]
        return summary_of((), left[0]) if left else _LEFT

    def _chosen(self, kind: GraphKind, module: Any, example_inputs: Sequence[Any]) -> tuple[str, Compiled]:
        """The function that computes one of the graphs, after the name of the chosen candidate."""
        if self.backend.runs_eagerly:
            module = _with_real_strides(kind, module, example_inputs)
        schema = self.backend.schema_for(kind, module.graph, self.autotune)
        choice = self.backend.region_choice(kind, self.autotune)
        given = self.backend._fallbacks

        def fused(candidate: GraphCandidate) -> Compiled | None:
            fallbacks = given if candidate.schema == schema else SilentFallbacks()
            function = self._fused(kind, copied(module), example_inputs, candidate, fallbacks, choice)
            if function is not None:
                self._graphs[candidate.name] = self._last_graph
            return function

        def bound() -> Callable[[], object] | None:
            return kernels_alone(module.graph) if self.leaves_nothing else None

        def alone() -> Compiled:
            return self._nested(kind, copied(module), example_inputs)

        build = Build(alone, fused, given.report, bound)
        if self.backend.measures_graphs(kind, self.autotune):
            name, function = self.graph_choice.compiled(
                Graph(module, example_inputs, self.real_inputs), schema, build
            )
        else:
            name, function = build(GraphCandidate(FUSED, schema))
        if self.runs is not None and (name == ALONE or self.entry is None or not self.entry.keep(self.runs)):
            self.runs = None
        if self.on_chosen is not None:
            self.on_chosen(kind, self._graphs.get(name))
        if self.backend.runs_eagerly and name == ALONE:
            self.is_left_to_torch = kind is GraphKind.INFERENCE or (
                kind is GraphKind.FORWARD and not self.backend.computes_gradients
            )
        return name, function

    def _fused(
        self,
        kind: GraphKind,
        module: Any,
        example_inputs: Sequence[Any],
        candidate: GraphCandidate,
        fallbacks: Fallbacks,
        choice: RegionChoice | None,
    ) -> Compiled | None:
        """The function that computes a graph with our kernels for its regions; None if it has no regions.

        Raises the errors of the nested backend.
        """
        try:
            fused = fuse(module, candidate.schema, fallbacks, choice, runs_eagerly=self.backend.runs_eagerly)
            self.has_failures |= fused.has_failures
            self._found[candidate.name] = [each.spec.kernel for each in fused.regions], len(fused.rejected)
            if not fused.regions:
                return None
            if self.on_chosen is not None:
                self._last_graph = copied(fused.module)
            if fused.runs is not None and self._leaves_nothing(fused):
                if not fused.rejected:
                    self.runs = fused.runs
                self.leaves_nothing = self.backend.nested == _INDUCTOR
                return boxed(fused.runs.function(strict=self.backend.strict))
            if self.backend.nested is None:
                return boxed(with_direct_calls(fused.module, strict=self.backend.strict).forward)
        except Exception as error:  # compilers, drivers and torch's operators raise their own kinds
            self.has_failures = True
            fallbacks.report("a graph is not fused", error)
            return None
        return self._nested(kind, fused.module, example_inputs)

    def _leaves_nothing(self, fused: FusedGraph) -> bool:
        """Whether nothing is left to the nested backend. On a GPU, inductor may record a CUDA graph."""
        is_local = device_of(fused.regions[0]).is_local
        return self.backend.calls_runs(self.options) and (is_local or self.backend.nested is None)

    def _nested(self, kind: GraphKind, module: Any, example_inputs: Sequence[Any]) -> Compiled:
        if self.backend.nested is None:
            return boxed(module.forward)
        # AOTAutograd makes the views of a forward graph itself, and asks for the strides of the graph's results.
        with_views = return_owners(module) if kind is GraphKind.INFERENCE else None
        # A backend's function takes separate arguments, even if it is marked as taking a list.
        compiled: Callable[..., Any] | None = None
        if self.freeze and self.backend.nested == _INDUCTOR:
            compiled = FrozenGraph.of(module, example_inputs, self.compile_nested)
        compiled = distinct(compiled or self.compile_nested(module, example_inputs), module)
        if with_views:
            compiled = with_views(compiled)
        return boxed(with_eager_strides(compiled, module, results_for_callers(kind)))

    def compile_nested(self, module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.registry import lookup_backend

        current().phase(f"{self.backend.nested} compiles what is left to it")
        nested, options = self.backend.nested, self.options
        if nested == _INDUCTOR:
            keep_memory_formats(module.graph)
        let_views_copy(module)
        if nested == _INDUCTOR and module.meta.get(FROZEN) and needs_no_compiler(module.graph):
            direct: Callable[..., Any] = with_direct_calls(module, strict=self.backend.strict).forward
            return direct
        if nested == _INDUCTOR:
            prepare_inductor(module)
        compiler: Any = lookup_backend(nested) if isinstance(nested, str) else nested
        if nested == _INDUCTOR and (options or module.meta.get(FROZEN)):
            # Like torch.compile with inductor, which also checks the options.
            given = (options.get("options") or {}) | ({"freezing": True} if module.meta.get(FROZEN) else {})
            compiler = _torch._TorchCompileInductorWrapper(options.get("mode"), given, False)
            options = {}
        if nested == _INDUCTOR:
            compiler = informed(compiler, module, example_inputs)
        context = _torch._guards.TracingContext(_torch._guards.detect_fake_mode(list(example_inputs)))
        context.output_strides = strides = wanted_strides()
        # Inductor records metrics in a context of Dynamo, which does not exist when the graph is compiled by a call.
        metrics = _torch._dynamo.utils.get_metrics_context()
        # Without AOTAutograd's mode, in which inductor would load constants from its cache as fake tensors.
        with metrics, _torch._guards.tracing(context), torch.no_grad(), _disable_current_modes():
            compiled: Callable[..., Any] = compiler(module, list(example_inputs), **options)
        check_strides(strides, module)
        return compiled


def _with_real_strides(kind: GraphKind, module: Any, example_inputs: Sequence[Any]) -> Any:
    """A backward graph that reads its forward's results with the strides of eager torch, which the forward reports."""
    fake_mode = _torch._guards.detect_fake_mode(list(example_inputs))
    if fake_mode is None or kind is GraphKind.INFERENCE:
        return module
    if kind is GraphKind.FORWARD:
        report_strides(copied(module).graph, fake_mode)
        return module
    module = copied(module)
    correct_strides(module.graph, fake_mode, example_inputs)
    return module


def backend(
    nested_backend: str | Callable[..., Any] | None = None,
    fusion_schema: FusionSchema = DEFAULT_SUPPORTED_BOO_FUSIONS,
    autotune: Autotune | None = None,
    strict: bool = False,
    freeze: bool | None = None,
    background: bool | None = None,
) -> Backend:
    """A backend of `torch.compile` that computes regions of a model with kernels of this package.

    nested_backend: computes everything outside regions: the name of a backend, such as `inductor`, or a function; None
        for eager torch.
    fusion_schema: the rules that say which operators become regions.
    autotune: with `quick`, up to four kernels of each region are compiled and timed once beside eager torch, and the
        fastest is used; each graph is timed with and without our regions. With True, each graph is also compiled with
        several sets of regions. With False, nothing is measured. The cache keeps times and decisions. None leaves it to
        `BOO_AUTOTUNE`, whose default is `quick`.
    strict: raise an error for operators that cannot be fused, instead of logging once that the nested backend computes
        them. No region is left to the nested backend for being slower.
    freeze: use snapshots of parameters and buffers where no gradients are needed, taken at the first call and kept until
        `dispatch_profiler.boo.refreeze`. None leaves it to `BOO_FREEZE`.
    background: let another process compile and measure the kernels of graphs without gradients, while the nested
        backend computes them. None leaves it to `BOO_BACKGROUND`.

    Raises UsageError for arguments of other types, and for `background` with `strict`.
    """
    return Backend(nested_backend, fusion_schema, autotune, strict, freeze, background)


@functools.cache
def warn_of_other_package() -> None:
    """Log, once, that another package has backends with the same names."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("iree-turbine")
        logging.getLogger(LOGGER).warning(
            "iree-turbine also has backends called iree_boo and iree_boo_inductor; this backend is dispatch_profiler's, "
            "which dispatch_profiler_boo and dispatch_profiler_boo_inductor always name"
        )


def iree_boo(module: Any, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend `iree_boo`: our kernels compute regions, eager torch the rest."""
    warn_of_other_package()
    return _IREE_BOO(module, example_inputs, **options)


def iree_boo_inductor(module: Any, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend `iree_boo_inductor`: our kernels compute regions, inductor the rest."""
    warn_of_other_package()
    return _IREE_BOO_INDUCTOR(module, example_inputs, **options)


_IREE_BOO = backend()
_IREE_BOO_INDUCTOR = backend(nested_backend=_INDUCTOR)
