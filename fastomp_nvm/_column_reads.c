/* Reads columns here and there of a file into rows of memory, without the interpreter.
 *
 * Columns close to each other are read in one piece, from page to page, as direct reads want it, into a buffer of the caller's, and
 * copied from there. A few thousand such pieces take longer in the interpreter, whose lock the threads would share, than on the
 * device. */

#define PY_SSIZE_T_CLEAN
#define _FILE_OFFSET_BITS 64
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096

/* What is read: `count` columns, ascending, of `bytes` each, the first of the file at `offset`; column k goes to row places[k]. */
struct columns {
    int descriptor;
    int64_t offset, bytes, near;
    const int64_t *wanted, *places;
    Py_ssize_t count;
    char *out, *buffer;
    int64_t room; /* of the buffer */
};

/* How a read ended: with an errno above 0, or one of these. */
enum { DONE = 0, CUT_OFF = -1 };

/* Reads from `begin`, a multiple of a page, at least up to `end`. */
static int read_piece(const struct columns *columns, int64_t begin, int64_t end)
{
    const int64_t most = (end - begin + PAGE - 1) / PAGE * PAGE;
    int64_t done = 0;
    while (begin + done < end) {
        ssize_t count = pread(columns->descriptor, columns->buffer + done, (size_t)(most - done), begin + done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno;
        if (begin + done + count < end)
            count -= count % PAGE; /* a direct read goes on where a page begins */
        if (!count)
            return CUT_OFF;
        done += count;
    }
    return DONE;
}

static int read_all(const struct columns *columns)
{
    Py_ssize_t first = 0;
    while (first < columns->count) {
        const int64_t start = columns->offset + columns->wanted[first] * columns->bytes;
        const int64_t begin = start - start % PAGE;
        Py_ssize_t last = first;
        int64_t end = start + columns->bytes;
        for (Py_ssize_t next = first + 1; next < columns->count; next++) {
            const int64_t from = columns->offset + columns->wanted[next] * columns->bytes;
            if (from - end > columns->near || from + columns->bytes - begin > columns->room - PAGE)
                break;
            last = next;
            end = from + columns->bytes;
        }
        const int failed = read_piece(columns, begin, end);
        if (failed)
            return failed;
        for (; first <= last; first++) {
            const int64_t from = columns->offset + columns->wanted[first] * columns->bytes - begin;
            memcpy(columns->out + columns->places[first] * columns->bytes, columns->buffer + from, (size_t)columns->bytes);
        }
    }
    return DONE;
}

/* Sets ValueError and returns -1 unless every read and every copy stays within its memory. */
static int check(const struct columns *columns, const Py_buffer *wanted, const Py_buffer *places, const Py_buffer *out)
{
    if (columns->bytes <= 0 || columns->offset < 0 || columns->near < 0 || wanted->len != places->len || wanted->len % 8) {
        PyErr_SetString(PyExc_ValueError, "columns of no bytes, a negative offset, or not as many places as columns");
        return -1;
    }
    if (columns->room < columns->bytes + 2 * PAGE || (uintptr_t)columns->buffer % PAGE) {
        PyErr_SetString(PyExc_ValueError, "the buffer must begin at a page and hold a column and two pages");
        return -1;
    }
    for (Py_ssize_t k = 0; k < columns->count; k++) {
        if (columns->places[k] < 0 || columns->places[k] >= out->len / columns->bytes) {
            PyErr_Format(PyExc_ValueError, "place %lld is outside of out", (long long)columns->places[k]);
            return -1;
        }
        if (columns->wanted[k] < (k ? columns->wanted[k - 1] : 0)) {
            PyErr_SetString(PyExc_ValueError, "columns must be ascending and not negative");
            return -1;
        }
    }
    return 0;
}

static PyObject *read_columns(PyObject *module, PyObject *arguments)
{
    struct columns columns;
    long long offset, bytes, near;
    Py_buffer wanted, places, out, buffer;
    PyObject *result = NULL;
    int failed;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iLLLy*y*w*w*", &columns.descriptor, &offset, &bytes, &near, &wanted, &places, &out, &buffer))
        return NULL;
    columns.offset = offset, columns.bytes = bytes, columns.near = near;
    columns.wanted = wanted.buf, columns.places = places.buf, columns.count = wanted.len / 8;
    columns.out = out.buf, columns.buffer = buffer.buf, columns.room = buffer.len;
    if (check(&columns, &wanted, &places, &out) == 0) {
        Py_BEGIN_ALLOW_THREADS
        failed = read_all(&columns);
        Py_END_ALLOW_THREADS
        if (failed == CUT_OFF) {
            PyErr_SetString(PyExc_EOFError, "the file ends before the columns do");
        } else if (failed) {
            errno = failed;
            PyErr_SetFromErrno(PyExc_OSError);
        } else {
            result = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&out);
    PyBuffer_Release(&places);
    PyBuffer_Release(&wanted);
    return result;
}

PyDoc_STRVAR(read_columns_doc,
             "read_columns(descriptor, offset, column_bytes, near_bytes, columns, places, out, buffer, /)\n--\n\n"
             "Copy columns[k] of a file, int64 and ascending, to row places[k] of out; gaps of up to near_bytes are read, not skipped.");

static PyMethodDef METHODS[] = {
    {"read_columns", read_columns, METH_VARARGS, read_columns_doc},
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
    .m_name = "fastomp_nvm._column_reads",
    .m_doc = "Columns of a file, read into rows of memory.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__column_reads(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
