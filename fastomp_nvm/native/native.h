/* Shared by the files of the extension: the functions that Python calls, their array arguments, and work space. */

#ifndef FASTOMP_NATIVE_H
#define FASTOMP_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Functions of the module, with their parameters. */
#define FUNCTIONS(X)                                                                                                               \
    X(best, "gradient, pivot, smallest, open, /")                                                                                  \
    X(compact, "codes, mask, out, /")                                                                                              \
    X(count_codes, "codes, mask, out, /")                                                                                          \
    X(crc32, "data, start, way, /")                                                                                                \
    X(curvature, "design, roots, scaled, units, out, factor, above, /")                                                            \
    X(decode, "codes, people, values, out, /")                                                                                     \
    X(dots, "rows, index, residuals, out, plain, /")                                                                               \
    X(dots_codes, "codes, values, residuals, out, plain, /")                                                                       \
    X(follow, "gram, directions, size, column, gradient, pivot, /")                                                                \
    X(gather, "rows, index, out, /")                                                                                               \
    X(glm_rounds, "fit, has_factor, columns, gradient, in_model, rounds, /")                                                       \
    X(gradients, "columns, vectors, out, /")                                                                                       \
    X(gram_rounds, "gram, gradient, lengths, offsets, in_model, ridge, tolerance, rounds, /")                                      \
    X(greedy, "fit, has_factor, columns, open, taken, gains, tolerances, schedule, /")                                             \
    X(grow, "gram, at, directions, size, gradient, pivot, smallest, open, value, count, least, pursuit, /")                        \
    X(guard, "address, length, /")                                                                                                 \
    X(install_guard, "")                                                                                                           \
    X(likelihood, "family, eta, response, weights, coef, ridge, /")                                                                \
    X(lost, "address, length, /")                                                                                                  \
    X(maximise, "fit, known, settled, /")                                                                                          \
    X(moments, "rows, weights, out, residuals, products, plain, /")                                                                \
    X(quantise, "rows, mean, inverse, codes, size, rest, /")                                                                       \
    X(read_columns, "descriptor, offset, column_bytes, near_bytes, columns, places, out, buffer, /")                               \
    X(read_strip, "descriptor, offset, stride, out, /")                                                                            \
    X(roots, "family, eta, weights, out, /")                                                                                       \
    X(row_checksums, "rows, places, out, /")                                                                                       \
    X(standardise, "products, mean, scale, wide, sums, wide_sums, /")                                                              \
    X(transpose, "values, out, /")                                                                                                 \
    X(unguard, "address, /")

/* Buffers and work space of one call; module.c gives all of them back when the call ends. */
struct arguments {
    Py_buffer views[24];
    void *blocks[8];
    int n_views, n_blocks;
    int failed; /* an exception is set; every later array and block is NULL */
};

#define DECLARE(NAME, PARAMETERS) PyObject *NAME(struct arguments *a, PyObject *given);
FUNCTIONS(DECLARE)

enum { READ = 0, WRITE = PyBUF_WRITABLE };

/* A flag of open_array that no buffer has: rows may also be those of a transposed view. */
#define EITHER_LAYOUT (1 << 30)

/* Returns a buffer of these PyBUF flags, or NULL with `failed` set. */
const Py_buffer *open_buffer(struct arguments *a, PyObject *given, const char *name, int flags);

/* Returns the data of a C-contiguous array of `count` entries of one of these formats, of `size` bytes each, or NULL with `failed`
 * set. */
void *array(struct arguments *a, PyObject *given, const char *name, const char *formats, Py_ssize_t count, size_t size, int access);
#define DOUBLES(A, GIVEN, COUNT, ACCESS) ((double *)array(A, GIVEN, #GIVEN, "d", COUNT, sizeof(double), ACCESS))
#define FLOATS(A, GIVEN, COUNT, ACCESS) ((float *)array(A, GIVEN, #GIVEN, "f", COUNT, sizeof(float), ACCESS))
#define WORDS(A, GIVEN, COUNT, ACCESS) ((int64_t *)array(A, GIVEN, #GIVEN, "q", COUNT, sizeof(int64_t), ACCESS))
#define BOOLS(A, GIVEN, COUNT, ACCESS) ((char *)array(A, GIVEN, #GIVEN, "?", COUNT, 1, ACCESS))

/* Opens an array of `ndim` dimensions whose rows are contiguous, or columns with EITHER_LAYOUT. `formats` lists the accepted element types as letters of the struct
 * module, native byte order, 'q' and 'Q' for any integer of 8 bytes. `flags` may be PyBUF_WRITABLE and PyBUF_C_CONTIGUOUS.
 * Returns NULL with `failed` set where the argument is no such array. */
const Py_buffer *open_array(struct arguments *a, PyObject *given, const char *name, const char *formats, int ndim, int flags);

/* Returns the format letter of the elements, 'q' or 'Q' for any integer of 8 bytes, or ' ' for types without a letter. */
char format_letter(const Py_buffer *view);

/* Returns the length of the first dimension, below INT_MAX; 0 with `failed` set where there is none. */
int length_of(struct arguments *a, PyObject *given);

/* Returns uninitialised memory for `count` entries of `size` bytes, or NULL with `failed` set. */
void *space(struct arguments *a, size_t count, size_t size);

/* Sets ValueError unless `fits`. */
void require(struct arguments *a, int fits, const char *what);

/* Chooses the instruction set of the sweep kernels and adds their ids. Returns 0, or -1 with an exception set. */
int prepare_sweeps(PyObject *module);

/* Returns 1 where sweeps use AVX2, else 0; after prepare_sweeps. */
int has_avx2(void);

/* Chooses how checksums are computed. */
void prepare_checksums(void);

/* Finds the routines of BLAS and LAPACK. Returns 0, or -1 with ImportError set. */
int find_blas(void);

#endif
