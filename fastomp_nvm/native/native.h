/* Shared by the files of the extension: their tables of functions, and array arguments. */

#ifndef FASTOMP_NATIVE_H
#define FASTOMP_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Functions of each file; module.c adds them to the module. */
extern PyMethodDef guard_methods[], key_methods[], moment_methods[], read_methods[], standardise_methods[], sweep_methods[];

/* Chooses the instruction set of the sweep kernels and adds their ids. Returns 0, or -1 with an exception set. */
int prepare_sweeps(PyObject *module);

/* Returns 1 where sweeps use AVX2, else 0; after prepare_sweeps. */
int has_avx2(void);

/* The array arguments of one call. */
struct arrays {
    Py_buffer views[8];
    int count;
    int failed; /* an exception is set, and open_array returns NULL from now on */
};

/* Opens an array of `ndim` dimensions whose rows are contiguous. `formats` lists the accepted element types as letters of the struct
 * module, native byte order, 'q' and 'Q' for any integer of 8 bytes. `flags` may be PyBUF_WRITABLE and PyBUF_C_CONTIGUOUS.
 * Returns NULL with ValueError set where the argument is no such array. */
const Py_buffer *open_array(struct arrays *arrays, PyObject *given, const char *name, const char *formats, int ndim, int flags);

/* Returns the format letter of the elements, 'q' or 'Q' for any integer of 8 bytes, or ' ' for types without a letter. */
char format_letter(const Py_buffer *view);

/* Releases the arrays of a call. Returns None, or NULL when `failed` is set. */
PyObject *close_arrays(struct arrays *arrays);

#endif
