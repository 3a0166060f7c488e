/* Columns picked by number, standardised on the way, and products of raw columns that become those of standardised ones: what NumPy
 * does in three passes over memory that is made for each.
 *
 * out[i][j] = (rows[index[i]][j] - mean[i]) * scale[i], times factors[j] where there are any. Every entry by itself, in float64 and
 * in this order, and rounded once to what out holds: the bits are NumPy's. So are those of products. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#include "_filling.h"
#include "_wide.h"

/* Returns 'f' or 'd' for aligned rows of these types whose entries lie side by side, else 0. */
static char kind_of(const Py_buffer *view)
{
    const uint16_t one = 1;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == (*(const char *)&one ? '<' : '>')) /* native, however it is said */
        format++;
    if (view->ndim != 2 || (view->shape[1] > 1 && view->strides[1] != view->itemsize) || format[1] != '\0' ||
        (format[0] != 'f' && format[0] != 'd') || (uintptr_t)view->buf % (size_t)view->itemsize ||
        (view->shape[0] > 1 && view->strides[0] % view->itemsize))
        return 0;
    return format[0];
}

static PyObject *fill(PyObject *module, PyObject *arguments)
{
    PyObject *given_rows, *given_out, *result = NULL;
    Py_buffer rows, out, index, mean, scale, factors;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy*y*y*z*O", &given_rows, &index, &mean, &scale, &factors, &given_out))
        return NULL;
    if (PyObject_GetBuffer(given_rows, &rows, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        goto release_arguments;
    if (PyObject_GetBuffer(given_out, &out, PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE) < 0)
        goto release_rows;
    const char from = kind_of(&rows), to = kind_of(&out);
    const Py_ssize_t count = index.len / (Py_ssize_t)sizeof(int64_t), entry = (Py_ssize_t)sizeof(double);
    const int64_t *places = index.buf;
    const double *means = mean.buf, *scales = scale.buf;
    int fits = from && to && out.shape[0] == count && out.shape[1] == rows.shape[1] && mean.len == count * entry &&
               scale.len == count * entry && (!factors.buf || factors.len == rows.shape[1] * entry);
    for (Py_ssize_t i = 0; fits && i < count; i++)
        fits = places[i] >= 0 && places[i] < rows.shape[0];
    if (fits) {
        Fill *one = filling(from, to);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            one(rows.shape[1], (const char *)rows.buf + places[i] * rows.strides[0], means[i], scales[i], factors.buf,
                (char *)out.buf + i * out.strides[0]);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected aligned float32 or float64 rows (r, n), int64 "
                                          "(c,) below r, float64 (c,) and (c,), float64 (n,) or None, and float32 or float64 (c, n)");
    PyBuffer_Release(&out);
release_rows:
    PyBuffer_Release(&rows);
release_arguments:
    PyBuffer_Release(&index);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&scale);
    if (factors.buf)
        PyBuffer_Release(&factors);
    return result;
}

PyDoc_STRVAR(fill_doc, "fill(rows, index, mean, scale, factors, out, /)\n--\n\n"
                       "Fill out[i] with (rows[index[i]] - mean[i]) * scale[i], times factors unless that is None.");

/* n x m products; sums are those of the m vectors, as columns that are wide or not saw them. */
WIDE static void apply_to(Py_ssize_t n, Py_ssize_t m, double *restrict products, const double *restrict mean,
                          const double *restrict scale, const char *restrict wide, const double *restrict sums,
                          const double *restrict wide_sums)
{
    if (m == 1) {
        for (Py_ssize_t i = 0; i < n; i++)
            products[i] = (products[i] - mean[i] * (wide[i] ? wide_sums[0] : sums[0])) * scale[i];
        return;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const double *chosen = wide[i] ? wide_sums : sums;
        for (Py_ssize_t j = 0; j < m; j++)
            products[i * m + j] = (products[i * m + j] - mean[i] * chosen[j]) * scale[i];
    }
}

static PyObject *apply(PyObject *module, PyObject *arguments)
{
    Py_buffer products, mean, scale, wide, sums, wide_sums;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*y*y*y*y*y*", &products, &mean, &scale, &wide, &sums, &wide_sums))
        return NULL;
    const Py_ssize_t entry = (Py_ssize_t)sizeof(double), n = wide.len, m = sums.len / entry;
    if (mean.len == n * entry && scale.len == n * entry && wide_sums.len == m * entry && products.len == n * m * entry) {
        Py_BEGIN_ALLOW_THREADS
        apply_to(n, m, products.buf, mean.buf, scale.buf, wide.buf, sums.buf, wide_sums.buf);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c, m), (c,), (c,), bool of (c,), and "
                                          "float64 of (m,) twice");
    PyBuffer_Release(&products);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&wide);
    PyBuffer_Release(&sums);
    PyBuffer_Release(&wide_sums);
    return result;
}

PyDoc_STRVAR(apply_doc, "apply(products, mean, scale, wide, sums, wide_sums, /)\n--\n\n"
                        "Make products[i, j] (products[i, j] - mean[i] * sums[j]) * scale[i], with wide_sums where wide[i].");

static PyMethodDef METHODS[] = {
    {"apply", apply, METH_VARARGS, apply_doc},
    {"fill", fill, METH_VARARGS, fill_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm._standardise",
    .m_doc = "Rows, and products of rows, standardised in C.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__standardise(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
