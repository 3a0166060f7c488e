/* The rows of a call and their two layouts, shared by sweeps, moments and gathers.
 *
 * The matrix of a call has shape (rows, observations). Its rows are contiguous, or *interleaved*: the rows of a transposed view of an
 * (observations, rows) array in C order, whose entries for one observation lie side by side. */

#ifndef FASTOMP_ROWS_H
#define FASTOMP_ROWS_H

#include "native.h"

typedef Py_ssize_t Index;

/* All rows of `matrix`, or those named by `index` (NULL if absent), in its order. */
struct rows {
    const Py_buffer *matrix, *index;
    Index count;
};

/* Element types of rows, as letters of the struct module. */
#define ROW_FORMATS "efd?bBhHiIqQ"

/* Opens rows, and index unless it is None, and checks that all row numbers exist; otherwise sets `failed`. */
void open_rows(struct arguments *a, PyObject *matrix, PyObject *index, struct rows *rows);

const char *row_at(const struct rows *rows, Index i);

/* Returns 1 where the rows are interleaved: their entries are strides[1] bytes apart, and row i + 1 follows row i. */
int interleaved(const Py_buffer *matrix);

/* Copies `count` entries that are `step` bytes apart to a contiguous array, converted. */
typedef void Take(const char *from, Index step, Index count, void *to);

/* Returns the function that takes entries of one format as another, NULL where there is none: every format of rows as itself and
 * as 'd'. */
Take *take_as(char from, char to);

struct strips;

/* Adds to out (row stride out_stride) the dots of the strips with n_residuals packed residual chunks. */
typedef void Tile(const struct strips *strips, const char *panel, Index n_residuals, void *out, Index out_stride);

/* Adds to sums, [residual][lane][vectors of columns], the products of `length` observations, `stride` bytes apart, and packed residual
 * chunks. Observation i belongs to lane i % (numbers in a vector). */
typedef void Across(const char *entries, Index stride, Index vectors, Index length, const char *panel, Index n_residuals, char *sums);

/* Writes `length` genotypes of a row in codes of two bits to floats, or to doubles where not `single`; values[code] is what a code
 * stands for. */
void unpack(const char *codes, Index length, const double *values, int single, void *to);

/* out[i, j] = rows[i] . residuals[j], opened, with work space. */
struct products {
    const struct rows *rows;
    const Py_buffer *residuals, *out;
    Take *take;      /* converts a chunk of rows; NULL: entries are used as they are, except columns less than a vector */
    const double *values; /* of the four codes of each row, where rows are codes of genotypes (uint8); else NULL */
    Tile *tile;      /* for contiguous rows */
    Across *across;  /* for interleaved rows, else NULL */
    char *panel;     /* packed chunks of residuals */
    char *sums;      /* of one strip of interleaved rows */
    char *converted; /* a chunk of a strip */
};

/* Opens residuals and out and checks that they fit the rows; otherwise sets `failed`. `plain`: without AVX2. `values`: see above. */
void open_products(struct arguments *a, const struct rows *rows, PyObject *residuals, PyObject *out, int plain, const double *values,
                   struct products *p);

/* Fills out for the rows `first` to `end`. */
void multiply(const struct products *p, Index first, Index end);

#endif
