"""Models on a GPU: what is asked of pycuda, tested against a stand-in that runs the same CUDA text on the CPU.

Nothing here needs a GPU, so nothing here shows that it runs on one: ``tests/device`` does, where there is one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
import plans
import standin
from hyad import cublas, device, gpu
from hyad.codegen import build, nvrtc, parts
from hyad.codegen.launches import At, Copy, Launch, Repeat
from hyad.errors import BoundsError, CompileError, DeviceError, HyadError, ModelTypeError, OutOfMemory
from hyad.marshalling import take_apart
from test_cuda import CASES, PROBLEMS, assert_same, elements, kernel_of, model, reference

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
ROOT = Path(__file__).resolve().parent.parent
SCALE = "(defmodel scale [#^ (Vec n) v a] (map (fn [x] (* a x x)) v))"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> standin.Driver:
    monkeypatch.setenv("HYAD_CACHE", str(tmp_path / "cache"))
    made = standin.install(monkeypatch, standin.Driver())
    yield made
    assert made.stack == [], "a context stays on the stack"
    device.driver.cache_clear()


@pytest.fixture
def context(driver: standin.Driver) -> Any:
    """A context that the user has made current."""
    made = driver.Device(0).make_context()
    yield made
    driver.Context.pop()


def compiled(text: str, **options: Any) -> gpu.CudaModel:
    return hyad.compile(hyad.model(text, namespace={}), target="cuda", **options)


# ------------------------------------------------------------------------------------------- batches


@pytest.mark.some(6)
@pytest.mark.parametrize("name", ["scalar", "dot", "smooth", "ramp", "ba", "kinds"])
def test_a_long_device_function_is_cut(name: str, driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LONG", 0)
    monkeypatch.setattr(parts, "PART", 1)
    test_compiled_models_over_batches(name, driver)
    assert name not in ("smooth", "ba") or "static __device__ __noinline__" in kernel_of(name, derived=True).source


@pytest.mark.parametrize("name", ["scalar", "dot", "smooth", "ramp", "ba", "kinds"])
def test_compiled_models_over_batches(name: str, driver: standin.Driver) -> None:
    """Arguments with one dim more are batched; those without are shared."""
    case = CASES[name]
    args, wanted = reference(name, True, "f64", case.shared)
    one = [a[0].item() if a.ndim == 1 else a[0] for a in elements(case, 1)]
    f = hyad.compile(model(name, True), target="cuda", args=one)
    assert f.target == "cuda" and "__global__" in f.source
    flat: list[Any] = []
    take_apart(f.program.out, f(*args), flat)
    assert_same(tuple(flat), wanted, 1e-12)
    empty = f(*(a[:0] if p not in case.shared else a for p, a in zip((p.name for p in f.program.params), args)))
    take_apart(f.program.out, empty, flat)
    assert all(len(a) == 0 for a in flat[len(wanted) :])
    assert len(driver.launches) == 1


def test_structured_arguments_over_batches(driver: standin.Driver) -> None:
    f = compiled(
        "(defmodel pick [#^ Bool c #^ (Tuple Real Real) t #^ (Vec n) v]"
        " #((if c (fst t) (snd t)) [(fold + 0.0 v)] (not c)))"
    )
    c, v = np.array([True, False, True]), np.arange(6.0).reshape(3, 2)
    first, total, flag = f(c, (np.array([1.0, 2, 3]), 9.0), v)
    assert first.tolist() == [1.0, 9.0, 3.0] and total.tolist() == [[1.0], [5.0], [9.0]]
    assert flag.dtype == bool and flag.tolist() == [False, True, False]
    with pytest.raises(ModelTypeError, match="pick takes 3 arguments, not 1"):
        f(c)
    for t in ((1.0,), 3.0):
        with pytest.raises(ModelTypeError, match="pick: an argument has another structure"):
            f(c, t, v)


def test_workspace_takes_at_most_half_of_the_memory(driver: standin.Driver) -> None:
    case = CASES["smooth"]
    args, wanted = reference("smooth", True, "f64", case.shared)
    f = hyad.compile(
        model("smooth", True), target="cuda", args=[a[0] if a.ndim > 1 else a[0].item() for a in elements(case, 1)]
    )
    driver.total = (room := 2 * 8 * 20 * 300) + 8 * 2 * sum(a.nbytes for a in args)  # an element takes 20 reals
    flat: list[Any] = []
    take_apart(f.program.out, f(*args), flat)
    assert_same(tuple(flat), wanted, 1e-12)
    ((_, (grid, _), (block, _, _)),) = driver.launches
    assert f.source.count("_WORK") == 0 and block * grid * 20 * 8 <= driver.total // 2 and room


def test_workspace_for_no_more_threads_than_run_at_once(driver: standin.Driver) -> None:
    """4 multiprocessors of 256 threads."""
    f = hyad.compile(model("smooth", True), target="cuda", args=(np.ones(5), 1.0))
    f(np.ones((5000, 5)), 1.0)
    ((_, grid, block),) = driver.launches
    assert grid[0] * block[0] == 1024


RECURSIVE = """(defmodel deep [#^ (Vec n) v] (letrec [f (fn [x d] (if (< d 1) x (* (sin x) (f (* 0.7 x) (- d 1)))))]
  (sum (map (fn [x] (f x (floor (* 40.0 x)))) v))))"""


def test_recursion_has_a_stack_and_more_memory_where_it_needs_more(
    driver: standin.Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call, then a batch; what sufficed is known at the next call."""
    model = hyad.value_and_grad(hyad.model(RECURSIVE, namespace={}))
    v = np.linspace(0.5, 2.0, 6)
    f, wanted = hyad.compile(model, target="cuda", args=(v,)), model(v)
    launches = []
    for args in (v, v, np.stack([v, 0.5 * v]), np.stack([v, 0.5 * v])):
        value, gradient = f(args)
        one = (value, gradient) if args.ndim == 1 else (value[0], gradient[0])
        np.testing.assert_allclose(one[0], wanted[0], rtol=1e-12)
        np.testing.assert_allclose(one[1], wanted[1], rtol=1e-12)
        launches.append(len(driver.launches))
    calls = np.diff([0, *launches])
    assert calls[0] > calls[1] and calls[2] > calls[3] == 1
    assert driver.limits["stack"] == 16384 and driver.calls.count("Context.set_limit") == 1
    driver.limits["stack"] = 1100
    monkeypatch.setattr(gpu, "STACK", 0)
    with pytest.raises(HyadError, match="too deep for the stack") as caught:
        f(v)
    assert "Context.set_limit" in caught.value.hint


