"""Large products of matrices by cuBLAS, through ctypes: the ``nvidia-cublas`` wheel's or that of CUDA's toolkit.

cuBLAS stores matrices by columns. Read so, a row-major matrix is its transpose, and ``c = a b`` is the same as
``c' = b' a'``: the operands change places, and nothing is transposed in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from .codegen.nvrtc import loaded
from .errors import DeviceError

LARGE = 96**3  # multiplications from which on a product is worth a call


@cache
def cublas() -> Any:
    """The library, or None where it is not installed."""
    return loaded("cublas", "cublas", "libcublasLt.so*")


class Handle:
    """cuBLAS in the context that is current when this is made."""

    def __init__(self, library: Any) -> None:
        self.library, self.handle = library, ctypes.c_void_p()
        self.works = library.cublasCreate_v2(ctypes.byref(self.handle)) == 0

    def product(
        self, dtype: str, sizes: Sequence[int], ta: bool, tb: bool, a: int, b: int, c: int, add: bool, stream: int
    ) -> bool:
        """``c = a b`` (``c += a b`` with ``add``) of row-major matrices at these addresses, as ``Gemm`` says; ``sizes``
        are m, n, k, lda, ldb, ldc, then how many there are, and how far apart those of a, b and c. False where cuBLAS
        does not do it."""
        m, n, k, lda, ldb, ldc, many, *apart = sizes
        if not self.works or max(sizes[:7]) >= 2**31:
            return False
        self.check(self.library.cublasSetStream_v2(self.handle, ctypes.c_void_p(stream)))
        real = ctypes.c_double if dtype == "f64" else ctypes.c_float
        letter = "D" if dtype == "f64" else "S"
        one, add_to = real(1.0), real(1.0 if add else 0.0)
        numbers = [ctypes.c_int(int(x)) for x in (tb, ta, n, m, k)]
        parts = [(b, ldb, apart[1]), (a, lda, apart[0]), (c, ldc, apart[2])]
        if many == 1:
            gemm = getattr(self.library, f"cublas{letter}gemm_v2")
            x, y, z = ([ctypes.c_void_p(at), ctypes.c_int(ld)] for at, ld, _ in parts)
            end = []
        else:
            gemm = getattr(self.library, f"cublas{letter}gemmStridedBatched")
            x, y, z = ([ctypes.c_void_p(at), ctypes.c_int(ld), ctypes.c_longlong(by)] for at, ld, by in parts)
            end = [ctypes.c_int(many)]
        self.check(gemm(self.handle, *numbers, ctypes.byref(one), *x, *y, ctypes.byref(add_to), *z, *end))
        return True

    def check(self, status: int) -> None:
        if status:
            raise DeviceError(f"cuBLAS failed (status {status})", hint="compute-sanitizer may tell more")

    def close(self) -> None:
        """Give back what the library holds; the context is current."""
        if self.works:
            self.library.cublasDestroy_v2(self.handle)
            self.works = False
