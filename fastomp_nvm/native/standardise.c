/* Products of standardised columns from products of raw columns, in one pass: NumPy needs three, slow ones for few vectors. Entry by
 * entry in the order of Standardisation.apply, hence the same bits. */

#include "native.h"

/* Replaces products[i, j] by (products[i, j] - mean[i] * sums[j]) * scale[i]; with wide_sums where wide[i]. */
PyObject *standardise(struct arguments *a, PyObject *given)
{
    PyObject *products, *mean, *scale, *wide, *sums, *wide_sums;
    if (!PyArg_ParseTuple(given, "OOOOOO", &products, &mean, &scale, &wide, &sums, &wide_sums))
        return NULL;
    const Py_ssize_t n = length_of(a, mean), m = length_of(a, sums);
    double *restrict out = DOUBLES(a, products, n * m, WRITE);
    const double *shifts = DOUBLES(a, mean, n, READ), *factors = DOUBLES(a, scale, n, READ);
    const double *narrow_sums = DOUBLES(a, sums, m, READ), *float64_sums = DOUBLES(a, wide_sums, m, READ);
    const char *is_wide = BOOLS(a, wide, n, READ);
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++, out += m) {
        const double *restrict chosen = is_wide[i] ? float64_sums : narrow_sums;
        const double shift = shifts[i], factor = factors[i];
        for (Py_ssize_t j = 0; j < m; j++)
            out[j] = (out[j] - shift * chosen[j]) * factor;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