def test_a_check_that_fails_on_the_gpu(driver: standin.Driver) -> None:
    f = hyad.compile(model("checked", False), target="cuda", args=(np.ones(4), 1))
    with pytest.raises(BoundsError, match="element 2 of the batch"):
        f(np.ones((5, 4)), np.array([0, 1, 9, 2, 0]))
    assert f(np.ones((5, 4)), np.array([0, 1, 3, 2, 0])).tolist() == [1.0] * 5


def test_options_that_mean_nothing_here(driver: standin.Driver) -> None:
    with pytest.raises(ModelTypeError, match="the target 'cuda' has no threads"):
        compiled(SCALE, threads=2)
    with pytest.raises(ModelTypeError, match="the target 'cuda' has no flags"):
        compiled(SCALE, flags="fast")
    assert compiled(SCALE, without="fuse")(np.ones((3, 2)), 2.0).tolist() == [[2.0, 2.0]] * 3


# --------------------------------------------------------------------------------- arrays of the GPU


def test_arrays_of_the_gpu_are_read_where_they_are(driver: standin.Driver, context: Any) -> None:
    """No copies, and results that stay; the memory of earlier results is used again."""
    f = compiled(SCALE)
    v = np.arange(600.0).reshape(200, 3)
    given, factor = standin.to_gpu(v), standin.to_gpu(np.linspace(0, 1, 200))
    before = len(driver.calls)
    out = f(given, factor)
    assert isinstance(out, standin.GPUArray) and out.shape == (200, 3) and out.dtype == np.float64
    assert not {"memcpy_htod", "memcpy_dtoh", "Context.synchronize"} & set(driver.calls[before:])
    wanted = np.linspace(0, 1, 200)[:, None] * v * v
    assert np.array_equal(out.get(), wanted)
    place = int(out.gpudata)
    del out
    out = f(given, factor)
    assert int(out.gpudata) == place
    again = f(given, factor)
    assert int(again.gpudata) != place and np.array_equal(again.get(), wanted)
    mixed = f(given, 2.0)  # a shared number of the host's
    assert np.array_equal(mixed.get(), 2.0 * v * v)
    near = f(given, np.full(200, 2.0))  # an array of the host's beside one of the GPU's
    assert np.array_equal(near.get(), 2.0 * v * v)


def test_arrays_of_the_gpu_when_compiling(driver: standin.Driver, context: Any) -> None:
    f = hyad.compile(hyad.model("(model [v] (fold + 0.0 v))"), target="cuda", args=(standin.to_gpu(np.ones(3)),))
    assert f(standin.to_gpu(np.ones((4, 3)))).get().tolist() == [3.0] * 4
    with pytest.raises(ModelTypeError, match="Pinned") as caught:
        hyad.grad("(model [v] (fold + 0.0 v))")(Pinned(np.ones(3)))
    assert 'target="cuda"' in caught.value.hint
    with pytest.raises(ModelTypeError, match="Asking"):
        hyad.grad("(model [v] (fold + 0.0 v))")(Asking())


