/* Products of standardised columns with vectors, and columns standardised on the way. */

#include "objectives.h"

#include <limits.h>

/* ---- Dot products: their bits depend on the row and the vector alone ---------------------------------------------------------- */

/* Lanes are summed separately, so that the sums are the same whether the processor adds four numbers at a time or two. */
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float FourSingle __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef double EightWide __attribute__((vector_size(64)));
#define DOUBLE(FROM) (*(const Four *)(FROM))
#define WIDENED(FROM) __builtin_convertvector(*(const FourSingle *)(FROM), Four)
#define SINGLE(FROM) (*(const Eight *)(FROM))
#define FETCH(FROM) __builtin_prefetch(FROM)

/* Rows of up to this many bytes are prefetched while the one before is multiplied: they lie scattered, and hardware prefetches the
 * next lines of a row, not the next row. */
#define FETCHED_BYTES 16384

#define SINGLES 32  /* numbers per step of dot_fast */
#define CARRIED 512 /* numbers, a multiple of SINGLES, after which its sums are carried over to float64 */

/* Both in float32, as in sweeps: half the bytes, and twice as many at a time. */
WIDE static double dot_fast(int n, const float *row, const float *vector, const float *next)
{
    double sum = 0.0;
    int i = 0;
    while (i + SINGLES <= n) {
        const int whole = n - i < CARRIED ? (n - i) / SINGLES * SINGLES : CARRIED, end = i + whole;
        Eight a = {0}, b = {0}, c = {0}, d = {0};
        for (; i < end; i += SINGLES) {
            FETCH(next + i);
            FETCH(next + i + 16);
            a += SINGLE(row + i) * SINGLE(vector + i);
            b += SINGLE(row + i + 8) * SINGLE(vector + i + 8);
            c += SINGLE(row + i + 16) * SINGLE(vector + i + 16);
            d += SINGLE(row + i + 24) * SINGLE(vector + i + 24);
        }
        const EightWide all = __builtin_convertvector((a + b) + (c + d), EightWide);
        sum += ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
    }
    for (; i < n; i++)
        sum += (double)row[i] * (double)vector[i];
    return sum;
}

#define DOT(NAME, ROW, LOADED)                                                                                                     \
    WIDE static double NAME(int n, const ROW *row, const double *vector, const ROW *next)                                         \
    {                                                                                                                              \
        Four a = {0}, b = {0}, c = {0}, d = {0};                                                                                   \
        int i = 0;                                                                                                                 \
        for (; i + 16 <= n; i += 16) {                                                                                             \
            FETCH(next + i);                                                                                                       \
            FETCH(next + i + 8);                                                                                                   \
            a += LOADED(row + i) * DOUBLE(vector + i);                                                                             \
            b += LOADED(row + i + 4) * DOUBLE(vector + i + 4);                                                                     \
            c += LOADED(row + i + 8) * DOUBLE(vector + i + 8);                                                                     \
            d += LOADED(row + i + 12) * DOUBLE(vector + i + 12);                                                                   \
        }                                                                                                                          \
        a = (a + b) + (c + d);                                                                                                     \
        double sum = (a[0] + a[1]) + (a[2] + a[3]);                                                                                \
        for (; i < n; i++)                                                                                                         \
            sum += (double)row[i] * vector[i];                                                                                     \
        return sum;                                                                                                                \
    }
DOT(dot_single, float, WIDENED)
DOT(dot_double, double, DOUBLE)

double sum_of(int n, const double *vector)
{
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    int i = 0;
    for (; i + 4 <= n; i += 4) { /* independent sums: no addition waits for the one before */
        a += vector[i];
        b += vector[i + 1];
        c += vector[i + 2];
        d += vector[i + 3];
    }
    for (; i < n; i++)
        a += vector[i];
    return (a + b) + (c + d);
}

