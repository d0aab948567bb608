"""External kernels, compiled without a GPU: what is in the vmfb, and the verdicts with reasons."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gpu_helpers import BF16, F8, F16, I8, build, gpu_request, states
from pairwise import parametrize_pairwise

from dispatch_profiler.compiler import BuildError, BuildRequest, build_key
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.cuda import triton
from dispatch_profiler.compiler.cuda.triton import with_counters
from dispatch_profiler.compiler.ir_module import operations_in
from dispatch_profiler.compiler.passes import external_kernels
from dispatch_profiler.compiler.passes.external_kernels import insert_kernels
from dispatch_profiler.compiler.tree import CompileOptions, plan_tasks
from dispatch_profiler.configurations import (
    Default,
    Extern,
    ListedConfiguration,
    TritonRows,
    TritonTiles,
    load_configurations,
)
from dispatch_profiler.dispatches import Selection, Tree, load_manifest
from dispatch_profiler.errors import MissingDependency
from dispatch_profiler.generator import Choices, emit, plan_generation
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
)
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry

TILES = TritonTiles(tile=(64, 64, 32), warps=4)
TMA = replace(TILES, descriptors=True)
PRODUCT = Matmul(256, 128, 192, F16)
CONV = Conv2d(2, 10, 10, 32, 64, 3, 3, types=F16)
#: A kernel with nothing in it.
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry mine(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }
"""

needs_triton = pytest.mark.skipif(not triton.triton_version(), reason="Triton is not installed")


def own(path, **changes):
    values = {"workgroups": ("ceildiv(m, 128)", "n // 64"), "workgroup_size": (256,), "entry": "mine"}
    return Extern(label="mine", object=str(path), **{**values, **changes})


def code_of(configuration, operation):
    """The PTX of a kernel for sm_90."""
    return triton.compile_kernel(configuration.kernel(operation), 90).data


@functools.cache
def of_product():
    """What is built of a product."""
    return build("cuda:sm_90", PRODUCT, TILES)


@pytest.fixture
def ptx(tmp_path):
    path = tmp_path / "mine.ptx"
    path.write_text(PTX)
    return path


# -- Triton ----------------------------------------------------------------------------------------

COMPILED = {
    "matmul": (PRODUCT, [TILES, replace(TILES, persistent=3), replace(TILES, split_k=3)]),
    "matmul_tma": (PRODUCT, [TMA, replace(TMA, persistent=3), replace(TMA, split_k=3)]),
    "epilogue": (replace(PRODUCT, epilogue=Epilogue.parse("bias+gelu")), [TILES, replace(TILES, split_k=2)]),
    "steps": (
        replace(PRODUCT, epilogue=Epilogue.parse("scale_shift+residual+leaky_relu(0.2)+bias+gelu_tanh")),
        [TILES, TMA, replace(TILES, split_k=2)],
    ),
    "conv_steps": (
        replace(CONV, layout="nhwc_fhwc_nhwc", epilogue=Epilogue.parse("scale_shift+residual+relu")),
        [TILES],
    ),
    "nn_bf16": (Matmul(100, 60, 50, BF16, "n", "n"), [TILES]),
    "f32": (Matmul(256, 128, 192), [TILES, replace(TILES, precision="tf32x3")]),
    "f8": (Matmul(256, 128, 192, F8), [TILES]),
    "i8": (Matmul(256, 128, 192, I8), [TILES]),
    "batch": (BatchMatmul(3, 128, 64, 96, F16, "t", "n"), [TILES, TMA]),
    "conv": (CONV, [TILES]),
    "conv_fhwc": (replace(CONV, layout="nhwc_fhwc_nhwc"), [TILES, replace(TILES, l1=True)]),
    "input_backward": (replace(CONV, mode="input_backward", stride=(2, 1)), [TILES]),
    "weight_backward": (replace(CONV, mode="weight_backward"), [TILES, replace(TILES, split_k=3)]),
    "weight_backward_pointwise": (
        Conv2d(2, 16, 16, 64, 64, 1, 1, types=F16, layout="nhwc_fhwc_nhwc", mode="weight_backward"),
        [replace(TILES, split_k=4), replace(TMA, split_k=4)],
    ),
    "layer_norm": (LayerNorm(128, 768, "bf16"), [TritonRows(block=(1, 1024)), TritonRows(block=(2, 1024))]),
    "layer_norm_input_backward": (LayerNormInputBackward(128, 768, "f16"), [TritonRows(block=(2, 1024))]),
    "layer_norm_weight_backward": (LayerNormWeightBackward(128, 768), [TritonRows(block=(128, 16))]),
    "conv_nchw_groups": (replace(CONV, layout="nchw", groups=2, padding=(1, 1)), [TILES]),
}
#: Kernels of the same source as another: slow tests on both targets.
SECOND = ("nn_bf16", "f32", "conv", "weight_backward_pointwise", "conv_nchw_groups")


