/* Steps of an ingest that touch every value: pieces of rows from a file, transposition, and codes of the int8 tier. */

#define _FILE_OFFSET_BITS 64
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define AHEAD (4 << 20)   /* bytes that the kernel is asked to read before they are copied: keeps many requests in flight */
#define SCRATCH (1 << 19) /* bytes that are read and then transposed in the cache */
#define SIDE 16           /* of the squares that are transposed: a cache line of float32 */
#define STEP (1 << 13)    /* observations whose squared remainders are added up by themselves: the buffer of NumPy's einsum */

/* Reads `bytes` at `offset`. Returns 0, an errno, or -1 at the end of the file. */
static int read_exactly(int descriptor, char *out, size_t bytes, off_t offset)
{
    while (bytes) {
        const ssize_t count = pread(descriptor, out, bytes, offset);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? errno : -1;
        out += count, bytes -= (size_t)count, offset += count;
    }
    return 0;
}

/* Defines a function that writes values[r][c] to out[c][r], strides in bytes. */
#define DEFINE_TRANSPOSE(name, from, to)                                                                                     \
    static void name(const char *values, Py_ssize_t down, Py_ssize_t right, char *out, Py_ssize_t pitch, Py_ssize_t rows,    \
                     Py_ssize_t columns)                                                                                     \
    {                                                                                                                        \
        for (Py_ssize_t left = 0; left < columns; left += SIDE)                                                              \
            for (Py_ssize_t top = 0; top < rows; top += SIDE) {                                                              \
                const Py_ssize_t width = columns - left < SIDE ? columns - left : SIDE;                                      \
                const Py_ssize_t height = rows - top < SIDE ? rows - top : SIDE;                                             \
                const char *source = values + top * down + left * right;                                                     \
                if (height == SIDE && right == sizeof(from))                                                                 \
                    for (Py_ssize_t c = 0; c < width; c++) {                                                                 \
                        to *line = (to *)(out + (left + c) * pitch) + top;                                                   \
                        __builtin_prefetch(source + (c + 2 * SIDE) * down);                                                  \
                        for (int r = 0; r < SIDE; r++)                                                                       \
                            line[r] = (to)((const from *)(source + r * down))[c];                                            \
                    }                                                                                                        \
                else                                                                                                         \
                    for (Py_ssize_t c = 0; c < width; c++)                                                                   \
                        for (Py_ssize_t r = 0; r < height; r++)                                                              \
                            ((to *)(out + (left + c) * pitch))[top + r] = (to) * (const from *)(source + r * down + c * right); \
            }                                                                                                                \
    }

DEFINE_TRANSPOSE(transpose_ff, float, float)
DEFINE_TRANSPOSE(transpose_fd, float, double)
DEFINE_TRANSPOSE(transpose_df, double, float)
DEFINE_TRANSPOSE(transpose_dd, double, double)

/* Fills out (columns, rows) with row i of a file, at offset + i * stride, as column i of out. */
PyObject *read_strip(struct arguments *a, PyObject *given)
{
    int descriptor, failed = 0;
    long long offset, stride;
    PyObject *out;
    if (!PyArg_ParseTuple(given, "iLLO", &descriptor, &offset, &stride, &out))
        return NULL;
    const Py_buffer *strip = open_array(a, out, "out", "fd", 2, WRITE);
    const Py_ssize_t item = strip ? strip->itemsize : 1, columns = strip ? strip->shape[0] : 0, rows = strip ? strip->shape[1] : 0;
    const Py_ssize_t bytes = columns * item, ahead = AHEAD / (bytes + 1) + 1;
    const Py_ssize_t batch = SIDE * (1 + SCRATCH / (SIDE * (bytes + 1)));
    char *scratch = space(a, (size_t)batch, (size_t)bytes);
    require(a, offset >= 0 && stride >= bytes && stride <= (LLONG_MAX - offset) / (rows + 1), "rows overlap, or are beyond any file");
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < ahead && i < rows; i++)
        posix_fadvise(descriptor, offset + i * stride, bytes, POSIX_FADV_WILLNEED);
    for (Py_ssize_t top = 0; top < rows && !failed; top += batch) {
        const Py_ssize_t height = rows - top < batch ? rows - top : batch;
        for (Py_ssize_t i = top; i < top + height && !failed; i++) {
            if (i + ahead < rows)
                posix_fadvise(descriptor, offset + (i + ahead) * stride, bytes, POSIX_FADV_WILLNEED);
            failed = read_exactly(descriptor, scratch + (i - top) * bytes, (size_t)bytes, offset + i * stride);
        }
        (item == 4 ? transpose_ff : transpose_dd)(scratch, bytes, item, (char *)strip->buf + top * item, strip->strides[0], height,
                                                  columns);
    }
    Py_END_ALLOW_THREADS
    if (failed < 0)
        return PyErr_Format(PyExc_EOFError, "the file ends before the rows do");
    errno = failed;
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : Py_NewRef(Py_None);
}

