/* Reads selected columns of a file into rows of memory, without the interpreter.
 *
 * Columns close to each other are read in one piece of whole pages, as direct reads require, into a buffer of the caller, and copied
 * from there. In Python a few thousand such pieces would take longer than on the device, because the threads share the GIL. */

#define _FILE_OFFSET_BITS 64
#include "native.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096

/* `count` columns of `bytes` each, in ascending order; column 0 of the file starts at `offset`; columns[k] is copied to row places[k]
 * of out. Gaps of up to `near` bytes are read, not skipped. */
struct job {
    int descriptor;
    long long offset, bytes, near, room; /* room: size of the buffer */
    const int64_t *columns, *places;
    Py_ssize_t count;
    char *out, *buffer;
};

/* Outcome of a read: an errno above 0, or one of these. */
enum { DONE = 0, CUT_OFF = -1 };

/* Reads from `begin`, a multiple of a page, at least up to `end`. */
static int read_piece(const struct job *job, long long begin, long long end)
{
    const long long most = (end - begin + PAGE - 1) / PAGE * PAGE;
    long long done = 0;
    while (begin + done < end) {
        ssize_t count = pread(job->descriptor, job->buffer + done, (size_t)(most - done), begin + done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return errno;
        if (begin + done + count < end)
            count -= count % PAGE; /* a direct read continues at the start of a page */
        if (!count)
            return CUT_OFF;
        done += count;
    }
    return DONE;
}

static int read_all(const struct job *job)
{
    Py_ssize_t first = 0;
    while (first < job->count) {
        const long long start = job->offset + job->columns[first] * job->bytes, begin = start - start % PAGE;
        long long end = start + job->bytes;
        Py_ssize_t next = first + 1;
        for (; next < job->count; next++) {
            const long long from = job->offset + job->columns[next] * job->bytes;
            if (from - end > job->near || from + job->bytes - begin > job->room - PAGE)
                break;
            end = from + job->bytes;
        }
        const int failed = read_piece(job, begin, end);
        if (failed)
            return failed;
        for (; first < next; first++)
            memcpy(job->out + job->places[first] * job->bytes, job->buffer + job->offset + job->columns[first] * job->bytes - begin,
                   (size_t)job->bytes);
    }
    return DONE;
}

/* Copies columns[k] of a file, int64 and ascending, to row places[k] of out; gaps of up to near_bytes are read, not skipped. */
PyObject *read_columns(struct arguments *a, PyObject *given)
{
    struct job job;
    PyObject *columns, *places, *out, *buffer;
    int failed;
    if (!PyArg_ParseTuple(given, "iLLLOOOO", &job.descriptor, &job.offset, &job.bytes, &job.near, &columns, &places, &out, &buffer))
        return NULL;
    job.count = length_of(a, columns);
    job.columns = WORDS(a, columns, job.count, READ);
    job.places = WORDS(a, places, job.count, READ);
    const Py_buffer *rows = open_buffer(a, out, "out", PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | WRITE);
    const Py_buffer *pages = open_buffer(a, buffer, "buffer", WRITE);
    require(a, a->failed || strchr("?bBhHiIqQefd", format_letter(rows)), "out must hold numbers");
    require(a, job.bytes > 0 && job.offset >= 0 && job.offset < LLONG_MAX - PAGE && job.near >= 0,
            "columns have no bytes, or an offset is negative");
    require(a, !a->failed && pages->len - 2 * PAGE >= job.bytes && !((uintptr_t)pages->buf % PAGE),
            "the buffer must start at a page and hold a column and two pages");
    for (Py_ssize_t k = 0; !a->failed && k < job.count; k++) {
        require(a, job.places[k] >= 0 && job.places[k] < rows->len / job.bytes, "a place is outside of out");
        require(a, job.columns[k] >= (k ? job.columns[k - 1] : 0), "columns must be ascending and not negative");
        require(a, job.columns[k] < (LLONG_MAX - PAGE - job.offset) / job.bytes - 1, "a column is beyond the largest offset");
    }
    if (a->failed)
        return NULL;
    job.out = rows->buf, job.buffer = pages->buf, job.room = pages->len;
    Py_BEGIN_ALLOW_THREADS
    failed = read_all(&job);
    Py_END_ALLOW_THREADS
    if (failed == CUT_OFF)
        return PyErr_Format(PyExc_EOFError, "the file ends before the columns do");
    errno = failed;
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : Py_NewRef(Py_None);
}