@pytest.mark.some(3)
@needs_triton
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=pytest.mark.slow if number % 2 == at or name in SECOND else ())
        for number, name in enumerate(COMPILED)
        for at, target in enumerate(("cuda:sm_80", "cuda:sm_90"))
    ],
)
def test_a_triton_kernel_is_in_both_vmfbs_as_ptx_of_its_architecture(name, target):
    """What the target cannot have is left out before anything is compiled."""
    operation, configurations = COMPILED[name]
    limits = parse_target(target).limits
    fitting = [c for c in configurations if c.invalid_reason(operation, limits) is None]
    if not fitting:
        assert (name, target) in (("matmul_tma", "cuda:sm_80"), ("f8", "cuda:sm_80"))
        return

    built = build(target, operation, *fitting)

    assert states(built) == ["compiled"] * len(fitting)
    arch = rb"\.target sm_90a" if target == "cuda:sm_90" else rb"\.target sm_80"
    for vmfb in (built.verify, built.profile):
        entries = re.findall(
            rb"\.visible \.entry (?:product|product_by_descriptors|convolution|weight_gradient|layer_norm\w*)\(",
            vmfb,
        )
        assert len(entries) == len(fitting)
        assert len(re.findall(arch, vmfb)) >= len(fitting)


@needs_triton
def test_hopper_gets_its_own_matrix_instructions_and_copies():
    """`wgmma` is what Triton makes of a product there; descriptors are fetched by the bulk copy engine."""
    built = build("cuda:sm_90", PRODUCT, TILES, TMA)
    assert built.verify.count(b"wgmma.mma_async") >= 2
    assert b"cp.async.bulk.tensor" in built.verify
    assert b"mma.sync" not in built.verify


@needs_triton
def test_joined_slices_count_in_memory_of_the_module_and_are_added_without_atomics():
    """Adding floating-point numbers atomically would give another result in every run."""
    joined = replace(TILES, split_k=2, joined=True)
    made = triton.compile_kernel(joined.kernel(PRODUCT), 90).data
    pointers = len(joined.launch(PRODUCT).scratch) + 3
    assert b".global .align 4 .b32 arrivals[" in made
    assert made.count(b".param .u64") == pointers
    assert set(re.findall(rb"\b(?:atom|red)\.\S+", made)) == {b"atom.global.gpu.acq_rel.add.u32"}
    assert b"ld.global.gpu.acquire.b32" in made
    assert build("cuda:sm_90", PRODUCT, joined).verify.count(b"arrivals[") == 1


def test_counters_need_a_kernel_that_loads_their_pointer():
    with pytest.raises(ValueError, match="the PTX of product does not load product_param_4"):
        with_counters(".address_size 64\n", "product", 4, 8)


@needs_triton
def test_windows_are_kept_in_the_l1_cache_where_the_configuration_says_so():
    """Copies of 16 bytes, asynchronously in both."""
    operation = replace(CONV, layout="nhwc_fhwc_nhwc", types=BF16)
    bypassing, keeping = (code_of(replace(TILES, l1=l1), operation) for l1 in (False, True))
    assert (b"cp.async.cg." in bypassing, b"cp.async.ca." in bypassing) == (True, False)
    assert (b"cp.async.cg." in keeping, b"cp.async.ca." in keeping) == (False, True)


