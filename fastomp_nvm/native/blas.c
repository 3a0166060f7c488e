/* BLAS and LAPACK through the function pointers that SciPy publishes for Cython: nothing is linked. */

#define BLAS /* the pointers of objectives.h are defined here */
#include "objectives.h"

#include <string.h>

/* Stores the address of a routine where `pointer` points. Returns 0, or -1 with ImportError set. */
static int find(const char *library, const char *name, void *pointer)
{
    PyObject *module = PyImport_ImportModule(library);
    PyObject *table = module ? PyObject_GetAttrString(module, "__pyx_capi__") : NULL;
    PyObject *capsule = table ? PyMapping_GetItemString(table, name) : NULL;
    const char *signature = capsule ? PyCapsule_GetName(capsule) : NULL;
    void *address = signature ? PyCapsule_GetPointer(capsule, signature) : NULL;
    const int usable = address && strstr(signature, " int *"); /* a SciPy with 64-bit indices publishes another type */
    if (usable)
        memcpy(pointer, &address, sizeof address);
    else {
        PyErr_Clear();
        PyErr_Format(PyExc_ImportError, "this SciPy does not publish %s.%s as expected", library, name);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(table);
    Py_XDECREF(module);
    return usable ? 0 : -1;
}

int find_blas(void)
{
    const char *blas = "scipy.linalg.cython_blas";
    const int failed = find(blas, "dgemv", &dgemv) || find(blas, "dsyrk", &dsyrk) || find(blas, "ssyrk", &ssyrk) ||
                       find(blas, "dtrsm", &dtrsm) || find("scipy.linalg.cython_lapack", "dpotrf", &dpotrf);
    return failed ? -1 : 0;
}
