/* A SIGBUS guard for mapped files.
 *
 * Touching a page of a mapping that cannot be read (the file was truncated, the device failed) raises SIGBUS, which by default ends
 * the process. Once the guard is installed, the handler maps zeros in place of the page of a guarded range and marks the range:
 * the reader continues, and the caller checks the mark before it uses the result. Nothing jumps out of the signal handler, so no lock
 * stays held, on any thread, in any library. SIGBUS outside guarded ranges goes to the previous handler.
 *
 * Slots are claimed by compare-and-swap; the handler, on any thread at any time, only reads them and sets marks. */

#include "native.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 4096

/* A guarded range of addresses. `length` is set last and cleared first, so the handler sees a complete range or none. */
static struct guarded {
    atomic_int taken, lost;
    _Atomic(uintptr_t) start;
    _Atomic(size_t) length;
} guarded[SLOTS];

static atomic_int used; /* slots from here on were never taken */
static struct sigaction previous;
static uintptr_t page_size; /* 0 until the guard is installed */

/* Maps zeros from the unreadable page to the end of its range, because the pages of a lost tail would fail one by one. */
static void on_bus_error(int number, siginfo_t *information, void *context)
{
    const uintptr_t address = (uintptr_t)information->si_addr, page = address & ~(page_size - 1);
    for (int k = 0; k < used; k++) {
        const size_t length = guarded[k].length;
        const uintptr_t start = guarded[k].start;
        if (!length || address < start || address >= start + length)
            continue;
        guarded[k].lost = 1;
        if (mmap((void *)page, start + length - page, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED)
            return;
    }
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, information, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(number);
    else
        signal(SIGBUS, SIG_DFL); /* the instruction fails again and ends the process */
}

/* Handles SIGBUS from now on: unreadable pages of guarded ranges become zeros and a mark. */
PyObject *install_guard(struct arguments *a, PyObject *given)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    (void)a, (void)given;
    if (!page_size) {
        page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
        sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, &action, &previous) < 0) {
            page_size = 0;
            return PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    Py_RETURN_NONE;
}

/* Guards a mapping. Returns False when too many are guarded already. */
PyObject *guard(struct arguments *a, PyObject *given)
{
    unsigned long long start, length;
    (void)a;
    if (!PyArg_ParseTuple(given, "KK", &start, &length))
        return NULL;
    for (int k = 0; k < SLOTS; k++) {
        int free_slot = 0, end = used;
        if (!atomic_compare_exchange_strong(&guarded[k].taken, &free_slot, 1))
            continue;
        guarded[k].lost = 0;
        guarded[k].start = (uintptr_t)start;
        guarded[k].length = (size_t)length;
        while (end <= k && !atomic_compare_exchange_weak(&used, &end, k + 1))
            ;
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

/* Ends the guard of a mapping; to be called before it is unmapped. */
PyObject *unguard(struct arguments *a, PyObject *given)
{
    unsigned long long start;
    (void)a;
    if (!PyArg_ParseTuple(given, "K", &start))
        return NULL;
    for (int k = 0; k < used; k++)
        if (guarded[k].length && guarded[k].start == (uintptr_t)start) {
            guarded[k].length = 0;
            guarded[k].taken = 0;
        }
    Py_RETURN_NONE;
}

/* Returns whether a guarded mapping that overlaps this range had an unreadable page. */
PyObject *lost(struct arguments *a, PyObject *given)
{
    unsigned long long start, length;
    int found = 0;
    (void)a;
    if (!PyArg_ParseTuple(given, "KK", &start, &length))
        return NULL;
    for (int k = 0; k < used && !found; k++) {
        const uintptr_t other = guarded[k].start;
        const size_t size = guarded[k].length;
        found = size && guarded[k].lost && start < other + size && other < start + length;
    }
    return PyBool_FromLong(found);
}
