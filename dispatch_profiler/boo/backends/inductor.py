"""Prepares inductor in the background, and passes it facts about graphs that it cannot see.

Even if all kernels are in its cache, inductor tests whether libraries with vector instructions can be loaded, reads all
of Triton (500 MB) for its cache keys, and preprocesses the headers of kernels. Each step takes 0.3 to 2 s, in other
processes or in C, while importing inductor takes about a second of Python. A program that compiles a model would wait
for one after the other, so here they run at the same time. Inductor remembers the results.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import importlib
import logging
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.backends.graph_kernels import copied, return_owners
from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.execute.torch_operator import is_run
from dispatch_profiler.boo.fusion.folding import fold_constants
from dispatch_profiler.boo.fusion.nodes import Node, frozen_inputs, static_inputs, value
from dispatch_profiler.boo.fusion.strides import let_views_copy
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, WeightSnapshot
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.private_files import read_private, write_private

# -- freezing --------------------------------------------------------------------------------------

# Makes frozen parameters constants in graphs for inductor, which folds and packs constants.
#
# Inductor can freeze only parameters of the compiled module. But here, parameters are inputs of the graph, and a compiled
# graph may be called with the parameters of several equal layers. So the graph is compiled in the first call with each
# set of parameters, and again after `refreeze`.


#: A graph module and its inputs -> the compiled function.
Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]
#: Key in `meta` of graph modules whose constants are frozen parameters.
FROZEN = "dispatch_profiler_frozen_constants"
_ADDRESS: Any = torch.Tensor.data_ptr


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A graph compiled with certain parameters, valid as long as their snapshots are the same."""

    function: Callable[..., Any]
    generation: object
    snapshots: Sequence[WeightSnapshot | None]
    #: They drop the function when the memory of a parameter is freed.
    references: Sequence[weakref.ref[Any]]


class FrozenGraph:
    """A graph whose frozen inputs are constants, except in regions."""

    def __init__(
        self, module: Any, example_inputs: Sequence[Any], places: Sequence[int], compile_: Compile
    ) -> None:
        self._module, self._example_inputs, self._compile = module, list(example_inputs), compile_
        self._places = places
        #: The places of the inputs that are still needed: all but those that become constants everywhere.
        self._left = [
            at
            for at, node in enumerate(_inputs(module.graph))
            if at not in places or any(is_run(user.target) for user in node.users)
        ]
        #: Addresses of the parameters -> compiled graph.
        self._compiled: dict[tuple[int, ...], _Compiled] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, module: Any, example_inputs: Sequence[Any], compile_: Compile) -> FrozenGraph | None:
        """The frozen graph of a graph module, compiled by `compile_`; None if the graph has nothing to freeze."""
        inputs = _inputs(module.graph)
        places = [at for at in frozen_inputs(module.graph) if _users(inputs[at])]
        return cls(module, example_inputs, places, compile_) if places else None

    def __call__(self, *inputs: Any) -> Any:
        parameters = [inputs[at] for at in self._places]
        key = tuple(map(_ADDRESS, parameters))
        compiled = self._compiled.get(key)
        if compiled is None or compiled.generation is not SNAPSHOTS.generation:
            compiled = self._current(key, parameters)
        return compiled.function(*(inputs[at] for at in self._left))

    def _current(self, key: tuple[int, ...], parameters: Sequence[Tensor]) -> _Compiled:
        """The graph compiled with the current snapshots of these parameters."""
        with self._lock:
            generation = SNAPSHOTS.generation
            snapshots = [SNAPSHOTS.of(each, frozen=True) for each in parameters]
            before = self._compiled.get(key)
            if before is not None and all(
                one is not None and one is other
                for one, other in zip(snapshots, before.snapshots, strict=True)
            ):
                function = before.function
            else:
                module = self.with_constants([each.detach().clone() for each in parameters])
                with _disable_current_modes():  # torch watches a model's first call
                    fold_constants(module)
                    function = self._compile(module, [self._example_inputs[at] for at in self._left])
            drop = partial(_drop, weakref.ref(self), key)
            references = [weakref.ref(each.untyped_storage(), drop) for each in parameters]
            self._compiled[key] = _Compiled(function, generation, snapshots, references)
            return self._compiled[key]

    def with_constants(self, values: Sequence[Tensor]) -> Any:
        """The graph module with `values` in place of the frozen inputs, except in regions, which freeze theirs."""
        module: Any = copied(self._module)
        graph = module.graph
        inputs = _inputs(graph)
        for at, tensor in zip(self._places, values, strict=True):
            name = f"frozen_{at}"
            module.register_buffer(name, tensor)
            with graph.inserting_after(inputs[-1]):
                constant = graph.get_attr(name)
            constant.meta["val"] = inputs[at].meta.get("val")
            for user in _users(inputs[at]):
                user.replace_input_with(inputs[at], constant)
        for at in self._places:
            if not inputs[at].users:
                graph.erase_node(inputs[at])
        module.recompile()
        module.meta[FROZEN] = True
        return module


