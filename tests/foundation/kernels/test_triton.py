"""The fused kernels agree with the reference, and compile for GPUs that this machine need not have."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from foundation.kernels import gdpa

pytest.importorskip("triton", reason="triton is not installed: the extra kernels-cpu brings it")
CASES = Path(__file__).with_name("triton_cases.py")


def test_the_kernels_agree_with_the_reference() -> None:
    # a process of its own: Triton reads TRITON_INTERPRET when it is imported, and other tests may have imported it
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    cases = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", str(CASES)],
        capture_output=True,
        text=True,
        env={**os.environ, **interpreted},
        timeout=240,
    )
    assert cases.returncode == 0, cases.stdout
    assert int(re.findall(r"(\d+) passed", cases.stdout)[0]) >= 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA tensors are here")
def test_cpu_tensors_are_refused_outside_the_interpreter() -> None:
    ones = torch.ones(1, 1, 1, 1)
    with pytest.raises(ValueError, match="needs CUDA tensors"):
        gdpa(ones, ones, ones, backend="triton")


def test_what_the_fused_kernel_does_not_take_is_named() -> None:
    for ones in (torch.ones(1, 1, 1, 1).double(), torch.ones(1, 1, 1, 129)):
        with pytest.raises(ValueError, match="use 'eager'"):
            gdpa(ones, ones, ones, backend="triton")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    from triton import knobs

    from foundation.kernels import _triton_kernels

    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield _triton_kernels


@pytest.mark.parametrize(
    ("name", "capability"), [("forward_kernel", 80), ("backward_kv_kernel", 90), ("backward_q_kernel", 90)]
)
def test_the_kernels_compile_and_fit_into_shared_memory(kernels: ModuleType, name: str, capability: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from foundation.kernels._triton import tiles

    kernel = getattr(kernels, name)
    keys = 64 if name == "forward_kernel" else 256
    sizes = tiles(32, 2, 1000, keys, shared_bytes=99 * 1024, backward=name != "forward_kernel")
    options = {option: sizes.pop(option) for option in ("num_warps", "num_stages")}
    constants = {"ACT": "gelu", "WINDOWED": True, "RESIDENT": True, "WITH_DQ": False, "PRECISION": "tf32", "WIDTH": 32}
    constants = {key: value for key, value in {**constants, **sizes}.items() if key in kernel.arg_names}
    kinds = {**dict.fromkeys(("q", "k", "v", "out", "g", "dq", "dk", "dv"), "*bf16"), "heads": "*i32", "pre": "fp32"}
    kinds |= {"starts_lengths": "*i64", "out_starts": "*i64", "post": "fp32", **dict.fromkeys(constants, "constexpr")}
    signature = {argument: kinds.get(argument, "i32") for argument in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind == "*bf16"}
    source = ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert built.metadata.shared <= 99 * 1024
    assert "wgmma" in built.asm["ptx"] or "mma.sync" in built.asm["ptx"]  # on the tensor cores