@pytest.mark.some(2)
@needs_triton
@pytest.mark.parametrize(
    ("mode", "windows_only"),
    [(mode, only) for mode in ("forward", "input_backward") for only in (False, True)]
    + [("weight_backward", False)],
)
def test_windows_come_by_descriptors_and_are_multiplied_from_shared_memory(mode, windows_only):
    """In Triton 3.6, a left operand in registers (ldmatrix) may be overwritten by the next copy while it is read."""
    operation = replace(CONV, layout="nhwc_fhwc_nhwc", mode=mode, types=BF16)
    tiles = TritonTiles(
        tile=(64, 64, 64) if mode != "weight_backward" else (64, 32, 64), warps=4, descriptors=True
    )
    made = code_of(replace(tiles, windows_only=windows_only), operation)
    assert b"cp.async.bulk.tensor.4d" in made
    assert (b"cp.async.cg." in made) == (windows_only or mode == "weight_backward")
    assert b"ldmatrix" not in made[: made.index(b"wgmma.mma_async")]


@needs_triton
@pytest.mark.parametrize(
    ("mode", "descriptors"),
    [
        pytest.param(mode, descriptors, marks=pytest.mark.slow if descriptors == (number == 1) else ())
        for number, mode in enumerate(("forward", "input_backward", "weight_backward"))
        for descriptors in (False, True)
    ],
)
def test_slices_of_a_convolution_are_written_apart_so_that_results_are_the_same_in_every_run(
    mode, descriptors
):
    """Atomic additions would round in the order in which workgroups finish."""
    operation = replace(CONV, layout="nhwc_fhwc_nhwc", mode=mode, types=BF16)
    tiles = TritonTiles(tile=(64, 32, 32), warps=4, descriptors=descriptors, split_k=2)
    assert tiles.launch(operation).shape == (2, *operation.result.shape)
    made = code_of(tiles, operation)
    assert not re.search(rb"\n\s*(@\S+ )?(atom|red)\.", made)


def parts_of(values):
    """Three numbers of 8 bits for each, as `bf16x6` splits them."""
    found, rest = [], values
    for _ in range(3):
        found.append(rest.astype(ml_dtypes.bfloat16).astype(np.float32))
        rest = rest - found[-1]
    return [part.astype(np.float64) for part in found]


@pytest.mark.parametrize("exponent", [-110, -20, 0, 60])
def test_six_products_of_parts_of_8_bits_differ_from_a_product_by_less_than_2_to_the_minus_22(exponent):
    """The parts add up to the number, so only the three smallest products are missing."""
    rng = np.random.default_rng(5)
    x, y = rng.uniform(1, 4, (2, 10_000)).astype(np.float32)
    x = np.ldexp(x, exponent)
    a, b = parts_of(x), parts_of(y)
    exact = x.astype(np.float64) * y
    six = sum(a[i] * b[j] for i in range(3) for j in range(3) if i + j <= 2)
    assert np.array_equal(sum(a), x)
    assert np.array_equal(sum(b), y)
    assert np.all(np.abs(six - exact) <= 2.0**-22 * np.abs(exact))


def test_parts_of_8_bits_add_up_to_all_but_the_largest_and_smallest_numbers():
    """Above bf16's largest number the first part is infinite; below 2^-110 the last is too small for its bits."""
    with np.errstate(invalid="ignore", over="ignore"):
        assert sum(parts_of(np.float32([3.38e38])))[0] == np.float32(3.38e38)
        assert not np.isfinite(sum(parts_of(np.float32([3.4e38])))[0])
        small = np.float32([1.2345678e-40])
        assert sum(parts_of(small))[0] != small[0]


@needs_triton
def test_bf16x6_multiplies_six_pairs_of_parts_on_tensor_cores():
    """128 x 128 of two warp groups: two steps of 16 along k, and six products of each."""
    single = TritonTiles(tile=(128, 128, 32), precision="bf16x6")
    made = triton.compile_kernel(single.kernel(Matmul(256, 256, 256)), 90).data
    assert made.count(b"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16") == 2 * 6


