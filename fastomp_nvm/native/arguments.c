/* Arrays that Python passes in, and work space, for the length of one call. */

#include "native.h"

#include <limits.h>
#include <string.h>

const Py_buffer *open_buffer(struct arguments *a, PyObject *given, const char *name, int flags)
{
    Py_buffer *view = &a->views[a->n_views];
    if (a->failed)
        return NULL;
    if (PyObject_GetBuffer(given, view, flags) < 0) {
        PyErr_Format(PyExc_ValueError, "%s is not a%s%s buffer", name, flags & PyBUF_WRITABLE ? " writable" : "",
                     flags & PyBUF_C_CONTIGUOUS & ~PyBUF_STRIDES ? " C-contiguous" : "");
        a->failed = 1;
        return NULL;
    }
    a->n_views++;
    return view;
}

void *array(struct arguments *a, PyObject *given, const char *name, const char *formats, Py_ssize_t count, size_t size, int access)
{
    const Py_buffer *view = open_buffer(a, given, name, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access);
    if (view && !strchr(formats, format_letter(view))) { /* objects have the size of numbers, and must not be overwritten */
        a->failed = 1;
        PyErr_Format(PyExc_ValueError, "%s has element format %s: expected one of %s, native", name, view->format, formats);
    } else if (view && (view->itemsize != (Py_ssize_t)size || view->len != count * (Py_ssize_t)size)) {
        a->failed = 1;
        PyErr_Format(PyExc_ValueError, "the arrays do not fit each other: %s has %zd entries of %zd bytes, expected %zd of %zu", name,
                     view->itemsize ? view->len / view->itemsize : 0, view->itemsize, count, size);
    }
    return a->failed ? NULL : view->buf;
}

char format_letter(const Py_buffer *view)
{
    const char native = PY_LITTLE_ENDIAN ? '<' : '>';
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == '^' || *format == native) /* '=' and '^': an unaligned array of NumPy */
        format++;
    if (!*format || format[1])
        return ' ';
    if (strchr("lqLQ", *format))
        return view->itemsize != 8 ? ' ' : *format == 'l' ? 'q' : *format == 'L' ? 'Q' : *format;
    return *format;
}

const Py_buffer *open_array(struct arguments *a, PyObject *given, const char *name, const char *formats, int ndim, int flags)
{
    const Py_buffer *view = open_buffer(a, given, name, PyBUF_STRIDES | PyBUF_FORMAT | (flags & ~EITHER_LAYOUT));
    if (!view)
        return NULL;
    a->failed = 1;
    if (view->ndim != ndim)
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions: expected %d", name, view->ndim, ndim);
    else if (!strchr(formats, format_letter(view)))
        PyErr_Format(PyExc_ValueError, "%s has element format %s: expected one of %s, native", name, view->format, formats);
    else if (ndim == 2 && view->shape[0] > 0 && view->shape[1] > 1 && view->strides[1] != view->itemsize
             && !(flags & EITHER_LAYOUT && (view->shape[0] == 1 || view->strides[0] == view->itemsize)))
        PyErr_Format(PyExc_ValueError, "the rows of %s are not contiguous: their entries are %zd bytes apart", name, view->strides[1]);
    else
        a->failed = 0;
    return a->failed ? NULL : view;
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