def _users(node: Node) -> list[Node]:
    """The nodes outside regions that read an input."""
    return [user for user in node.users if not is_run(user.target)]


def _inputs(graph: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _drop(graph: weakref.ref[FrozenGraph], key: tuple[int, ...], _: object) -> None:
    alive = graph()
    if alive is not None:
        alive._compiled.pop(key, None)


_torch: Any = torch


def prepare_inductor(module: Any) -> None:
    """Run inductor's slow first steps, once per process, while it is imported, if `module` computes on the CPU.

    Returns once the vector instructions are known. If two threads tested for them at the same time, they would change
    each other's compiler flags: kernels would be cached under flags that no other process uses.
    """
    tensors = (value(node) for node in module.graph.nodes)
    if any(tensor is not None and tensor.device.type == "cpu" for tensor in tensors):
        prepare_inductor_for_cpu()


def prepare_inductor_for_cpu() -> None:
    """See `prepare_inductor`."""
    asking = _start()
    importlib.import_module("torch._inductor.compile_fx")
    asking.join()


@cache
def _start() -> threading.Thread:
    """The thread that finds the vector instructions, and then starts another thread for the headers."""
    return _in_thread(_ask)


def _ask() -> None:
    _try("the key of Triton", _hash_triton)
    _try("the vector instructions", lambda: ask_for_vector_instructions(launch_settings().cache_folder))
    _in_thread(lambda: _try("the headers", _preprocess_headers))


def _in_thread(step: Callable[[], None]) -> threading.Thread:
    # In this thread's context, since inductor keeps some settings in context variables.
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(step,), name="preparing inductor", daemon=True)
    thread.start()
    return thread


