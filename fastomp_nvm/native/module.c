/* The extension module: its only initialisation function, and the array arguments that its files share. */

#include "native.h"
#include "objectives.h"

#include <string.h>

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

const Py_buffer *open_array(struct arrays *arrays, PyObject *given, const char *name, const char *formats, int ndim, int flags)
{
    if (arrays->failed)
        return NULL;
    Py_buffer *view = &arrays->views[arrays->count];
    arrays->failed = 1;
    if (PyObject_GetBuffer(given, view, PyBUF_STRIDES | PyBUF_FORMAT | flags) < 0) {
        PyErr_Format(PyExc_ValueError, "%s is not a%s%s buffer", name, flags & PyBUF_WRITABLE ? " writable" : "",
                     flags & PyBUF_C_CONTIGUOUS & ~PyBUF_STRIDES ? " C-contiguous" : "");
        return NULL;
    }
    arrays->count++;
    if (view->ndim != ndim)
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions: expected %d", name, view->ndim, ndim);
    else if (!strchr(formats, format_letter(view)))
        PyErr_Format(PyExc_ValueError, "%s has element format %s: expected one of %s, native", name, view->format, formats);
    else if (ndim == 2 && view->shape[0] > 0 && view->shape[1] > 1 && view->strides[1] != view->itemsize)
        PyErr_Format(PyExc_ValueError, "the rows of %s are not contiguous: their entries are %zd bytes apart", name, view->strides[1]);
    else
        arrays->failed = 0;
    return arrays->failed ? NULL : view;
}

PyObject *close_arrays(struct arrays *arrays)
{
    while (arrays->count)
        PyBuffer_Release(&arrays->views[--arrays->count]);
    return arrays->failed ? NULL : Py_NewRef(Py_None);
}

static int fill_module(PyObject *module)
{
    PyMethodDef *const tables[] = {glm_methods, gram_methods, greedy_methods, guard_methods, key_methods, moment_methods,
                                   read_methods, standardise_methods, sweep_methods};
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        if (PyModule_AddFunctions(module, tables[k]) < 0)
            return -1;
    return find_blas() < 0 ? -1 : prepare_sweeps(module);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.native._native",
    .m_doc = "The compiled parts of fastomp; each has a reference in Python.",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