def test_sizes_and_shared_numbers_may_be_on_the_gpu(driver: standin.Driver, context: Any) -> None:
    f = hyad.compile(model("ramp", False), target="cuda", args=(1.0, 3))
    out = f(standin.to_gpu(np.array([1.0, 2.0])), standin.to_gpu(np.array(3)))
    assert out.get().tolist() == [[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]]
    power = hyad.compile(model("power", True), target="cuda", args=(1.0, 3))
    x, n = np.array([0.5, 1.5]), np.array([2, 3])
    assert np.array_equal(power(standin.to_gpu(x), standin.to_gpu(n)).get(), power(x, n))


def test_empty_arrays_of_the_gpu(driver: standin.Driver, context: Any) -> None:
    out = compiled(SCALE)(standin.to_gpu(np.zeros((0, 3))), 1.0)
    assert isinstance(out, standin.GPUArray) and out.shape == (0, 3)


class Asking:
    """A tensor that asks for gradients."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("Can't get it on a Variable that requires grad")


class Pinned:
    """An array as other libraries hand theirs over."""

    __cuda_array_interface__: dict[str, Any] = {}

    def __init__(self, array: np.ndarray, **told: Any) -> None:
        self.memory = standin.to_gpu(np.ascontiguousarray(array))
        self.__cuda_array_interface__ = self.memory.__cuda_array_interface__ | told


def test_the_array_interface(driver: standin.Driver, context: Any) -> None:
    f, v = compiled(SCALE), np.arange(6.0).reshape(2, 3)
    wanted = 3.0 * v * v
    for told in ({}, {"strides": None}, {"version": 2}, {"data": (int(standin.to_gpu(v).gpudata), True)}):
        array = Pinned(v, **told)
        if "data" in told:
            array = Pinned(v)
        if told.get("version") == 2:
            del array.__cuda_array_interface__["stream"]
        assert np.array_equal(f(array, 3.0).get(), wanted)
    long = Pinned(np.ones((1, 3)), strides=(999, 8))  # the stride of a dim of length 1 says nothing
    assert np.array_equal(f(long, 3.0).get(), [[3.0] * 3])
    with pytest.raises(ModelTypeError, match=r"`v`, an array of the GPU, is not laid out row by row \(.*\(8, 16\)"):
        f(Pinned(v, strides=(8, 16)), 1.0)
    with pytest.raises(ModelTypeError, match="holds float32, and the kernel reads float64") as caught:
        f(Pinned(v.astype(np.float32)), 1.0)
    assert "dtype='f32'" in caught.value.hint
    with pytest.raises(ModelTypeError, match="masked"):
        f(Pinned(v, mask=Pinned(v)), 1.0)
    with pytest.raises(ModelTypeError, match="argument `v` cannot be read: Can't get it"):
        f(Asking(), 1.0)
    with pytest.raises(ModelTypeError, match="different lengths"):
        f(Pinned(v), np.ones(3))
    single = compiled(SCALE, dtype="f32")
    assert np.array_equal(single(Pinned(v.astype(np.float32)), 3.0).get(), wanted.astype(np.float32))


# ------------------------------------------------------------------------------------------- streams


def test_streams_of_pycuda(driver: standin.Driver, context: Any) -> None:
    """All of a call is on the stream; arrays of the host's are the caller's again when it returns."""
    f, stream, v = compiled(SCALE), driver.Stream(), np.arange(6.0).reshape(2, 3)
    out = f(standin.to_gpu(v), 3.0, stream=stream)
    assert driver.calls[-1] != "Stream.synchronize" and np.array_equal(out.get(), 3.0 * v * v)
    f(standin.to_gpu(v), np.ones(2), stream=stream)
    assert "Stream.synchronize" in driver.calls[-2:]
    assert np.array_equal(f(v, 3.0, stream=stream), 3.0 * v * v)
    place = int(out.gpudata)
    out.gpudata.free()  # as pycuda's own allocations can
    out.gpudata.free()
    assert int(f(standin.to_gpu(v), 3.0, stream=stream).gpudata) == place
    del out  # its memory is for calls on that stream, whose order keeps it from being overwritten too early
    assert int(f(standin.to_gpu(v), 3.0).gpudata) != place
    assert int(f(standin.to_gpu(v), 3.0, stream=stream).gpudata) == place


def test_streams_of_other_libraries(driver: standin.Driver, context: Any) -> None:
    """The call comes after what is on the stream, and what comes on the stream comes after the call."""
    f, v = compiled(SCALE), np.arange(6.0).reshape(2, 3)
    torch, cupy = types.SimpleNamespace(cuda_stream=77), types.SimpleNamespace(ptr=77)
    for stream in (77, torch, cupy, types.SimpleNamespace(__cuda_stream__=lambda: (0, 77))):
        driver.library.orders.clear()
        assert np.array_equal(f(standin.to_gpu(v), 3.0, stream=stream).get(), 3.0 * v * v)
        (first, own), (back, last) = driver.library.orders
        assert first == last == 77 and own == back and own > 100
    assert set(driver.library.events.values()) == {"destroyed"}
    place = int(f(standin.to_gpu(v), 3.0, stream=77).gpudata)  # whose reader is on that stream, and may yet read
    assert int(f(standin.to_gpu(v), 3.0, stream=78).gpudata) != place
    assert int(f(standin.to_gpu(v), 3.0, stream=77).gpudata) == place
    driver.library.orders.clear()
    f(standin.to_gpu(v), 3.0, stream=types.SimpleNamespace(cuda_stream=0))  # the default stream
    assert driver.library.orders == []
    with pytest.raises(ModelTypeError, match="stream is str, not a stream"):
        f(v, 1.0, stream="x")
    driver.library.cuEventRecord = lambda event, stream: 400
    with pytest.raises(DeviceError, match=r"does not take this stream \(error 400\)"):
        f(v, 1.0, stream=77)
    assert set(driver.library.events.values()) == {"destroyed"}


def test_a_producers_stream_is_waited_for(driver: standin.Driver, context: Any) -> None:
    """Version 3 of the interface says on which stream an array is made."""
    f, v = compiled(SCALE), np.arange(6.0).reshape(2, 3)
    f(Pinned(v, stream=55), Pinned(np.ones(2), stream=1))
    assert driver.library.orders == [(55, 0)]
    driver.library.orders.clear()
    stream = driver.Stream()
    f(Pinned(v, stream=stream.handle), 1.0, stream=stream)
    assert driver.library.orders == []


# ------------------------------------------------------------------------------------------ contexts


def test_the_current_context_is_used(driver: standin.Driver, context: Any) -> None:
    f = compiled(SCALE)
    before = len(driver.calls)
    f(np.ones((2, 3)), 1.0)
    assert not {"Context.push", "Context.pop", "retain_primary_context"} & set(driver.calls[before:])


def test_without_a_context_the_primary_one_is_used(driver: standin.Driver) -> None:
    f = compiled(SCALE)
    for _ in range(2):
        f(np.ones((2, 3)), 1.0)
    assert driver.calls.count("retain_primary_context") == 1 and driver.calls.count("module_from_buffer") == 1
    assert driver.calls.count("Context.push") == driver.calls.count("Context.pop") == 2
    assert "Context.get_device" not in driver.calls  # which fails there, and compute-sanitizer reports what fails


def test_a_module_for_each_context(driver: standin.Driver) -> None:
    f = compiled(SCALE)
    for _ in range(2):
        driver.Device(0).make_context()
        f(np.ones((2, 3)), 1.0)
        f(np.ones((2, 3)), 1.0)
        driver.Context.pop()
    assert driver.calls.count("module_from_buffer") == 2


def test_a_context_where_another_one_was(driver: standin.Driver) -> None:
    """CUDA gives an address again: what was compiled for the context that is gone is gone too."""
    f, kept = compiled(SCALE), []
    for k in range(3):
        made = driver.Device(0).make_context()
        kept.append(f(standin.to_gpu(np.ones((2, 3))), 1.0))
        assert f(np.ones((2, 3)), 2.0).tolist() == [[2.0] * 3] * 2
        driver.Context.pop()
        made.detach()
    assert driver.calls.count("module_from_buffer") == 3
    kept.clear()
    device.forget()


def test_the_gpu_that_an_array_is_on(driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a current context of pycuda's, as where the arrays are PyTorch's."""
    two = standin.install(monkeypatch, standin.Driver(count=2))
    two.primaries[1].push()
    array = Pinned(np.ones((2, 3)))
    two.Context.pop()
    f = compiled(SCALE)
    out = f(array, 2.0)
    assert two.where[int(out.gpudata)] == 1 and two.stack == []