@pytest.mark.slow
@needs_triton
def test_f32_is_not_rounded_to_tf32_unless_the_configuration_says_so():
    """`ieee` has no tensor-core instruction at all."""
    f32 = Matmul(256, 128, 192)
    assert b"tf32" not in code_of(TILES, f32)
    assert b"tf32" in code_of(replace(TILES, precision="tf32x3"), f32)


@pytest.mark.slow
@pytest.mark.works_on_ir
@needs_triton
@pytest.mark.parametrize(
    "configuration",
    [TILES, replace(TILES, split_k=3), pytest.param(TMA, marks=pytest.mark.slow)],
    ids=lambda c: c.name,
)
def test_the_profile_module_does_the_dispatch_again_and_again(configuration):
    """Seen in the command buffers: the compiler folds no repetition of a kernel that it cannot look into."""
    request = gpu_request("cuda:sm_90", PRODUCT, [configuration])
    kernels, _ = external_kernels.make_kernels(request.dispatches, request.gpu)
    phases = InProcess()
    source = phases.parse(request.source, request.flags)
    insert_kernels(source, kernels)
    commands = phases.advance(source, request.flags, stop="hal").commands()

    # The build fails if the profile module has not `repeat` times as many.
    assert commands == (2 if configuration.split_k > 1 else 1)
    built = IreeCompiler().build(replace(request, repeat=7))
    assert built.verify != built.profile


@pytest.mark.slow
@needs_triton
def test_the_ptx_names_no_file_of_this_machine():
    """Line tables would, and what is built here would differ from what is built elsewhere."""
    vmfb = of_product().verify
    assert b"triton_kernels.py" not in vmfb
    assert vmfb == build("cuda:sm_90", PRODUCT, TILES).verify


@needs_triton
def test_what_was_compiled_is_told_in_the_compilers_words():
    (outcome,) = of_product().outcomes.values()
    assert re.fullmatch(
        r"Triton [\d.]+, product for sm_90: \d+ B of shared memory, PTX 8\.6, \d+ tensor-core instructions",
        outcome.applied,
    )


PIPELINED = {
    "product": PRODUCT,
    "f32": Matmul(256, 128, 192),
    "nn": Matmul(256, 128, 192, F16, "n", "n"),
    "odd": Matmul(101, 67, 77, F16),
    "conv": CONV,
}


@pytest.mark.some(3)
@needs_triton
@parametrize_pairwise(
    ("target", "name", "tile", "stages", "tma"),
    [
        (target, name, tile, stages, tma)
        for target in ("cuda:sm_80", "cuda:sm_90")
        for name, operation in PIPELINED.items()
        for tile in ((64, 64, 32), (32, 64, 64))
        for stages in (2, 4)
        for tma in (False, True)
        if replace(TILES, tile=tile, stages=stages, descriptors=tma).invalid_reason(
            operation, parse_target(target).limits
        )
        is None
    ],
)
def test_no_pipeline_takes_less_shared_memory_than_the_rule_says(target, name, tile, stages, tma):
    """The rule refuses before compiling, so it may not refuse what would fit."""
    operation = PIPELINED[name]
    tiles = replace(TILES, tile=tile, stages=stages, descriptors=tma)
    capability = parse_target(target).limits.gpu.device_capability

    made = triton.compile_kernel(tiles.kernel(operation), capability)

    assert tiles.shared_bytes(operation) <= made.shared_bytes


@needs_triton
def test_a_kernel_that_takes_too_much_shared_memory_is_told_and_costs_no_other():
    """What the rule cannot know the compiled kernel says."""
    request = gpu_request("cuda:sm_90", PRODUCT, [TILES, replace(TILES, stages=1)])
    built = IreeCompiler().build(replace(request, gpu=replace(request.gpu, device_shared_bytes=20000)))

    outcomes = {name.removeprefix(PRODUCT.name): o.reason for name, o in built.outcomes.items()}
    assert outcomes == {
        "_triton_64x64x32_4w_1s_g8": "",
        "_triton_64x64x32_4w_3s_g8": "the kernel needs 24576 B of shared memory, but sm_90 has 20000: use fewer "
        "stages or a smaller tile",
    }