/* Writes values (rows, columns), float32 or float64 with any strides, to out (columns, rows), converted to its type. */
PyObject *transpose(struct arguments *a, PyObject *given)
{
    PyObject *values, *out;
    if (!PyArg_ParseTuple(given, "OO", &values, &out))
        return NULL;
    const Py_buffer *from = open_buffer(a, values, "values", PyBUF_STRIDES | PyBUF_FORMAT);
    const Py_buffer *to = open_array(a, out, "out", "fd", 2, WRITE);
    const char kind = a->failed ? ' ' : format_letter(from);
    require(a, (kind == 'f' || kind == 'd') && from->ndim == 2, "values must be a matrix of float32 or float64");
    require(a, a->failed || (from->shape[0] == to->shape[1] && from->shape[1] == to->shape[0]), "out has another shape");
    if (a->failed)
        return NULL;
    const Py_ssize_t item = from->itemsize, rows = from->shape[0], columns = from->shape[1];
    const int same = item == to->itemsize;
    Py_BEGIN_ALLOW_THREADS
    if (same && from->strides[0] == item)
        for (Py_ssize_t c = 0; c < columns; c++)
            memcpy((char *)to->buf + c * to->strides[0], (const char *)from->buf + c * from->strides[1], (size_t)(rows * item));
    else
        (item == 4 ? same ? transpose_ff : transpose_fd : same ? transpose_dd : transpose_df)(
            from->buf, from->strides[0], from->strides[1], to->buf, to->strides[0], rows, columns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

typedef double Pair __attribute__((vector_size(2 * sizeof(double))));
typedef double Lanes __attribute__((vector_size(4 * sizeof(double))));
typedef float float4 __attribute__((vector_size(4 * sizeof(float))));
typedef Lanes double4;
typedef int32_t Codes __attribute__((vector_size(4 * sizeof(int32_t))));
typedef uint32_t Squares __attribute__((vector_size(4 * sizeof(uint32_t)))); /* wraps where codes are no codes */
typedef int8_t Bytes __attribute__((vector_size(4)));

/* Adding and subtracting it rounds a float64 below 2^51 to the nearest integer, ties to even. */
#define ROUNDER 6755399441055744.0

/* Defines a function that quantises a row of n values. The remainders' squares are added in the order of NumPy's einsum: pairs, four
 * at a time from the last to the first; two sums of STEP observations at a time, the blocks of matrix/tier.py. */
#define DEFINE_QUANTISE(name, type, target)                                                                                  \
    target static void name(const void *values, Py_ssize_t n, double mean, double inverse, signed char *codes, double *size, \
                            double *rest)                                                                                    \
    {                                                                                                                        \
        const type *row = values;                                                                                            \
        uint64_t squares = 0;                                                                                                \
        double remainder = 0.0, block = 0.0;                                                                                 \
        for (Py_ssize_t begin = 0; begin < n; begin += STEP) {                                                               \
            const Py_ssize_t end = begin + STEP < n ? begin + STEP : n;                                                      \
            Pair sum = {0.0, 0.0};                                                                                           \
            Py_ssize_t i = begin;                                                                                            \
            Squares sizes = {0};                                                                                             \
            for (; i + 8 <= end; i += 8) {                                                                                   \
                type##4 some[2];                                                                                             \
                Lanes lost[2];                                                                                               \
                memcpy(some, row + i, sizeof some);                                                                          \
                for (int half = 0; half < 2; half++) {                                                                       \
                    const Lanes quotient = (__builtin_convertvector(some[half], Lanes) - mean) * inverse;                    \
                    const Lanes rounded = (quotient + ROUNDER) - ROUNDER;                                                    \
                    const Codes code = __builtin_convertvector(rounded, Codes);                                              \
                    const Bytes bytes = __builtin_convertvector(code, Bytes);                                                \
                    memcpy(codes + i + 4 * half, &bytes, sizeof bytes);                                                      \
                    sizes += (Squares)code * (Squares)code;                                                                  \
                    lost[half] = (quotient - rounded) * (quotient - rounded);                                                \
                }                                                                                                            \
                for (int half = 1; half >= 0; half--)                                                                        \
                    sum = (sum + (Pair){lost[half][2], lost[half][3]}) + (Pair){lost[half][0], lost[half][1]};               \
            }                                                                                                                \
            squares += (uint64_t)sizes[0] + sizes[1] + sizes[2] + sizes[3];                                                  \
            for (; i < end; i++) {                                                                                           \
                const double quotient = ((double)row[i] - mean) * inverse, rounded = (quotient + ROUNDER) - ROUNDER;         \
                const int code = (int)rounded;                                                                               \
                sum[(i - begin) % 2] += (quotient - rounded) * (quotient - rounded);                                         \
                codes[i] = (signed char)code;                                                                                \
                squares += (uint32_t)code * (uint32_t)code;                                                                  \
            }                                                                                                                \
            block += sum[0] + sum[1];                                                                                        \
            if (begin / STEP % 2 || end == n)                                                                                \
                remainder += block, block = 0.0;                                                                             \
        }                                                                                                                    \
        *size = (double)squares;                                                                                             \
        *rest = remainder;                                                                                                   \
    }

typedef void Quantise(const void *row, Py_ssize_t n, double mean, double inverse, signed char *codes, double *size, double *rest);

DEFINE_QUANTISE(plain_f, float, )
DEFINE_QUANTISE(plain_d, double, )
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
DEFINE_QUANTISE(avx2_f, float, AVX2)
DEFINE_QUANTISE(avx2_d, double, AVX2)
static Quantise *const KINDS[2][2] = {{plain_f, plain_d}, {avx2_f, avx2_d}};
#else
static Quantise *const KINDS[2][2] = {{plain_f, plain_d}, {plain_f, plain_d}};
#endif

/* Fills codes with rint((rows - mean) * inverse), size and rest with the squared norms of the codes and of what they leave. */
PyObject *quantise(struct arguments *a, PyObject *given)
{
    PyObject *rows, *mean, *inverse, *codes, *size, *rest;
    if (!PyArg_ParseTuple(given, "OOOOOO", &rows, &mean, &inverse, &codes, &size, &rest))
        return NULL;
    const Py_buffer *matrix = open_array(a, rows, "rows", "fd", 2, 0), *out = open_array(a, codes, "codes", "b", 2, WRITE);
    require(a, a->failed || (matrix->shape[0] == out->shape[0] && matrix->shape[1] == out->shape[1]), "codes has another shape");
    const Py_ssize_t count = a->failed ? 0 : matrix->shape[0], n = a->failed ? 0 : matrix->shape[1];
    const double *means = DOUBLES(a, mean, count, READ), *inverses = DOUBLES(a, inverse, count, READ);
    double *sizes = DOUBLES(a, size, count, WRITE), *rests = DOUBLES(a, rest, count, WRITE);
    if (a->failed)
        return NULL;
    Quantise *const of = KINDS[has_avx2()][matrix->itemsize == 8];
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        of((const char *)matrix->buf + i * matrix->strides[0], n, means[i], inverses[i],
           (signed char *)out->buf + i * out->strides[0], sizes + i, rests + i);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
