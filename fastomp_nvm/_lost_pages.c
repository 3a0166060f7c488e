/* Watches mappings of files for pages that cannot be read any more.
 *
 * Touching such a page (the file was cut off under us, the device failed) is SIGBUS, which would end the process whatever runs in
 * it. In a watched range the signal becomes a page of zeros and a mark: the reader goes on, and is told afterwards by whoever asks
 * for the mark before the result is used. No jump out of a signal handler, hence nothing is left locked or half done, on any
 * thread, in any library. A SIGBUS elsewhere goes where it went before.
 *
 * Entries are written with the GIL held; the handler, on any thread at any moment, only reads them and sets marks. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_WATCHED 4096

/* A watched range of addresses; free while `length` is 0. `length` is written last, so that the handler sees a whole entry or none. */
struct watched {
    _Atomic(uintptr_t) start;
    _Atomic(size_t) length;
    atomic_int lost;
};

static struct watched WATCHED[MOST_WATCHED];
static atomic_int watched_end; /* entries from here on were never used */
static struct sigaction previous_action;
static uintptr_t page_size; /* 0 until the handler stands */

/* Puts zeros from the unreadable page to the end of its range and marks the range. To the end, because a file that lost its tail
 * would otherwise come back here for every page of it. */
static void on_bus_error(int number, siginfo_t *information, void *context)
{
    const uintptr_t address = (uintptr_t)information->si_addr;
    const uintptr_t page = address & ~(page_size - 1);
    for (int k = 0; k < atomic_load(&watched_end); k++) {
        const size_t length = atomic_load(&WATCHED[k].length);
        const uintptr_t start = atomic_load(&WATCHED[k].start);
        if (!length || address < start || address >= start + length)
            continue;
        atomic_store(&WATCHED[k].lost, 1);
        if (mmap((void *)page, start + length - page, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED)
            return;
    }
    if (previous_action.sa_flags & SA_SIGINFO)
        previous_action.sa_sigaction(number, information, context);
    else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
        previous_action.sa_handler(number);
    else
        signal(SIGBUS, SIG_DFL); /* the instruction fails again and ends the process, as it would have without us */
}

/* Takes over SIGBUS once. Returns 0, or -1 with OSError set. */
static int install_handler(void)
{
    struct sigaction action;
    if (page_size)
        return 0;
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous_action) == 0)
        return 0;
    page_size = 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *watch(PyObject *module, PyObject *arguments)
{
    unsigned long long start, length;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KK", &start, &length) || install_handler() < 0)
        return NULL;
    for (int k = 0; length && k < MOST_WATCHED; k++) {
        if (atomic_load(&WATCHED[k].length))
            continue;
        atomic_store(&WATCHED[k].lost, 0);
        atomic_store(&WATCHED[k].start, (uintptr_t)start);
        atomic_store(&WATCHED[k].length, (size_t)length);
        if (k >= atomic_load(&watched_end))
            atomic_store(&watched_end, k + 1);
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *unwatch(PyObject *module, PyObject *arguments)
{
    unsigned long long start;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "K", &start))
        return NULL;
    for (int k = 0; k < atomic_load(&watched_end); k++)
        if (atomic_load(&WATCHED[k].length) && atomic_load(&WATCHED[k].start) == (uintptr_t)start)
            atomic_store(&WATCHED[k].length, 0);
    Py_RETURN_NONE;
}

static PyObject *lost(PyObject *module, PyObject *arguments)
{
    unsigned long long start, length;
    int found = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KK", &start, &length))
        return NULL;
    for (int k = 0; k < atomic_load(&watched_end) && !found; k++) {
        const uintptr_t other = atomic_load(&WATCHED[k].start);
        const size_t size = atomic_load(&WATCHED[k].length);
        found = size && atomic_load(&WATCHED[k].lost) && start < other + size && other < start + length;
    }
    return PyBool_FromLong(found);
}

PyDoc_STRVAR(watch_doc, "watch(address, length, /)\n--\n\n"
                        "Turn unreadable pages of a mapping into zeros and a mark; False when too many are watched already.");
PyDoc_STRVAR(unwatch_doc, "unwatch(address, /)\n--\n\n"
                          "Forget a watched mapping; to be called before it is unmapped.");
PyDoc_STRVAR(lost_doc, "lost(address, length, /)\n--\n\n"
                       "Tell whether a watched mapping that overlaps this range had a page that could not be read.");

static PyMethodDef METHODS[] = {
    {"watch", watch, METH_VARARGS, watch_doc},
    {"unwatch", unwatch, METH_VARARGS, unwatch_doc},
    {"lost", lost, METH_VARARGS, lost_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm._lost_pages",
    .m_doc = "Unreadable pages of mapped files as marks instead of signals.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__lost_pages(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
