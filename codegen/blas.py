"""Dense matrix products by a BLAS: the C that calls one, and where one is."""

from __future__ import annotations

from functools import cache

#: What is defined where the C may call a BLAS.
SWITCH = "HYAD_BLAS"

#: A product of fewer multiplications is computed by loops: a call would take longer.
WORTH = 32 * 32 * 32

#: ``c = a b``, n x m, of l terms each; s and t say that a and b are read as their transposes.
PRODUCT = """\
/* c = a b, n x m, with l terms in each sum; s and t: of the transposes of a and b, whose rows are lda and ldb apart */
#ifdef HYAD_BLAS
void cblas_REALgemm(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
    int);
#endif
static void hyad_product(long long n, long long m, long long l, const double *a, long long lda, int s,
    const double *b, long long ldb, int t, double *restrict c)
{
#ifdef HYAD_BLAS
    const long long most = 2147483647;
    if (l > 0 && (double)n*(double)m*(double)l >= WORTH && n <= most && m <= most && l <= most && lda <= most
        && ldb <= most) {
        cblas_REALgemm(101, 111 + s, 111 + t, (int)n, (int)m, (int)l, 1, a, (int)lda, b, (int)ldb, 0, c, (int)m);
        return;
    }
#endif
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j < m; j++) c[i*m + j] = 0;
        for (long long k = 0; k < l; k++) {
            const double x = s ? a[k*lda + i] : a[i*lda + k];
            if (t) {
                for (long long j = 0; j < m; j++) c[i*m + j] += x*b[j*ldb + k];
            } else {
                for (long long j = 0; j < m; j++) c[i*m + j] += x*b[k*ldb + j];
            }
        }
    }
}
"""


def product(dtype: str) -> str:
    """The function that a product calls."""
    text = PRODUCT.replace("WORTH", str(WORTH)).replace("REAL", "d" if dtype == "f64" else "s")
    return text if dtype == "f64" else text.replace("double", "float")


@cache
def library() -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The flags that compile and link a call of ``cblas_dgemm``; None where there is no BLAS.

    The wheel ``scipy-openblas32`` (the extra ``blas``) comes first, then the system's OpenBLAS, BLIS or cblas.
    """
    try:
        import scipy_openblas32 as wheel
    except ImportError:
        from ctypes.util import find_library

        name = next((n for n in ("openblas", "blis", "cblas") if find_library(n)), None)
        return None if name is None else ((f"-D{SWITCH}",), (f"-l{name}",))
    folder = wheel.get_lib_dir()
    renamed = [f"-Dcblas_{p}gemm=scipy_cblas_{p}gemm" for p in "ds"]
    return (f"-D{SWITCH}", *renamed), (f"-L{folder}", f"-l{wheel.get_library()}", f"-Wl,-rpath,{folder}")
