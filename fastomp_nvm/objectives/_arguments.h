/* Arguments of Python that the modules behind _newton.c have in common: columns, and the arrays of a fit. */

#ifndef FASTOMP_ARGUMENTS_H
#define FASTOMP_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>

#include "_prefixes.h"

static inline Py_ssize_t doubles(const Py_buffer *buffer)
{
    return buffer->len / (Py_ssize_t)sizeof(double);
}

/* Opens rows and fills x. Returns 0, or -1 with an exception set. */
static inline int open_columns(PyObject *rows, const Py_buffer *places, const Py_buffer *mean, const Py_buffer *scale,
                        const Py_buffer *wide, Py_buffer *view, struct columns *x)
{
    if (PyObject_GetBuffer(rows, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return -1;
    const uint16_t one = 1;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == (*(const char *)&one ? '<' : '>')) /* native, however it is said */
        format++;
    const Py_ssize_t count = places->len / (Py_ssize_t)sizeof(int64_t);
    int fits = view->ndim == 2 && view->shape[1] < INT_MAX && (view->shape[1] < 2 || view->strides[1] == view->itemsize) &&
               (format[0] == 'f' || format[0] == 'd') && !format[1] && !((uintptr_t)view->buf % (size_t)view->itemsize) &&
               (view->shape[0] < 2 || view->strides[0] % view->itemsize == 0) && count < INT_MAX && doubles(mean) == count &&
               doubles(scale) == count && wide->len == count;
    for (Py_ssize_t i = 0; fits && i < count; i++)
        fits = ((const int64_t *)places->buf)[i] >= 0 && ((const int64_t *)places->buf)[i] < view->shape[0];
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the columns do not fit each other: expected aligned float32 or float64 rows (r, n), int64 "
                                          "(c,) below r, float64 (c,) twice, and bool (c,)");
        PyBuffer_Release(view);
        return -1;
    }
    float *single = format[0] == 'f' ? PyMem_RawMalloc((size_t)(view->shape[1] + 1) * sizeof(float)) : NULL;
    if (format[0] == 'f' && !single) {
        PyErr_NoMemory();
        PyBuffer_Release(view);
        return -1;
    }
    *x = (struct columns){view->buf,   view->strides[0], format[0],  (int)count, (int)view->shape[1],
                          places->buf, mean->buf,        scale->buf, wide->buf,  single};
    return 0;
}

static inline void close_columns(struct columns *x, Py_buffer *view)
{
    PyMem_RawFree(x->single);
    PyBuffer_Release(view);
}

/* Whether the arrays of a fit fit each other, and what is known (or NULL). */
static inline int fit_is_sound(const Py_buffer *design, const Py_buffer *response, const Py_buffer *weights, const Py_buffer *known,
                        const Py_buffer *beta, const Py_buffer *eta, const Py_buffer *residual, const Py_buffer *factor)
{
    const Py_ssize_t n = doubles(response), d = doubles(beta), size = known ? (Py_ssize_t)sqrt((double)doubles(known)) : 0;
    return n >= 1 && d >= 1 && n < INT_MAX && d < INT_MAX && doubles(design) == n * d && weights->len == response->len &&
           eta->len == response->len && residual->len == response->len && doubles(factor) == d * d && size <= d &&
           (!known || doubles(known) == size * size);
}

#define FIT_MESSAGE                                                                                                                \
    "the arrays do not fit each other: expected float64 of (d, n), (n,), (n,), (s, s), (d,), (n,), (n,), (d, d) with s at most d"

#endif