@pytest.mark.works_on_ir
def test_without_triton_each_is_not_compiled_with_the_line_that_installs_it(monkeypatch):
    """And may be tried again: nothing is wrong with the dispatch."""

    def missing():
        raise MissingDependency("Triton kernels need triton", hint="python -m pip install 'triton>=3.9'")

    monkeypatch.setattr(triton, "kernel_sources", missing)
    built = build("cuda:sm_90", PRODUCT, TILES, replace(TILES, stages=4))

    reason = "not compiled Triton kernels need triton: python -m pip install 'triton>=3.9'"
    assert states(built) == [reason] * 2
    assert all(outcome.is_transient for outcome in built.outcomes.values())
    assert built.verify == b""


def test_a_missing_triton_is_found_by_looking_not_by_importing(monkeypatch):
    triton.kernel_sources.cache_clear()
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="need triton"):
        triton.kernel_sources()


@needs_triton
def test_what_triton_refuses_is_a_reason_without_its_output(capfd):
    """`tl.dot` takes no k of 8; Triton would print pages."""
    source = replace(TILES, tile=(16, 16, 8)).kernel(PRODUCT)
    with pytest.raises(BuildError, match=r"^Triton: \w+: ") as caught:
        triton.compile_kernel(source, 90)
    assert len(caught.value.message) <= 300
    assert capfd.readouterr().out == ""


# -- objects of one's own ----------------------------------------------------------------------------


@pytest.mark.works_on_ir
def test_an_object_of_ones_own_is_launched_as_its_entry_says(ptx):
    """Its shared memory, its workgroups, and pointers behind that of the result."""
    mine = own(ptx, shared_memory=98304, spare_bindings=(64, 16))
    request = gpu_request("cuda:sm_90", PRODUCT, [mine])
    module = InProcess().parse(request.source, request.flags)
    (launch,) = [op for op in operations_in(module.operation) if op.name == "hal.dispatch.extern"]
    built = build("cuda:sm_90", PRODUCT, mine)

    assert states(built) == ["compiled"]
    assert PTX.strip().encode() in built.verify
    assert "[256 : index, 1 : index, 1 : index]" in str(launch.attributes["workgroup_size"])
    assert "tensor<64xi8>, tensor<16xi8>" in str(launch)
    assert re.search(
        r"constant 2 : index\s+%\w+ = arith.constant 2 : index\s+%\w+ = arith.constant 1", request.source
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"entry": "other"}, "the object has no kernel other; available: mine"),
        ({"shared_memory": 300000}, "extern_mine needs 300000 B of shared memory, but sm_90 has 232448"),
        ({"target_arch": "sm_100"}, "extern_mine is for sm_100, but the target is sm_90"),
        ({"workgroup_size": (1024, 2)}, "a workgroup of 1024x2 threads, but sm_90 allows 1024"),
        ({"workgroups": ("m // 512",)}, "0x1x1 workgroups, but a launch allows 1 to 2147483647x65535x65535"),
        ({"workgroups": ("q",)}, "workgroups of extern_mine cannot be computed for .*: no loop q; available: m, n, k"),
        ({"object": "nosuch.ptx"}, "no such file: nosuch.ptx"),
    ],
)  # fmt: skip
def test_what_an_object_cannot_have_is_a_verdict_with_its_reason(ptx, changes, reason):
    mine = own(changes.pop("object", ptx), **changes)
    invalid = mine.invalid_reason(PRODUCT, parse_target("cuda:sm_90").limits)

    said = invalid or states(build("cuda:sm_90", PRODUCT, mine))[0].removeprefix("not compiled ")

    assert re.fullmatch(reason, said)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_an_object_that_is_no_file_is_a_verdict(tmp_path, make):
    make(tmp_path / "x")
    mine = own(tmp_path / "x")
    assert states(build("cuda:sm_90", PRODUCT, mine)) == [f"not compiled no such file: {tmp_path / 'x'}"]
    assert build_key(gpu_request("cuda:sm_90", PRODUCT, [mine]), parse_target("cuda:sm_90"), IreeCompiler())


