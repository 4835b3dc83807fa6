/* A libcublas for the stand-in for CUDA's driver beside this file: loops on the host, in the order of the streams. */
#include <cstddef>

extern "C" int standin_enqueue(void *stream, void (*run)(void *), void *given);

struct handle {
    void *stream;
};

/* Matrices by columns, as cuBLAS has them; many of them, so far apart. */
template <class T> struct product {
    int ta, tb, m, n, k;
    T one;
    const T *a;
    int lda;
    long long by_a;
    const T *b;
    int ldb;
    long long by_b;
    T add;
    T *c;
    int ldc;
    long long by_c;
    int many;

    bool fits() const
    {
        return m >= 0 && n >= 0 && k >= 0 && many >= 0 && lda >= (ta ? k : m) && ldb >= (tb ? n : k) && ldc >= m &&
               lda > 0 && ldb > 0 && ldc > 0;
    }
    void run() const
    {
        for (long long q = 0; q < many; q++)
            for (size_t j = 0; j < (size_t)n; j++)
                for (size_t i = 0; i < (size_t)m; i++) {
                    const T *x = a + q*by_a, *y = b + q*by_b;
                    T sum = 0, *at = c + q*by_c + i + j*ldc;
                    for (size_t p = 0; p < (size_t)k; p++)
                        sum += (ta ? x[p + i*lda] : x[i + p*lda])*(tb ? y[j + p*ldb] : y[p + j*ldb]);
                    *at = one*sum + (add != 0 ? add**at : 0);
                }
    }
    static void start(void *self)
    {
        ((product *)self)->run();
        delete (product *)self;
    }
    int put(handle *h) const { return fits() ? standin_enqueue(h->stream, start, new product(*this)) : 7; }
};

extern "C" {
int cublasCreate_v2(handle **h)
{
    *h = new handle{nullptr};
    return 0;
}
int cublasDestroy_v2(handle *h)
{
    delete h;
    return 0;
}
int cublasSetStream_v2(handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}
#define GEMM(letter, T) \
    int cublas##letter##gemm_v2(handle *h, int ta, int tb, int m, int n, int k, const T *one, const T *a, int lda, \
                                const T *b, int ldb, const T *add, T *c, int ldc) \
    { \
        return product<T>{ta, tb, m, n, k, *one, a, lda, 0, b, ldb, 0, *add, c, ldc, 0, 1}.put(h); \
    } \
    int cublas##letter##gemmStridedBatched(handle *h, int ta, int tb, int m, int n, int k, const T *one, const T *a, \
                                           int lda, long long by_a, const T *b, int ldb, long long by_b, \
                                           const T *add, T *c, int ldc, long long by_c, int many) \
    { \
        return product<T>{ta, tb, m, n, k, *one, a, lda, by_a, b, ldb, by_b, *add, c, ldc, by_c, many}.put(h); \
    }
GEMM(D, double)
GEMM(S, float)
}
