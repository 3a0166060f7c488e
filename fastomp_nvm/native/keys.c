/* Random keys: the mixing function of random_keys.py, which is its reference. */

#include "native.h"

#include <stdint.h>

static uint64_t absorb(uint64_t state, uint64_t word)
{
    uint64_t z = (state ^ word) + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static PyObject *mix(PyObject *module, PyObject *arguments)
{
    PyObject *words, *given_last, *given_out;
    struct arrays arrays = {.count = 0};
    uint64_t state = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OO", &PyTuple_Type, &words, &given_last, &given_out))
        return NULL;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(words); k++)
        state = absorb(state, PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(words, k)));
    if (PyErr_Occurred())
        return NULL;
    const Py_buffer *last = open_array(&arrays, given_last, "last", "q", 1, PyBUF_C_CONTIGUOUS);
    const Py_buffer *out = open_array(&arrays, given_out, "out", "Q", 1, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    if (!arrays.failed && out->len != last->len) {
        PyErr_Format(PyExc_ValueError, "out has %zd entries: expected %zd", out->shape[0], last->shape[0]);
        arrays.failed = 1;
    }
    for (Py_ssize_t i = 0; !arrays.failed && i < last->shape[0]; i++)
        ((uint64_t *)out->buf)[i] = absorb(state, (uint64_t)((const int64_t *)last->buf)[i]);
    return close_arrays(&arrays);
}

PyDoc_STRVAR(mix_doc, "mix(words, last, out, /)\n--\n\n"
                      "Fill out[i] with the key of (*words, last[i]).");

PyMethodDef key_methods[] = {
    {"mix", mix, METH_VARARGS, mix_doc},
    {NULL, NULL, 0, NULL},
};
