/* Products of standardised columns from products of raw columns, in one pass: NumPy needs three, slow ones for few vectors. Entry by
 * entry in the order of Standardisation.apply, hence the same bits. */

#include "native.h"

static PyObject *standardise(PyObject *module, PyObject *arguments)
{
    PyObject *given[6];
    struct arrays arrays = {.count = 0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5]))
        return NULL;
    const Py_buffer *products = open_array(&arrays, given[0], "products", "d", 2, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const Py_buffer *mean = open_array(&arrays, given[1], "mean", "d", 1, PyBUF_C_CONTIGUOUS);
    const Py_buffer *scale = open_array(&arrays, given[2], "scale", "d", 1, PyBUF_C_CONTIGUOUS);
    const Py_buffer *wide = open_array(&arrays, given[3], "wide", "?", 1, PyBUF_C_CONTIGUOUS);
    const Py_buffer *sums = open_array(&arrays, given[4], "sums", "d", 1, PyBUF_C_CONTIGUOUS);
    const Py_buffer *wide_sums = open_array(&arrays, given[5], "wide_sums", "d", 1, PyBUF_C_CONTIGUOUS);
    if (arrays.failed)
        return close_arrays(&arrays);
    const Py_ssize_t n = products->shape[0], m = products->shape[1];
    if (mean->shape[0] != n || scale->shape[0] != n || wide->shape[0] != n || sums->shape[0] != m || wide_sums->shape[0] != m) {
        PyErr_SetString(PyExc_ValueError, "shapes do not fit: expected products (c, m), mean, scale and wide (c,), sums (m,) twice");
        arrays.failed = 1;
        return close_arrays(&arrays);
    }
    Py_BEGIN_ALLOW_THREADS
    double *restrict out = products->buf;
    for (Py_ssize_t i = 0; i < n; i++, out += m) {
        const double *restrict chosen = ((const char *)wide->buf)[i] ? wide_sums->buf : sums->buf;
        const double shift = ((const double *)mean->buf)[i], factor = ((const double *)scale->buf)[i];
        for (Py_ssize_t j = 0; j < m; j++)
            out[j] = (out[j] - shift * chosen[j]) * factor;
    }
    Py_END_ALLOW_THREADS
    return close_arrays(&arrays);
}

PyDoc_STRVAR(standardise_doc, "standardise(products, mean, scale, wide, sums, wide_sums, /)\n--\n\n"
                              "Replace products[i, j] by (products[i, j] - mean[i] * sums[j]) * scale[i]; with wide_sums where wide[i].");

PyMethodDef standardise_methods[] = {
    {"standardise", standardise, METH_VARARGS, standardise_doc},
    {NULL, NULL, 0, NULL},
};