@pytest.mark.works_on_ir
def test_an_object_that_is_too_large_is_a_verdict(ptx):
    os.truncate(ptx, 2**28 + 1)
    (said,) = states(build("cuda:sm_90", PRODUCT, own(ptx)))
    assert said == f"not compiled cannot read {ptx}: it is larger than {2**28} bytes"


def test_the_path_of_an_object_is_as_seen_from_the_file_that_names_it(tmp_path, ptx, monkeypatch):
    listed = tmp_path / "mine.yaml"
    listed.write_text(
        "configurations:\n"
        "  - {extern: mine, object: mine.ptx, entry: mine, workgroups: ['ceildiv(m, 128)', n // 64], workgroup_size: [256]}\n"
    )
    (entry,) = load_configurations(listed)
    assert entry.configuration == own(ptx)


def test_another_content_of_the_object_is_another_build(tmp_path, ptx):
    """As another Triton would be, for kernels of ours."""

    def key():
        (task,) = plan_tasks(load_manifest(tree), IreeCompiler(), CompileOptions(Selection(("*_mine",))))
        return task.key

    tree = Tree(tmp_path)
    plan = plan_generation(
        Workload((WorkloadEntry(PRODUCT),)),
        parse_target("cuda:sm_90"),
        Choices([ListedConfiguration(own(ptx))]),
    )
    list(emit(plan, tree))
    before = key()
    ptx.write_text(PTX.replace("ret;", "ret; // other"))

    assert before != key()


def test_another_triton_is_another_build(tmp_path, monkeypatch):
    def keys():
        tasks = plan_tasks(load_manifest(tree), IreeCompiler(), CompileOptions())
        return {task.module: task.key for task in tasks}

    tree = Tree(tmp_path)
    plan = plan_generation(
        Workload((WorkloadEntry(PRODUCT),)), parse_target("cuda:sm_90"), Choices([ListedConfiguration(TILES)])
    )
    list(emit(plan, tree))
    monkeypatch.setattr("dispatch_profiler.compiler.request.triton_version", lambda: "1.0")
    before = keys()
    monkeypatch.setattr("dispatch_profiler.compiler.request.triton_version", lambda: "2.0")
    after = keys()

    assert before["triton"] != after["triton"]
    assert before[""] == after[""]


def test_kernels_from_outside_have_a_module_of_their_own(ptx):
    """One that the driver refuses takes its module along: IREE's own kernels go on."""
    assert (Default().module, TILES.module, own(ptx).module) == ("", "triton", "extern_mine")


@pytest.mark.works_on_ir
def test_a_launch_that_lost_its_object_is_not_applied():
    """The proof can fail: a module without the object is not called compiled."""
    request = gpu_request("cuda:sm_90", PRODUCT, [TILES])
    module = InProcess().advance(
        InProcess().parse(request.source, request.flags), request.flags, stop="executable-sources"
    )
    kernel = external_kernels.KernelBinary("product", b"x", 16, "missing")
    (outcome,) = external_kernels.verify_external_kernels(
        module, {request.dispatches[0].name: (kernel,)}
    ).values()
    assert outcome.state.value == "not applied"


def test_a_job_without_a_gpu_has_no_kernels():
    request = gpu_request("cuda:sm_90", PRODUCT, [TILES])
    assert external_kernels.make_kernels(request.dispatches, None) == ({}, {})
    assert isinstance(request, BuildRequest)


@pytest.mark.parametrize(
    ("epilogue", "reason"),
    [
        ("bias+relu", None),
        ("clamp(-1,1)", None),
        ("residual", "extern_mine has no step residual, only a bias and then one activation"),
        ("scale_shift+relu", "extern_mine has no step scale_shift, only a bias and then one activation"),
        ("gelu+tanh", "extern_mine has only a bias and then one activation, but the epilogue is gelu+tanh"),
    ],
)
def test_an_object_takes_a_bias_and_no_other_operand(ptx, epilogue, reason):
    operation = replace(PRODUCT, epilogue=Epilogue.parse(epilogue))
    assert own(ptx).invalid_reason(operation, parse_target("cuda:sm_90").limits) == reason
