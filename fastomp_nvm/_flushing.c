/* Brings a file to its device beside other work, on a thread that never asks for the interpreter.
 *
 * A thread that needs the interpreter to do so costs a sweep more than the flush does: while it waits for its turn, every NumPy call
 * of the run that lets go of the interpreter for a moment has to wake it, and where it is set aside by the scheduler with the
 * interpreter in its hands, all threads of the sweep stand still.
 *
 * The two semaphores order everything: what the run wrote before `begin` is what is flushed, and `error` is read after `done`. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    int descriptor;
    pid_t owner;    /* the process that has the thread: a fork has not */
    int alive;      /* the thread was started and not yet joined */
    int ending;     /* what `begun` now says is to end */
    int error;      /* errno of the last flush, or 0 */
    double seconds; /* processor time of the thread */
    sem_t begun, done;
    pthread_t thread;
} Flusher;

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) /* EINTR is all that can go wrong */
        ;
}

static void *serve(void *argument)
{
    Flusher *self = argument;
    struct timespec used;
    /* A batch thread does not push one that runs off its core, a sweep's: it takes one that is idle, or its turn. */
    const struct sched_param plain = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &plain);
    (void)pthread_setname_np(pthread_self(), "fastomp-flush");
    for (;;) {
        wait_for(&self->begun);
        if (self->ending)
            return NULL;
        int failed;
        do
            failed = fdatasync(self->descriptor);
        while (failed && errno == EINTR);
        self->error = failed ? errno : 0;
        if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0)
            self->seconds = (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
        sem_post(&self->done);
    }
}

/* Starts the thread with all signals blocked: they are the main thread's, whose calls they interrupt. Returns 0 or an errno. */
static int start_thread(Flusher *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&self->thread, NULL, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static PyObject *flusher_new(PyTypeObject *type, PyObject *arguments, PyObject *options)
{
    int descriptor;
    static char *names[] = {"", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "i", names, &descriptor))
        return NULL;
    Flusher *self = (Flusher *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->descriptor = descriptor;
    self->owner = getpid();
    sem_init(&self->begun, 0, 0);
    sem_init(&self->done, 0, 0);
    const int failed = start_thread(self);
    if (failed) {
        Py_DECREF(self);
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->alive = 1;
    return (PyObject *)self;
}

static PyObject *flusher_begin(Flusher *self, PyObject *unused)
{
    (void)unused;
    if (!self->alive || self->owner != getpid()) {
        PyErr_SetString(PyExc_ValueError, "the thread of this flusher is not in this process, or has ended");
        return NULL;
    }
    sem_post(&self->begun);
    Py_RETURN_NONE;
}

static PyObject *flusher_wait(Flusher *self, PyObject *unused)
{
    (void)unused;
    if (!self->alive || self->owner != getpid()) {
        PyErr_SetString(PyExc_ValueError, "the thread of this flusher is not in this process, or has ended");
        return NULL;
    }
    if (sem_trywait(&self->done) != 0) {
        Py_BEGIN_ALLOW_THREADS
        wait_for(&self->done);
        Py_END_ALLOW_THREADS
    }
    if (self->error) {
        errno = self->error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* Ends the thread; a flush that runs is waited for, as its descriptor is closed next. */
static void end_thread(Flusher *self)
{
    if (!self->alive || self->owner != getpid())
        return;
    self->alive = 0;
    self->ending = 1;
    sem_post(&self->begun);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
}

static PyObject *flusher_close(Flusher *self, PyObject *unused)
{
    (void)unused;
    end_thread(self);
    Py_RETURN_NONE;
}

static void flusher_dealloc(Flusher *self)
{
    PyTypeObject *type = Py_TYPE(self);
    end_thread(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *flusher_seconds(Flusher *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(self->seconds);
}

static PyMethodDef METHODS[] = {
    {"begin", (PyCFunction)flusher_begin, METH_NOARGS, "begin($self, /)\n--\n\nBegin a flush; to be waited for before the next."},
    {"wait", (PyCFunction)flusher_wait, METH_NOARGS, "wait($self, /)\n--\n\nReturn once the flush is done, or raise its OSError."},
    {"close", (PyCFunction)flusher_close, METH_NOARGS, "close($self, /)\n--\n\nEnd the thread; the descriptor stays open."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef MEMBERS[] = {
    {"seconds", (getter)flusher_seconds, NULL, "Processor time of the thread, up to the last flush waited for.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot TYPE_SLOTS[] = {
    {Py_tp_doc, "Flusher(descriptor, /)\n--\n\nA thread that calls fdatasync(2) on an open file when it is told to."},
    {Py_tp_new, flusher_new},
    {Py_tp_dealloc, flusher_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, MEMBERS},
    {0, NULL},
};

static PyType_Spec SPECIFICATION = {
    .name = "fastomp_nvm._flushing.Flusher",
    .basicsize = sizeof(Flusher),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = TYPE_SLOTS,
};

static int add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&SPECIFICATION);
    if (type == NULL)
        return -1;
    const int failed = PyModule_AddObjectRef(module, "Flusher", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, add_type},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm._flushing",
    .m_doc = "Files brought to their device without the interpreter.",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__flushing(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
