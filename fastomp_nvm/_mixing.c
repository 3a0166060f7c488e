/* The beginning of a permutation drawn by the numbers of mixing.py, in C: what NumPy does in a dozen small calls.
 *
 * Numbers are whole, so the order is the same as NumPy's, and no two of them are equal. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#include "_mixing.h"

struct drawn {
    uint64_t key;
    int64_t place;
};

/* Lets the entry at `place` sink to where neither of the two below it is smaller. */
static void sink(struct drawn *heap, Py_ssize_t place, Py_ssize_t count)
{
    const struct drawn entry = heap[place];
    Py_ssize_t below;
    while ((below = 2 * place + 1) < count) {
        below += below + 1 < count && heap[below + 1].key < heap[below].key;
        if (entry.key <= heap[below].key)
            break;
        heap[place] = heap[below];
        place = below;
    }
    heap[place] = entry;
}

static PyObject *first(PyObject *module, PyObject *arguments)
{
    uint64_t state = 0;
    Py_buffer words, out;
    PyObject *name, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!y*w*", &PyTuple_Type, &name, &words, &out))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(name); i++)
        state = mixed(state, PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(name, i)));
    Py_ssize_t count = words.len / (Py_ssize_t)sizeof(int64_t);
    const Py_ssize_t wanted = out.len / (Py_ssize_t)sizeof(int64_t);
    if (PyErr_Occurred()) /* not a tuple of whole numbers */
        ;
    else if (wanted <= count) {
        struct drawn *heap = PyMem_Malloc((size_t)(count + 1) * sizeof *heap);
        if (heap) {
            for (Py_ssize_t i = 0; i < count; i++)
                heap[i] = (struct drawn){mixed(state, (uint64_t)((const int64_t *)words.buf)[i]), i};
            for (Py_ssize_t i = count / 2; i-- > 0;)
                sink(heap, i, count);
            for (Py_ssize_t i = 0; i < wanted; i++) {
                ((int64_t *)out.buf)[i] = heap[0].place;
                heap[0] = heap[--count];
                sink(heap, 0, count);
            }
            result = Py_NewRef(Py_None);
        } else
            PyErr_NoMemory();
        PyMem_Free(heap);
    } else
        PyErr_Format(PyExc_ValueError, "%zd words are wanted of %zd", wanted, count);
    PyBuffer_Release(&words);
    PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(first_doc, "first(name, words, out, /)\n--\n\n"
                        "Fill out with the places of the words whose mix behind those of the tuple `name` is smallest, in its order; "
                        "int64 both.");

static PyMethodDef METHODS[] = {
    {"first", first, METH_VARARGS, first_doc},
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
    .m_name = "fastomp_nvm._mixing",
    .m_doc = "Permutations drawn by mixed numbers.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__mixing(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
