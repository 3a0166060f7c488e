/* Arrays that Python passes in, and work space, for the length of one call. */

#include "objectives.h"

#include <limits.h>

void *array(struct arguments *a, PyObject *given, const char *name, Py_ssize_t count, size_t size, int access)
{
    Py_buffer *view = &a->views[a->n_views];
    if (a->failed || PyObject_GetBuffer(given, view, PyBUF_SIMPLE | access) < 0) {
        a->failed = 1;
        return NULL;
    }
    a->n_views++;
    if (view->itemsize != (Py_ssize_t)size || view->len != count * (Py_ssize_t)size) {
        a->failed = 1;
        PyErr_Format(PyExc_ValueError, "the arrays do not fit each other: %s has %zd entries of %zd bytes, expected %zd of %zu", name,
                     view->itemsize ? view->len / view->itemsize : 0, view->itemsize, count, size);
    }
    return a->failed ? NULL : view->buf;
}

int length_of(struct arguments *a, PyObject *given)
{
    const Py_ssize_t length = a->failed ? 0 : PyObject_Length(given);
    if (length < 0)
        a->failed = 1;
    require(a, length < INT_MAX, "an array is too long");
    return a->failed ? 0 : (int)length;
}

void *space(struct arguments *a, size_t count, size_t size)
{
    void *block = a->failed ? NULL : PyMem_RawMalloc((count + 1) * size);
    if (block)
        a->blocks[a->n_blocks++] = block;
    else if (!a->failed) {
        a->failed = 1;
        PyErr_NoMemory();
    }
    return block;
}

void require(struct arguments *a, int fits, const char *what)
{
    if (!a->failed && !fits) {
        a->failed = 1;
        PyErr_Format(PyExc_ValueError, "the arrays do not fit each other: %s", what);
    }
}

void release(struct arguments *a)
{
    while (a->n_views)
        PyBuffer_Release(&a->views[--a->n_views]);
    while (a->n_blocks)
        PyMem_RawFree(a->blocks[--a->n_blocks]);
}