def _try(what: str, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # inductor will try again, and report the error
        logging.getLogger(LOGGER).debug("%s, for inductor: %s", what, error)


def _hash_triton() -> None:
    """Start hashing Triton in another thread. Inductor's cache keys include the hash, even for the CPU."""
    from torch._inductor import codecache

    key: Any = codecache.triton_key
    key.prefetch()


def _preprocess_headers() -> None:
    """Preprocess the headers of kernels, if an earlier process compiled them: inductor compares the results.

    Inductor preprocesses headers when it loads a kernel, so it gets an empty kernel, which is not compiled.
    """
    from torch._inductor import codecache

    private: Any = codecache
    if Path(private._HEADER_DIR).is_dir():
        private.CppPythonBindingsCodeCache.load_async("", submit_fn=lambda compile_it: None)


def informed(compiler: Callable[..., Any], module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """`compiler`, which is inductor, extended by two facts that it and AOTAutograd cannot see behind this backend.

    Inductor learns which inputs are parameters: CUDA graphs read parameters in place, and copy other inputs in each
    call. Usually Dynamo tells it, but Dynamo's graph is another one. AOTAutograd learns the strides of the results of a
    forward graph from inductor, for the backward graph, which reads the results. Call this while the AOTAutograd that
    made `module` waits for the compiled function.
    """
    places = static_inputs(module.graph) if _uses_gpu(example_inputs) else []
    wanted = wanted_strides()
    if not places and wanted is None:
        return compiler
    if places:  # the keys of torch's caches include the module's meta
        module.meta["dispatch_profiler_static_inputs"] = tuple(places)
    config = getattr(compiler, "config", None)

    def compile_graph(module: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(graph: Any, graph_inputs: Sequence[Any], **given: Any) -> Any:
            if places and len(graph_inputs) == len(inputs):
                given["static_input_idxs"] = places
            compiled = compile_fx_inner(graph, graph_inputs, **given)
            if wanted is not None:  # inductor's own AOTAutograd has another list
                wanted[:] = _torch._guards.TracingContext.get().output_strides or ()
            return compiled

        return compile_fx(module, inputs, inner_compile=inner, config_patches=config)

    return compile_graph


def decompositions_without(operators: Container[Any]) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions of all but these operators.

    Inductor would decompose operators of a backward too late: AOTAutograd decides before what the forward stores for it,
    and what it computes again.
    """
    importlib.import_module("torch._inductor.compile_fx")  # which the decompositions need, but do not import
    from torch._inductor.decomposition import select_decomp_table

    return {name: each for name, each in select_decomp_table().items() if name not in operators}


def wanted_strides() -> list[Any] | None:
    """The list from which AOTAutograd reads the strides of the current graph's results; None if it needs no strides.

    Graphs from inductor's caches also report their strides to this list, in the tracing context.
    """
    context = _torch._guards.TracingContext.try_get()
    strides: list[Any] | None = getattr(context, "output_strides", None)
    return strides


def check_strides(strides: list[Any] | None, module: Any) -> None:
    """Empty `strides`, the list of `wanted_strides`, unless it has an entry for each result of `module`."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    if strides and len(strides) != len(output.args[0]):
        strides.clear()


def _uses_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in inputs)


# -- compiled in another process -------------------------------------------------------------------

# Inductor keeps compiled graphs in its cache, under keys that follow from the graph. A process that knows the key loads the
# graph without tracing it.


def artifact_key(module: Any) -> str | None:
    """Compile `module`, a graph of AOTAutograd, by inductor. Returns its key in inductor's cache, for `load_artifact`.

    Returns None if this version of torch cannot load a graph by its key, or if results of the graph are views. Call this
    while AOTAutograd waits for the compiled graph. Raises the errors of inductor.
    """
    module = copied(module)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    if not _loads_artifacts() or len(set(output.args[0])) < len(output.args[0]) or return_owners(module):
        return None
    let_views_copy(module)
    prepare_inductor(module)
    from torch._inductor import standalone_compile

    compile_module: Any = standalone_compile
    inputs = [value(node) for node in _inputs(module.graph)]
    metrics = _torch._dynamo.utils.get_metrics_context()
    with metrics, torch.no_grad():
        artifact = compile_module(module, inputs, dynamic_shapes="from_tracing_context")
    keys: list[str] = artifact._artifacts[1].aot_autograd_artifacts if artifact._artifacts else []
    return keys[0] if len(keys) == 1 else None


def _loads_artifacts() -> bool:
    """Whether this version of torch has what `load_artifact` needs, and settings that threads do not share."""
    from torch._inductor import config

    try:
        from torch._inductor.standalone_compile import CacheCompiledArtifact
    except ImportError:
        return False
    return hasattr(CacheCompiledArtifact, "_load_impl") and hasattr(config, "_hash_dirty_var")


def load_artifact(key: str) -> Callable[..., Any]:
    """The graph that `artifact_key` has compiled, perhaps in another process. Raises errors if it is not in the cache."""
    prepare_inductor_for_cpu()
    from torch._inductor.standalone_compile import CacheCompiledArtifact

    artifact: Any = CacheCompiledArtifact
    function: Callable[..., Any] = artifact._load_impl(contextlib.nullcontext(), key)
    return function


# -- vector instructions ---------------------------------------------------------------------------

# Which vector instructions inductor may use: asked once, and kept beside the kernels.
#
# Inductor compiles a library for each set of instructions that the CPU has, and starts processes that load it: 1 to 2 s of
# a core in every process that compiles. Only "all of them can be used" is kept, under everything that this depends on.


#: What compilers and the loader of libraries read.
_VARIABLES = (
    "PATH",
    "CC",
    "CXX",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GLIBC_TUNABLES",
)
_PREFIXES = ("LD_", "GCC_", "CONDA_", "PYTHON")
#: Far above the names of all instructions.
_LONGEST = 2**12


def ask_for_vector_instructions(folder: Path | None) -> None:
    """Let inductor know which instructions to use, from a note in `folder`; without a note, it finds out.

    Raises what inductor raises.
    """
    from torch._inductor import config, cpu_vec_isa

    names = _names(_supported())
    # In older versions of torch, all threads share settings, and are not to be changed even for a moment.
    settings: Any = config
    is_ours = hasattr(settings, "_hash_dirty_var") and settings.cpp.vec_isa_ok is None
    note = None if folder is None or not (names and is_ours) else folder / "inductor" / f"vectors-{_key()}"
    if note is not None and _read(note) == names:
        with settings.patch({"cpp.vec_isa_ok": True}):
            cpu_vec_isa.valid_vec_isa_list()
    elif _names(cpu_vec_isa.valid_vec_isa_list()) == names and note is not None:
        write_private(note, names)


def _supported() -> list[Any]:
    """The sets of vector instructions that the CPU has and inductor knows, whether or not they can be used."""
    from torch._inductor import cpu_vec_isa

    known = cpu_vec_isa.x86_isa_checker()
    return [
        each
        for each in cpu_vec_isa.supported_vec_isa_list
        if all(name in known for name in str(each).split())
    ]


def _names(instruction_sets: list[Any]) -> str:
    return ", ".join(map(str, instruction_sets))


def _read(note: Path) -> str | None:
    try:
        return read_private(note, _LONGEST).decode()
    except (UsageError, ValueError):
        return None


def _key() -> str:
    """Of all that decides what can be compiled and loaded: torch's files, the compiler, the system, settings."""
    from torch._inductor import config, cpp_builder
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = cpp_builder.get_cpp_compiler()
    variables = {
        name: text
        for name, text in sorted(os.environ.items())
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }
    files = sorted((Path(torch.__file__).parent / "lib").iterdir())
    settings: Any = config
    parts = (
        torch.__version__,
        _torch.version.git_version,
        [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files],
        sys.executable,
        sys.version,
        platform.platform(),
        _torch.cpu.get_capabilities(),
        compiler,
        cpp_builder.get_compiler_version_info(compiler),
        settings.get_hash(),
        cache_dir(),
        variables,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