def test_threads(driver: standin.Driver) -> None:
    f, failed = compiled(SCALE), []

    def work(k: int) -> None:
        for _ in range(20):
            if not np.array_equal(f(np.full((5, 3), float(k)), 2.0), np.full((5, 3), 2.0 * k * k)):
                failed.append(k)
        assert driver.stack == []

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and len(driver.launches) == 80 and driver.calls.count("module_from_buffer") == 1


def test_compiled_modules_are_kept_on_disk(driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(SCALE)(np.ones((2, 3)), 1.0)
    compile_device = nvrtc.compile_device
    monkeypatch.setattr(nvrtc, "compile_device", lambda *_: pytest.fail("compiled again"))
    other = standin.Driver()
    standin.install(monkeypatch, other)
    monkeypatch.setattr(nvrtc, "compile_device", lambda *_: pytest.fail("compiled again"))
    assert compiled(SCALE)(np.ones((2, 3)), 1.0).tolist() == [[1.0] * 3] * 2
    monkeypatch.setattr(nvrtc, "compile_device", compile_device)
    monkeypatch.setattr(nvrtc, "compiler", lambda: "another version")
    assert nvrtc.compiled("text", "sm_90") == b"text" == nvrtc.compiled("text", "sm_90")
    folder = build.cache_folder()
    monkeypatch.setattr(nvrtc, "compile_device", lambda *_: b"anew")
    for path in Path(folder).glob("*.cubin"):  # a damaged file is not used
        path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    assert nvrtc.compiled("text", "sm_90") == b"anew"


def test_what_the_readme_shows(driver: standin.Driver, context: Any) -> None:
    """Its Python, with the stand-in's arrays for PyTorch's."""
    (text,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    v = np.array([1.0, 2.0])
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(current_stream=lambda: types.SimpleNamespace(cuda_stream=9))
    )
    names = {"hyad": hyad, "v": v, "many": np.ones((3, 2)), "torch": torch, "torch_tensor": standin.to_gpu(v)}
    names["f"] = hyad.model("(model [x] (* x x))", namespace={})
    values = []
    for line in text.splitlines():
        names.pop("_", None)
        exec(line if " = " in line.partition("(")[0] else f"_ = {line}", names)
        values.append(names.get("_"))
    assert [np.ravel(x.get() if isinstance(x, standin.GPUArray) else x).tolist() for x, _ in values[2:6]] == [
        [1.0, 2.0], [1.0] * 6, [1.0, 2.0], [1.0, 2.0]
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------- errors


def test_without_pycuda_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    device.driver.cache_clear()
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    with pytest.raises(CompileError, match="runs on a GPU through pycuda, and pycuda is not installed") as caught:
        hyad.compile(model("scalar", False), target="cuda")
    assert 'pip install "hyad[cuda]"' in caught.value.hint and 'hyad.emit(f, target="cuda")' in caught.value.hint


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What importing pycuda says where there is no libcuda."""
    device.driver.cache_clear()
    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda/__init__.py").touch()
    line = "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')"
    (tmp_path / "pycuda/driver.py").write_text(line)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CompileError, match=r"this machine has no NVIDIA driver \(libcuda"):
        compiled(SCALE)
    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_without_a_gpu_it_says_so(driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.fail["init"] = [driver.RuntimeError("cuInit failed: no CUDA-capable device is detected")]
    with pytest.raises(CompileError, match='target "cuda" needs a GPU: cuInit failed: no CUDA-capable device'):
        compiled(SCALE)
    standin.install(monkeypatch, standin.Driver(count=0))
    with pytest.raises(CompileError, match='target "cuda" needs a GPU: there is none') as caught:
        compiled(SCALE)
    assert "CUDA_VISIBLE_DEVICES" in caught.value.hint


def test_without_a_cuda_compiler_it_says_so(driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvcc", lambda: None)
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    with pytest.raises(nvrtc.NoCudaCompiler, match="neither NVRTC nor nvcc was found"):
        compiled(SCALE)


def test_out_of_memory(driver: standin.Driver) -> None:
    """What is kept for later is given back first; what still does not fit is an error, and nothing is lost."""
    f, v = compiled(SCALE), np.ones((1000, 100))
    driver.total = 2 * 2**20
    assert f(v, 1.0).shape == v.shape  # two arrays of 1 MiB
    assert driver.used == driver.total
    small = f(np.ones((100, 10)), 1.0)  # in other sizes, for which the kept memory is given back
    assert small.sum() == 1000 and driver.calls.count("free") == 2
    with pytest.raises(OutOfMemory, match=r"scale: .* do not fit into the GPU's memory: \d+ of 2 MB are free") as error:
        f(np.ones((2000, 100)), 1.0)
    assert "call it on less at once" in error.value.hint and isinstance(error.value, MemoryError)
    assert f(v, 1.0).shape == v.shape


def test_a_launch_that_cuda_refuses(driver: standin.Driver) -> None:
    f = compiled(SCALE)
    driver.fail["launch"] = [driver.LaunchError("cuLaunchKernel failed: too many resources requested for launch")]
    with pytest.raises(DeviceError, match="scale: CUDA refused a call: cuLaunchKernel failed: too many") as caught:
        f(np.ones((2, 3)), 1.0)
    assert "can still be used" in caught.value.hint and driver.stack == []
    assert f(np.ones((2, 3)), 1.0).tolist() == [[1.0] * 3] * 2


def test_an_error_that_stays(driver: standin.Driver) -> None:
    """An illegal access is noticed by some later call, and by every one after it."""
    f, v = compiled(SCALE), np.ones((2, 3))
    f(v, 1.0)
    driver.lost = driver.LogicError("cuMemcpyDtoH failed: an illegal memory access was encountered")
    with pytest.raises(DeviceError, match="scale, or what ran on the GPU before it, failed: .*illegal") as caught:
        f(v, 1.0)
    assert "start it again" in caught.value.hint and driver.stack == []
    with pytest.raises(DeviceError, match=r"scale cannot run: the GPU was lost to an earlier failure \(.*illegal"):
        f(v, 1.0)
    device.forget()


def test_an_error_that_not_even_leaves_the_context(driver: standin.Driver) -> None:
    """A process that ended with a context on pycuda's stack would be aborted."""
    f, v = compiled(SCALE), np.ones((2, 3))
    f(v, 1.0)
    driver.lost = driver.LogicError("cuMemcpyDtoH failed: an illegal memory access was encountered")
    driver.fail["Context.pop"] = [driver.LogicError("cuCtxPopCurrent failed: an illegal memory access was encountered")]
    with pytest.raises(DeviceError, match="scale, or what ran on the GPU before it, failed: .*illegal"):
        f(v, 1.0)
    assert driver.stack == []
    with pytest.raises(DeviceError, match=r"scale cannot run: the GPU was lost to an earlier failure"):
        f(v, 1.0)
    device.forget()


@pytest.mark.parametrize("name", ["mem_alloc", "memcpy_htod", "memcpy_dtoh", "module_from_buffer", "launch"])
def test_whatever_fails_the_stack_of_contexts_is_as_before(name: str, driver: standin.Driver) -> None:
    f = compiled(SCALE)
    driver.fail[name] = [driver.LogicError(f"{name} failed: invalid argument")]
    with pytest.raises(hyad.HyadError, match="scale"):
        f(np.ones((2, 3)), 1.0)
    assert driver.stack == []
    context = driver.Device(0).make_context()
    driver.fail[name] = [driver.LogicError(f"{name} failed: invalid argument")]
    with pytest.raises(hyad.HyadError, match="scale"):
        f(np.ones((2, 3)), 1.0)
    assert driver.stack == [context]
    driver.Context.pop()


def test_arguments_that_do_not_fit(driver: standin.Driver) -> None:
    f = compiled(SCALE)
    assert f(np.ones(3), 2.0).tolist() == [2.0] * 3  # one call
    for args, message in (
        ((np.ones((2, 3)),), "takes 2 arguments, not 1"),
        ((np.ones((2, 3)), np.ones(3)), "different lengths"),
        ((np.ones((2, 2, 2)), 1.0), "has 3 dims, not 2"),
        ((np.ones((2, 3)) * 1j, 1.0), "argument `v` holds complex128, not reals"),
        (([[1.0, 2.0], [3.0]], 1.0), "argument `v` is a list of rows of different lengths"),
        ((np.ma.array(np.ones(3), mask=[1, 0, 0]), 1.0), "argument `v` is a masked array"),
        ((types.SimpleNamespace(__cuda_array_interface__={"shape": 3}), 1.0), "argument `v` tells of memory of a GPU"),
    ):
        with pytest.raises(ModelTypeError, match=message):
            f(*args)
    with pytest.raises(TypeError, match="out"):
        f(np.ones((2, 3)), 1.0, out=None)


def test_what_a_process_leaves(driver: standin.Driver) -> None:
    f = compiled(SCALE)
    first = threading.Thread(target=f, args=(np.ones((2, 3)), 1.0))
    first.start()
    first.join()
    device.forget()
    assert device._devices == [] and not driver.leaked
    assert f(np.ones((2, 3)), 1.0).tolist() == [[1.0] * 3] * 2  # begins anew


# -------------------------------------------------------------------------------- plans of one call


@pytest.mark.some(10)
@pytest.mark.parametrize("name", ["scalar", "rows", "smooth", "system", "axes", "counts", "gmm"])
def test_one_call_in_parallel(name: str, driver: standin.Driver) -> None:
    """The same results as C, in the host's memory and in the GPU's."""
    if name == "gmm":
        f = hyad.value_and_grad(hyad.load(PROBLEMS / "gmm.hy").gmm)
        rng = np.random.default_rng(0)
        one = [rng.normal(size=3), rng.normal(size=(3, 2)), rng.normal(size=(3, 3)), rng.normal(size=(9, 2)), 1.0, 0]
    else:
        f = model(name, True)
        one = [a[0].item() if a.ndim == 1 else a[0] for a in elements(CASES[name], 1)]
    compiled, wanted = hyad.compile(f, target="cuda", args=one), []
    entry = hyad.compile(f, target="c", args=one)
    take_apart(entry.program.out, entry(*one), wanted)
    got: list[Any] = []
    take_apart(compiled.program.out, compiled(*one), got)
    assert [type(a) for a in got] == [type(a) for a in wanted]
    assert_same(tuple(map(np.asarray, got)), [np.asarray(a) for a in wanted], 1e-12)
    driver.Device(0).make_context()
    near = [standin.to_gpu(a) if isinstance(a, np.ndarray) else a for a in one]
    near[0] = standin.to_gpu(np.asarray(near[0])) if not isinstance(near[0], standin.GPUArray) else near[0]
    got = []
    take_apart(compiled.program.out, compiled(*near), got)
    assert all(isinstance(a, standin.GPUArray) for a in got)
    assert_same(tuple(a.get() for a in got), [np.asarray(a) for a in wanted], 1e-12)
    driver.Context.pop()


def test_a_model_that_has_but_a_batch(driver: standin.Driver) -> None:
    """What cannot be one call in parallel runs over batches all the same, and the other way round."""
    f = compiled("(defmodel fall [x] (let [r (ref x)] (while (> (deref r) 1.0) (set! r (* 0.5 (deref r)))) (deref r)))")
    assert f(np.array([5.0, 16.0])).tolist() == [0.625, 1.0]
    assert f(5.0) == 0.625


def test_a_plan_is_one_module(driver: standin.Driver) -> None:
    gpu.run_program(plans.WALK, (np.ones(5), 1.0, 2))
    assert driver.calls.count("module_from_buffer") == 1 and len({name for name, *_ in driver.launches}) == 4


@pytest.mark.parametrize("body", ["(* 0.5 s)", "(tanh s)", "(@ m s)"])
def test_loops_that_run_less_than_no_time(body: str, driver: standin.Driver) -> None:
    """A count below 1 gives the start, and its gradient goes through nothing."""
    text = "(defmodel f [#^ (Vec n) v #^ (Mat n n) m #^ Int steps] {})".format
    loop = f"(ifold (fn [s k] {body}) v steps)"
    v, m = np.arange(3.0), np.ones((3, 3))
    for count in (-3, 0):
        np.testing.assert_array_equal(compiled(text(loop))(v, m, count), v)
        g = hyad.compile(hyad.grad(hyad.model(text(f"(sum (square {loop}))"), namespace={}), wrt="v"), target="cuda")
        np.testing.assert_array_equal(g(v, m, count), 2 * v)
    with pytest.raises(ModelTypeError, match="`steps` holds bool, not integers"):
        compiled(text(loop))(v, m, True)
    with pytest.raises(ModelTypeError, match="f got an unexpected keyword `steps`"):
        compiled(text(loop))(v, m, steps=1)


def test_code_that_the_gpu_does_not_load(driver: standin.Driver) -> None:
    driver.fail["module_from_buffer"] = [driver.RuntimeError("cuModuleLoadDataEx failed: no kernel image is available")]
    with pytest.raises(CompileError, match="the GPU does not load the code of scale: .*no kernel image") as caught:
        compiled(SCALE)(np.ones(3), 1.0)
    assert "the driver is for CUDA 13.0, the compiler is stand-in" in caught.value.hint


def test_every_step_of_a_plan(driver: standin.Driver, context: Any) -> None:
    v = np.linspace(1.0, 9.0, 500)
    for m in (0, 1, 4):
        (out,) = gpu.run_program(plans.WALK, (v, 3.0, m))
        np.testing.assert_allclose(out, plans.walked(v, 3.0, m), rtol=1e-15)
    flat = [device.remote(standin.to_gpu(v), "v"), device.remote(standin.to_gpu(np.array(3.0)), "a"), 4]
    (out,) = gpu.run_program(plans.WALK, flat)
    np.testing.assert_allclose(out.get(), plans.walked(v, 3.0, 4), rtol=1e-15)


def test_checks_of_a_plan(driver: standin.Driver) -> None:
    with pytest.raises(ModelTypeError, match="walk: too long"):
        gpu.run_program(plans.WALK, (np.ones(1000), 1.0, 1))
    with pytest.raises(ModelTypeError, match="walk: negative"):
        gpu.run_program(plans.WALK, (np.array([1.0, -9.0]), 1.0, 1))
    for args, message in (
        ((np.ones(3), 1.0), "walk takes 3 arguments, not 2"),
        ((1.0, 1.0, 1), "walk: argument `v` has 0 dims, not 1"),
        ((np.ones(3), 1.0, 1.5), "argument `m` holds float64, not integers"),
    ):
        with pytest.raises(ModelTypeError, match=message):
            gpu.run_program(plans.WALK, args)
    with pytest.raises(ModelTypeError, match=r"both: argument `b` has shape \(2, 9\), not \(2, 4\)"):
        gpu.run_program(plans.product("f64"), (np.ones((4, 3)), np.ones((2, 9))))


def test_the_memory_of_a_plan_is_used_again(driver: standin.Driver) -> None:
    for _ in range(3):
        gpu.run_program(plans.WALK, (np.ones(500), 1.0, 3))
    assert driver.calls.count("mem_alloc") == 3  # the argument, the result, and all that the plan needs besides


class Blas:
    """``libcublas`` as far as it is called: matrices by columns, in the host's memory."""

    def __init__(self) -> None:
        self.calls, self.streams = 0, []

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 7
        return 0

    def cublasDestroy_v2(self, handle: Any) -> int:
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        self.streams.append(stream.value or 0)
        return 0

    def gemm(self, real: Any, ta: Any, tb: Any, m: Any, n: Any, k: Any, one: Any, *rest: Any) -> int:
        a, lda, b, ldb, beta, c, ldc = rest
        m, n, k = m.value, n.value, k.value

        def matrix(place: Any, rows: int, columns: int, apart: int) -> np.ndarray:
            whole = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(real)), (columns, apart))
            return whole[:, :rows].T

        left = matrix(a, k, m, lda.value).T if ta.value else matrix(a, m, k, lda.value)
        right = matrix(b, n, k, ldb.value).T if tb.value else matrix(b, k, n, ldb.value)
        to = matrix(c, m, n, ldc.value)
        to[...] = one._obj.value * left @ right + beta._obj.value * to
        self.calls += 1
        return 0

    def cublasDgemmStridedBatched(self, handle: Any, *args: Any) -> int:
        *numbers, a, lda, by_a, b, ldb, by_b, beta, c, ldc, by_c, many = args
        for k in range(many.value):
            x, y, z = (ctypes.c_void_p(at.value + 8 * k * by.value) for at, by in ((a, by_a), (b, by_b), (c, by_c)))
            self.gemm(ctypes.c_double, *numbers, x, lda, y, ldb, beta, z, ldc)
        return 0

    def cublasDgemm_v2(self, handle: Any, *args: Any) -> int:
        return self.gemm(ctypes.c_double, *args)

    def cublasSgemm_v2(self, handle: Any, *args: Any) -> int:
        return self.gemm(ctypes.c_float, *args)


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_large_products_by_cublas(dtype: str, driver: standin.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    blas = Blas()
    monkeypatch.setattr(cublas, "cublas", lambda: blas)
    program, rng = plans.product(dtype), np.random.default_rng(0)
    for k, m, n in ((120, 130, 110), (3, 4, 5)):  # the second is the program's own kernel's
        a, b = rng.normal(size=(k, m)), rng.normal(size=(n, k))
        (out,) = gpu.run_program(program, (a, b))
        np.testing.assert_allclose(out, a.T @ b.T, rtol=0, atol=1e-12 * k if dtype == "f64" else 1e-4 * k)
    assert blas.calls == 1 and driver.launches[-1][0] == "both_product"
    monkeypatch.setattr(cublas, "cublas", lambda: None)
    a, b = rng.normal(size=(120, 130)), rng.normal(size=(110, 120))
    np.testing.assert_allclose(gpu.run_program(program, (a, b))[0], a.T @ b.T, rtol=0, atol=1e-2)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_products_by_rows_as_cublas_sees_them(ta: bool, tb: bool, add: bool) -> None:
    """All ways to store the operands, as parts of wider matrices."""
    rng, (m, n, k) = np.random.default_rng(1), (3, 4, 5)
    a, b, c = (
        rng.normal(size=(k, 9) if ta else (m, 9)),
        rng.normal(size=(n, 8) if tb else (k, 8)),
        rng.normal(size=(m, 7)),
    )
    left, right = (a[:, :m].T if ta else a[:, :k]), (b[:, :k].T if tb else b[:, :n])
    wanted = c.copy()
    wanted[:, :n] = left @ right + (c[:, :n] if add else 0)
    handle = cublas.Handle(Blas())
    places = (x.ctypes.data for x in (a, b, c))
    assert handle.product("f64", (m, n, k, 9, 8, 7, 1, 0, 0, 0), ta, tb, *places, add, 0)
    np.testing.assert_allclose(c, wanted, rtol=1e-13)
    assert not handle.product("f64", (2**31, n, k, 9, 8, 7, 1, 0, 0, 0), ta, tb, 0, 0, 0, add, 0)


def test_stacks_of_products_as_cublas_sees_them() -> None:
    """Several at once, one factor the same for all of them."""
    rng = np.random.default_rng(2)
    a, b, c = rng.normal(size=(5, 3, 4)), rng.normal(size=(4, 2)), np.zeros((5, 3, 2))
    blas = Blas()
    places = (x.ctypes.data for x in (a, b, c))
    assert cublas.Handle(blas).product("f64", (3, 2, 4, 4, 2, 2, 5, 12, 0, 6), False, False, *places, False, 0)
    np.testing.assert_allclose(c, a @ b, rtol=1e-13)
    assert blas.calls == 5


def test_loops_in_loops_of_the_host(driver: standin.Driver) -> None:
    """What an inner loop's sizes are made of is known no sooner than its index."""
    inner = Repeat("k", "j", (Launch("walk_halve", ("+", ("-", "j", "k"), 1), 1, (At("s"), ("-", "k", "j"))),))
    steps = (Copy(At("s"), At("v"), "n"), Repeat("m", "k", (inner, inner)), Copy(At("out"), At("s"), "n"))
    program = dataclasses.replace(plans.WALK, name="nested", steps=steps, checks=(), status=None)
    v = np.arange(1.0, 9.0)
    (out,) = gpu.run_program(program, (v, 1.0, 4))
    wanted = v.copy()
    for k in range(4):
        for j in 2 * [*range(k)]:
            wanted[: min(k - j, 1)] *= 0.5  # a block of one thread
    np.testing.assert_array_equal(out, wanted)
