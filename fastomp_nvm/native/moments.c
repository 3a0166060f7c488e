/* Mean, centred norm and range of each row, in float64, plain or under observation weights.
 *
 * The bits of a row's moments depend on its values, the weights and the number of observations only. Observation i belongs to lane
 * i % LANES; lanes are added in order within a chunk, folded in a fixed tree, and the chunks are added in order. Products are rounded
 * before they are added, so both instruction sets give the same bits. */

#include "native.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 4
#define STEP 8     /* observations per step: two vectors, so that additions need not wait for each other */
#define CHUNK 4096 /* observations whose lanes are folded at once: keeps the rounding errors of long rows small */

typedef Py_ssize_t Index;
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double))));
typedef int64_t Mask __attribute__((vector_size(LANES * sizeof(int64_t))));
typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef Lanes Doubles;

#define INLINE static inline __attribute__((always_inline))

/* The lanes of a where `mask` is set, of b elsewhere. */
#define CHOOSE(mask, a, b) ((Lanes)(((mask) & (Mask)(a)) | (~(mask) & (Mask)(b))))
#define FOLD(s, t) ((((s)[0] + (t)[0]) + ((s)[2] + (t)[2])) + (((s)[1] + (t)[1]) + ((s)[3] + (t)[3])))

/* Runs `use(x, weight, counted, half)` for LANES observations at `values`; lanes beyond `here`, and observations of weight 0 even
 * where they are not finite, are not counted. */
#define TAKE(type, use, values, weights, here, half)                                                                         \
    do {                                                                                                                     \
        type some;                                                                                                           \
        Lanes weight = zero;                                                                                                 \
        memcpy(&some, values, sizeof some);                                                                                  \
        if (weighted)                                                                                                        \
            memcpy(&weight, weights, sizeof weight);                                                                         \
        const Lanes x = __builtin_convertvector(some, Lanes);                                                                \
        const Mask counted = weighted ? (Mask)(weight > zero) : (Mask)(order + (half) * LANES < zero + (double)(here));      \
        use(x, weight, counted, half);                                                                                       \
    } while (0)

/* Runs `use` for the observations begin to end of a row; the last ones from copies padded with zeros. */
#define EACH_OBSERVATION(type, begin, end, use)                                                                              \
    do {                                                                                                                     \
        const Index item = (Index)(sizeof(type) / LANES), rest = ((end) - (begin)) % STEP, last = (end) - rest;              \
        for (Index i = begin; i < last; i += STEP) {                                                                         \
            TAKE(type, use, row + i * item, weights + i, STEP, 0);                                                           \
            TAKE(type, use, row + (i + LANES) * item, weights + i + LANES, STEP, 1);                                         \
        }                                                                                                                    \
        if (rest) {                                                                                                          \
            char values[2 * sizeof(type)] = {0};                                                                             \
            double some_weights[STEP] = {0.0};                                                                               \
            memcpy(values, row + last * item, (size_t)(rest * item));                                                        \
            if (weighted)                                                                                                    \
                memcpy(some_weights, weights + last, (size_t)rest * sizeof(double));                                         \
            TAKE(type, use, values, some_weights, rest, 0);                                                                  \
            TAKE(type, use, values + sizeof(type), some_weights + LANES, rest, 1);                                           \
        }                                                                                                                    \
    } while (0)

#define ADD_VALUE(x, weight, counted, half)                                                                                  \
    do {                                                                                                                     \
        sums[half] += CHOOSE(counted, weighted ? (weight) * (x) : (x), zero);                                                \
        low[half] = CHOOSE((counted) & (Mask)((x) < low[half]), x, low[half]);                                               \
        high[half] = CHOOSE((counted) & (Mask)((x) > high[half]), x, high[half]);                                            \
    } while (0)

#define ADD_SQUARE(x, weight, counted, half)                                                                                 \
    do {                                                                                                                     \
        const Lanes scaled = ((x) - means) * scales, square = scaled * scaled;                                               \
        sums[half] += CHOOSE(counted, weighted ? (weight) * square : square, zero);                                          \
    } while (0)

