/* Fits of GLMs in C: the module, and the arguments of Python for _climb.c and _quadratic.c; those of growing fits are in _growing.c.
 *
 * newton.py and glm.py say what is computed and why. BLAS and LAPACK are SciPy's, through the function pointers it publishes:
 * nothing is linked. Knows no NumPy: buffers come in through the buffer protocol, and the GIL is released while it computes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_arguments.h"
#include "_climb.h"
#include "_growing.h"
#include "_prefixes.h"
#include "_quadratic.h"

static PyObject *gradients(PyObject *module, PyObject *arguments)
{
    PyObject *given, *result = NULL;
    Py_buffer rows, places, mean, scale, wide, vectors, out;
    struct columns x;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy*y*y*y*y*w*", &given, &places, &mean, &scale, &wide, &vectors, &out))
        return NULL;
    if (open_columns(given, &places, &mean, &scale, &wide, &rows, &x) == 0) {
        const Py_ssize_t count = x.n ? doubles(&vectors) / x.n : 0;
        if (count * x.n == doubles(&vectors) && doubles(&out) == count * x.count && count < INT_MAX) {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t j = 0; j < count; j++)
                products(&x, (const double *)vectors.buf + j * x.n, (double *)out.buf + j, (int)count);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        } else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (m, n) and (c, m)");
        close_columns(&x, &rows);
    }
    PyBuffer_Release(&places);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&wide);
    PyBuffer_Release(&vectors);
    PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(gradients_doc, "gradients(rows, places, mean, scale, wide, vectors, out, /)\n--\n\n"
                            "Fill out[i, j] with the product of (rows[places[i]] - mean[i]) * scale[i] and vectors[j].\n\n"
                            "In single precision where rows are, but for those that are wide.");

static PyObject *maximise(PyObject *module, PyObject *arguments)
{
    struct problem p;
    Py_buffer design, response, weights, known, beta, eta, residual, factor;
    const char *name;
    Py_ssize_t settled;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sy*y*y*(dddddip)z*w*w*w*w*n", &name, &design, &response, &weights, &p.with.ridge,
                          &p.with.tolerance, &p.with.slow, &p.with.small, &p.with.overshot, &p.with.max_steps, &p.with.intercept,
                          &known, &beta, &eta, &residual, &factor, &settled))
        return NULL;
    const int size = (int)sqrt((double)doubles(&known));
    p.family = family_named(name);
    if (!p.family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (!fit_is_sound(&design, &response, &weights, &known, &beta, &eta, &residual, &factor) || settled > doubles(&beta))
        PyErr_SetString(PyExc_ValueError, FIT_MESSAGE);
    else {
        p.n = (int)doubles(&response), p.d = (int)doubles(&beta);
        p.design = design.buf, p.response = response.buf, p.weights = weights.buf;
        p.beta = beta.buf, p.eta = eta.buf, p.residual = residual.buf, p.factor = factor.buf;
        double *room = PyMem_RawMalloc((size_t)work_space(p.n, p.d) * sizeof(double));
        if (room) {
            int found;
            lay_out(&p, room);
            Py_BEGIN_ALLOW_THREADS
            if (settled >= 0)
                moments_of(p.family, p.n, p.eta, p.mean, p.variance);
            found = climb(&p, known.buf, size, settled >= 0 ? (int)settled : -1);
            Py_END_ALLOW_THREADS
            result = PyLong_FromLong(found);
        } else
            PyErr_NoMemory();
        PyMem_RawFree(room);
    }
    PyBuffer_Release(&design);
    PyBuffer_Release(&response);
    PyBuffer_Release(&weights);
    if (known.buf)
        PyBuffer_Release(&known);
    PyBuffer_Release(&beta);
    PyBuffer_Release(&eta);
    PyBuffer_Release(&residual);
    PyBuffer_Release(&factor);
    return result;
}

PyDoc_STRVAR(maximise_doc,
             "maximise(family, design, response, weights, settings, known, beta, eta, residual, factor, settled, /)\n--\n\n"
             "Move beta and eta to the maximum; fill residual and factor; return 1, or 0 where the factor is not of use.\n\n"
             "This many coefficients are settled, with the residual given, and the others zero; -1: none is, and no residual given.\n"
             "-1: the curvature is not positive definite. Settings are ridge, tolerance, slow, small, overshot,\n"
             "max_steps, intercept.");

static PyObject *log_likelihood(PyObject *module, PyObject *arguments)
{
    const char *name;
    Py_buffer eta, response, out;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sy*y*w*", &name, &eta, &response, &out))
        return NULL;
    const struct family *family = family_named(name);
    if (!family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (eta.len != out.len || response.len != out.len || doubles(&out) >= INT_MAX)
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (n,) three times");
    else {
        take_likelihoods(family, (int)doubles(&out), eta.buf, response.buf, out.buf);
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&eta);
    PyBuffer_Release(&response);
    PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(log_likelihood_doc, "log_likelihood(family, eta, response, out, /)\n--\n\n"
                                 "Fill out with response * eta - b(eta).");

static PyObject *likelihood(PyObject *module, PyObject *arguments)
{
    struct problem p = {0};
    Py_buffer eta, response, weights, coef;
    const char *name;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sy*y*y*y*d", &name, &eta, &response, &weights, &coef, &p.with.ridge))
        return NULL;
    const Py_ssize_t n = doubles(&eta);
    p.family = family_named(name);
    if (!p.family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (response.len != eta.len || weights.len != eta.len || n >= INT_MAX || doubles(&coef) >= INT_MAX)
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (n,) three times and (d,)");
    else {
        double *room = PyMem_Malloc((size_t)(n + 1) * sizeof(double));
        p.n = (int)n, p.d = (int)doubles(&coef);
        p.eta = eta.buf, p.response = response.buf, p.weights = weights.buf, p.beta = coef.buf;
        result = room ? PyFloat_FromDouble(penalised_likelihood(&p, room)) : PyErr_NoMemory();
        PyMem_Free(room);
    }
    PyBuffer_Release(&eta);
    PyBuffer_Release(&response);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&coef);
    return result;
}

PyDoc_STRVAR(likelihood_doc, "likelihood(family, eta, response, weights, coef, ridge, /)\n--\n\n"
                             "Return the penalised log-likelihood, up to what no model changes.");

static PyObject *roots(PyObject *module, PyObject *arguments)
{
    const char *name;
    Py_buffer eta, weights, out;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sy*y*w*", &name, &eta, &weights, &out))
        return NULL;
    const struct family *family = family_named(name);
    const Py_ssize_t n = doubles(&out);
    if (!family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (eta.len != out.len || weights.len != out.len || n >= INT_MAX)
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (n,) three times");
    else {
        double *mean = PyMem_Malloc((size_t)(n + 1) * sizeof(double));
        if (mean)
            result = PyFloat_FromDouble(take_roots(family, (int)n, eta.buf, weights.buf, mean, out.buf));
        else
            PyErr_NoMemory();
        PyMem_Free(mean);
    }
    PyBuffer_Release(&eta);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(roots_doc, "roots(family, eta, weights, out, /)\n--\n\n"
                        "Fill out with the roots of the weighted variances at eta; return the largest of these.");

static PyObject *curvature(PyObject *module, PyObject *arguments)
{
    struct quadratic q;
    Py_buffer design, given_roots, scaled, out, factor, above;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*w*(ddp)w*w*w*", &design, &given_roots, &scaled, &q.ridge, &q.unit, &q.intercept, &out, &factor,
                          &above))
        return NULL;
    const Py_ssize_t n = doubles(&given_roots), size = n ? doubles(&design) / n : 0;
    const Py_ssize_t near = (n ? scaled.len / (Py_ssize_t)sizeof(float) / n : 0) - size;
    if (n > 0 && n < INT_MAX && near >= 0 && size + near < INT_MAX / 2 && doubles(&design) == n * size &&
        scaled.len == n * (size + near) * (Py_ssize_t)sizeof(float) && doubles(&out) == near * near &&
        doubles(&factor) == size * size && doubles(&above) == near * size) {
        float *room = PyMem_RawMalloc((size_t)((size + near) * (size + near) + 1) * sizeof(float));
        if (room) {
            int failed = 0;
            q.n = (int)n, q.size = (int)size, q.near = (int)near;
            q.design = design.buf, q.roots = given_roots.buf, q.scaled = scaled.buf, q.out = out.buf;
            q.factor = factor.buf, q.above = above.buf;
            Py_BEGIN_ALLOW_THREADS
            if (near)
                failed = curvature_left(&q, room);
            Py_END_ALLOW_THREADS
            result = PyBool_FromLong(!failed);
        } else
            PyErr_NoMemory();
        PyMem_RawFree(room);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (d, n), (n,), float32 of (d + c, n) and "
                                          "float64 of (c, c), (d, d), (c, d)");
    PyBuffer_Release(&design);
    PyBuffer_Release(&given_roots);
    PyBuffer_Release(&scaled);
    PyBuffer_Release(&out);
    PyBuffer_Release(&factor);
    PyBuffer_Release(&above);
    return result;
}

PyDoc_STRVAR(curvature_doc, "curvature(design, roots, scaled, (ridge, unit, intercept), out, factor, above, /)\n--\n\n"
                            "Fill out with the penalised curvature of the last rows of scaled that those of design leave, in units.\n\n"
                            "Factor gets the upper factor of the curvature of design, transposed; above, transposed too, what stands\n"
                            "beside it, above each of the last rows, in the factor of all.\n"
                            "The first rows of scaled are room for those of design. False: these are all but dependent.");

static PyMethodDef METHODS[] = {
    {"roots", roots, METH_VARARGS, roots_doc},
    {"curvature", curvature, METH_VARARGS, curvature_doc},
    {"maximise", maximise, METH_VARARGS, maximise_doc},
    {"gradients", gradients, METH_VARARGS, gradients_doc},
    {"likelihood", likelihood, METH_VARARGS, likelihood_doc},
    {"log_likelihood", log_likelihood, METH_VARARGS, log_likelihood_doc},
    {NULL, NULL, 0, NULL},
};

/* Puts the address of a routine that SciPy publishes where `pointer` is. Returns 0, or -1 with ImportError set. */
static int find_routine(const char *module_name, const char *name, void *pointer)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *table = module ? PyObject_GetAttrString(module, "__pyx_capi__") : NULL;
    PyObject *capsule = table ? PyMapping_GetItemString(table, name) : NULL;
    const char *signature = capsule ? PyCapsule_GetName(capsule) : NULL;
    void *address = signature ? PyCapsule_GetPointer(capsule, signature) : NULL;
    /* A SciPy built for 64-bit indices would publish another type than int. */
    const int usable = address && strstr(signature, " int *");
    if (usable)
        memcpy(pointer, &address, sizeof address);
    else {
        PyErr_Clear();
        PyErr_Format(PyExc_ImportError, "this SciPy does not publish %s.%s as expected", module_name, name);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(table);
    Py_XDECREF(module);
    return usable ? 0 : -1;
}

static int fill_module(PyObject *module)
{
    if (find_routine("scipy.linalg.cython_blas", "dgemv", &dgemv) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dsyrk", &dsyrk) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dpotrf", &dpotrf) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dtrsm", &dtrsm) < 0 ||
        find_routine("scipy.linalg.cython_blas", "ssyrk", &ssyrk) < 0)
        return -1;
    return PyModule_AddFunctions(module, GROWING_METHODS);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.objectives._newton",
    .m_doc = "Newton's method for canonical-link GLMs in C.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__newton(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