/* Fills out with a vector in float32; returns the sum of these. */
static double rounded(int n, const double *vector, float *out)
{
    double sums[2] = {0.0, 0.0};
    for (int i = 0; i < n; i++) {
        out[i] = (float)vector[i];
        sums[i % 2] += (double)out[i];
    }
    return sums[0] + sums[1];
}

void products(const struct columns *x, const double *vector, double *out, int step)
{
    const double sum = sum_of(x->n, vector), single_sum = x->single ? rounded(x->n, vector, x->single) : 0.0;
    const size_t row_bytes = (size_t)x->n * (x->kind == 'd' ? sizeof(double) : sizeof(float));
    const int fetched = row_bytes <= FETCHED_BYTES;
    for (int i = 0; i < x->count; i++) {
        const char *row = x->rows + x->places[i] * x->stride;
        const char *next = x->rows + x->places[fetched && i + 1 < x->count ? i + 1 : i] * x->stride;
        double raw, total = sum;
        if (x->kind == 'd')
            raw = dot_double(x->n, (const double *)row, vector, (const double *)next);
        else if (x->wide[i])
            raw = dot_single(x->n, (const float *)row, vector, (const float *)next);
        else {
            raw = dot_fast(x->n, (const float *)row, x->single, (const float *)next);
            total = single_sum;
        }
        out[(size_t)i * (size_t)step] = (raw - x->mean[i] * total) * x->scale[i];
    }
}

/* ---- Standardised columns: the bits are NumPy's ------------------------------------------------------------------------------- */

WIDE void standardised(const struct columns *x, int64_t position, double *restrict out)
{
    const char *row = x->rows + x->places[position] * x->stride;
    const double mean = x->mean[position], scale = x->scale[position];
    if (x->kind == 'f')
        for (int j = 0; j < x->n; j++)
            out[j] = ((double)((const float *)row)[j] - mean) * scale;
    else
        for (int j = 0; j < x->n; j++)
            out[j] = (((const double *)row)[j] - mean) * scale;
}

WIDE void standardised_times(const struct columns *x, int64_t position, const double *restrict factors, float *restrict out)
{
    const char *row = x->rows + x->places[position] * x->stride;
    const double mean = x->mean[position], scale = x->scale[position];
    if (x->kind == 'f')
        for (int j = 0; j < x->n; j++)
            out[j] = (float)((((double)((const float *)row)[j] - mean) * scale) * factors[j]);
    else
        for (int j = 0; j < x->n; j++)
            out[j] = (float)(((((const double *)row)[j] - mean) * scale) * factors[j]);
}

/* ---- From Python ------------------------------------------------------------------------------------------------------------ */

void open_columns(struct arguments *a, PyObject *given, struct columns *x)
{
    PyObject *rows, *places, *mean, *scale, *wide;
    if (a->failed || !PyArg_ParseTuple(given, "OOOOO", &rows, &places, &mean, &scale, &wide)) {
        a->failed = 1;
        return;
    }
    x->count = length_of(a, places);
    x->places = WORDS(a, places, x->count, WRITE);
    x->mean = DOUBLES(a, mean, x->count, WRITE);
    x->scale = DOUBLES(a, scale, x->count, WRITE);
    x->wide = BOOLS(a, wide, x->count, WRITE);
    const Py_buffer *view = open_array(a, rows, "rows", "fd", 2, READ);
    if (!view)
        return;
    require(a, view->shape[1] < INT_MAX && !((uintptr_t)view->buf % (size_t)view->itemsize) && !(view->strides[0] % view->itemsize),
            "rows are too long or not aligned");
    for (int i = 0; !a->failed && i < x->count; i++)
        require(a, x->places[i] >= 0 && x->places[i] < view->shape[0], "a place is out of range");
    if (a->failed)
        return;
    x->rows = view->buf, x->stride = view->strides[0], x->kind = format_letter(view), x->n = (int)view->shape[1];
    x->single = x->kind == 'f' ? space(a, (size_t)x->n, sizeof(float)) : NULL;
}