/* Defines `name`, which writes mean, norm, minimum and maximum of a row of n values to `found`, `step` entries apart. */
#define DEFINE_MOMENTS(name, type, target)                                                                                   \
    target INLINE void name##_of(const char *row, Index n, const double *weights, double weight_sum, double *found,          \
                                 Index step, const int weighted)                                                             \
    {                                                                                                                        \
        const Lanes zero = {0}, order = {0, 1, 2, 3};                                                                        \
        Lanes low[2] = {zero + INFINITY, zero + INFINITY}, high[2] = {zero - INFINITY, zero - INFINITY};                     \
        double total = 0.0, squares = 0.0;                                                                                   \
        for (Index begin = 0; begin < n; begin += CHUNK) {                                                                   \
            const Index end = begin + CHUNK < n ? begin + CHUNK : n;                                                         \
            Lanes sums[2] = {zero, zero};                                                                                    \
            EACH_OBSERVATION(type, begin, end, ADD_VALUE);                                                                   \
            total += FOLD(sums[0], sums[1]);                                                                                 \
        }                                                                                                                    \
        double least = low[0][0], most = high[0][0];                                                                         \
        for (int lane = 1; lane < STEP; lane++) {                                                                            \
            least = fmin(least, low[lane / LANES][lane % LANES]);                                                            \
            most = fmax(most, high[lane / LANES][lane % LANES]);                                                             \
        }                                                                                                                    \
        const int constant = least == most && !isnan(total);                                                                 \
        const double mean = constant ? least : total / weight_sum;                                                           \
        int exponent = 0; /* scaling by a power of two is exact, and keeps squares in the range of float64 */                \
        if (isfinite(mean))                                                                                                  \
            frexp(fmax(most - mean, mean - least), &exponent);                                                               \
        exponent = exponent < -1000 ? -1000 : exponent > 1000 ? 1000 : exponent;                                             \
        const Lanes means = zero + mean, scales = zero + ldexp(1.0, -exponent);                                              \
        for (Index begin = 0; begin < n && !constant; begin += CHUNK) {                                                      \
            const Index end = begin + CHUNK < n ? begin + CHUNK : n;                                                         \
            Lanes sums[2] = {zero, zero};                                                                                    \
            EACH_OBSERVATION(type, begin, end, ADD_SQUARE);                                                                  \
            squares += FOLD(sums[0], sums[1]);                                                                               \
        }                                                                                                                    \
        found[0] = mean;                                                                                                     \
        found[step] = ldexp(sqrt(squares), exponent);                                                                        \
        found[2 * step] = least;                                                                                             \
        found[3 * step] = most;                                                                                              \
    }                                                                                                                        \
    target static void name(const char *row, Index n, const double *weights, double weight_sum, double *found, Index step)   \
    {                                                                                                                        \
        if (weights)                                                                                                         \
            name##_of(row, n, weights, weight_sum, found, step, 1);                                                          \
        else                                                                                                                 \
            name##_of(row, n, NULL, weight_sum, found, step, 0);                                                             \
    }

typedef void Moments(const char *row, Index n, const double *weights, double weight_sum, double *found, Index step);

DEFINE_MOMENTS(plain_f, Floats, )
DEFINE_MOMENTS(plain_d, Doubles, )
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
DEFINE_MOMENTS(avx2_f, Floats, AVX2)
DEFINE_MOMENTS(avx2_d, Doubles, AVX2)
static Moments *const KINDS[2][2] = {{plain_f, plain_d}, {avx2_f, avx2_d}};
#else
static Moments *const KINDS[2][2] = {{plain_f, plain_d}, {plain_f, plain_d}};
#endif

/* Fills out (4, c) with mean, centred norm, minimum and maximum of each row, weighted unless `weights` is None. */
PyObject *moments(struct arguments *a, PyObject *given)
{
    PyObject *rows, *weights, *out;
    if (!PyArg_ParseTuple(given, "OOO", &rows, &weights, &out))
        return NULL;
    const Py_buffer *matrix = open_array(a, rows, "rows", "fd", 2, 0);
    const Index count = matrix ? matrix->shape[0] : 0, n = matrix ? matrix->shape[1] : 0;
    const double *each = weights == Py_None ? NULL : DOUBLES(a, weights, n, READ);
    double *found = DOUBLES(a, out, 4 * count, WRITE), weight_sum = each ? 0.0 : (double)n;
    if (a->failed)
        return NULL;
    Moments *const of = KINDS[has_avx2()][matrix->itemsize == 8];
    Py_BEGIN_ALLOW_THREADS
    for (Index i = 0; each && i < n; i++)
        weight_sum += each[i];
    for (Index i = 0; i < count; i++)
        of((const char *)matrix->buf + i * matrix->strides[0], n, each, weight_sum, found + i, count);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
