/* The extension module: its only initialisation function, and what Python calls. */

#include "native.h"

/* Frees the work space and releases the buffers of a call. */
static void release(struct arguments *a)
{
    while (a->n_views)
        PyBuffer_Release(&a->views[--a->n_views]);
    while (a->n_blocks)
        PyMem_RawFree(a->blocks[--a->n_blocks]);
}

#define DEFINE_CALL(NAME, PARAMETERS)                                                                                              \
    static PyObject *call_##NAME(PyObject *module, PyObject *given)                                                               \
    {                                                                                                                              \
        struct arguments a = {.n_views = 0};                                                                                      \
        (void)module;                                                                                                              \
        PyObject *result = NAME(&a, given);                                                                                       \
        release(&a);                                                                                                               \
        return result;                                                                                                             \
    }
FUNCTIONS(DEFINE_CALL)

#define METHOD(NAME, PARAMETERS) {#NAME, call_##NAME, METH_VARARGS, #NAME "(" PARAMETERS ")\n--\n\n"},
static PyMethodDef METHODS[] = {FUNCTIONS(METHOD){NULL, NULL, 0, NULL}};

static int prepare(PyObject *module)
{
    prepare_checksums();
    return find_blas() < 0 ? -1 : prepare_sweeps(module);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, prepare},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.native._native",
    .m_doc = "The compiled parts of fastomp; each has a reference in Python.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
