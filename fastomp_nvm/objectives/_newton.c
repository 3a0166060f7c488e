/* `maximise` of newton.py in C: the same steps in the same order, without the cost of a hundred small calls.
 *
 * newton.py says what is computed and why; the names are the same. Matrices are as BLAS has them: the design, (d, n_obs) in C
 * order, is n_obs x d here, and a factor is the upper triangle of a d x d matrix. BLAS and LAPACK are SciPy's, through the function
 * pointers it publishes: nothing is linked. Sums differ from NumPy's in their last bits, so results name which of the two ran.
 *
 * Knows no NumPy: buffers come in through the buffer protocol and the GIL is released while it computes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256 /* observations scaled at a time for a curvature: with 50 coefficients about what a second-level cache holds */

/* A loop compiled twice, the better one chosen when the module loads. What it computes entry by entry has the same bits in both,
 * as long as nothing is fused: build with -ffp-contract=off. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static void (*dgemv)(const char *, const int *, const int *, const double *, const double *, const int *, const double *,
                     const int *, const double *, double *, const int *);
static void (*dsyrk)(const char *, const char *, const int *, const int *, const double *, const double *, const int *,
                     const double *, double *, const int *);
static void (*dpotrf)(const char *, const int *, double *, const int *, int *);
static void (*dpotrs)(const char *, const int *, const int *, const double *, const int *, double *, const int *, int *);
static void (*dtrtrs)(const char *, const char *, const char *, const int *, const int *, const double *, const int *, double *,
                      const int *, int *);

static const double ZERO = 0.0, ONE = 1.0, MINUS_ONE = -1.0;
static const int STRIDE = 1;

/* ---- Families --------------------------------------------------------------------------------------------------------------- */

struct family {
    const char *name;
    void (*moments)(int n, const double *restrict eta, double *restrict mean, double *restrict variance);
    double (*partition)(double eta); /* b with b' = mean */
};

/* e^x to the last bit or the one before, for x up to 700 in size: what is beyond counts as 700. Without a branch or a call, so that
 * loops around it become vector code: it is most of what a step costs where there are few coefficients. */
static inline double exponential(double x)
{
    x = x < -700.0 ? -700.0 : x;
    x = x > 700.0 ? 700.0 : x;
    const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52; /* the low bits are the nearest whole number to x / log 2 */
    const double whole = shifted - 0x1.8p52;
    const double rest = (x - whole * 0x1.62e42feep-1) - whole * 0x1.a39ef35793c76p-33; /* log 2 in two parts */
    double sum = 1.0 / 6227020800.0, power; /* 1 / 13!, and so on to 1 / 0! */
    uint64_t bits;
    sum = sum * rest + 1.0 / 479001600.0;
    sum = sum * rest + 1.0 / 39916800.0;
    sum = sum * rest + 1.0 / 3628800.0;
    sum = sum * rest + 1.0 / 362880.0;
    sum = sum * rest + 1.0 / 40320.0;
    sum = sum * rest + 1.0 / 5040.0;
    sum = sum * rest + 1.0 / 720.0;
    sum = sum * rest + 1.0 / 120.0;
    sum = sum * rest + 1.0 / 24.0;
    sum = sum * rest + 1.0 / 6.0;
    sum = sum * rest + 0.5;
    sum = sum * rest + 1.0;
    sum = sum * rest + 1.0;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^whole: nothing but an exponent */
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

WIDE static void logistic_moments(int n, const double *restrict eta, double *restrict mean, double *restrict variance)
{
    for (int i = 0; i < n; i++) {
        mean[i] = 1.0 / (1.0 + exponential(-eta[i]));
        variance[i] = mean[i] * (1.0 - mean[i]);
    }
}

static double logistic_partition(double eta)
{
    return (eta > 0.0 ? eta : 0.0) + log1p(exponential(-fabs(eta)));
}

WIDE static void poisson_moments(int n, const double *restrict eta, double *restrict mean, double *restrict variance)
{
    for (int i = 0; i < n; i++)
        mean[i] = variance[i] = exponential(eta[i] < 600.0 ? eta[i] : 600.0); /* poisson.py: LARGEST_PREDICTOR */
}

static double poisson_partition(double eta)
{
    return exponential(eta < 600.0 ? eta : 600.0);
}

static const struct family FAMILIES[] = {
    {"logistic", logistic_moments, logistic_partition},
    {"poisson", poisson_moments, poisson_partition},
};

/* ---- A fit ------------------------------------------------------------------------------------------------------------------ */

struct settings {
    double ridge, tolerance; /* the latter of the decrement: DECREMENT times the total weight */
    double slow, far;
    int max_steps;
};

struct problem {
    const struct family *family;
    struct settings with;
    int d, n, first; /* first: 1 where the first coefficient is an intercept, else 0 */
    const double *design, *response, *weights;
    double *beta, *eta;         /* where to start; then the maximum */
    double *residual, *factor;  /* there; the latter d x d */
    double *mean, *variance;    /* at eta */
    double *move, *scale;       /* n each, as all above */
    double *gradient, *step;    /* d each */
    double *scaled;             /* BLOCK x d */
};

static double penalty(const struct problem *p, int row)
{
    return row < p->first ? 0.0 : p->with.ridge;
}

/* out (d) = design' * vector (n) */
static void across(const struct problem *p, const double *vector, double *out)
{
    dgemv("T", &p->n, &p->d, &ONE, p->design, &p->n, vector, &STRIDE, &ZERO, out, &STRIDE);
}

/* out (n) = design * coefficients (d) */
static void along(const struct problem *p, const double *coefficients, double *out)
{
    dgemv("N", &p->n, &p->d, &ONE, p->design, &p->n, coefficients, &STRIDE, &ZERO, out, &STRIDE);
}

/* Penalised log-likelihood at eta + length * move, up to what does not depend on the coefficients. */
static double likelihood(const struct problem *p, double length)
{
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < p->n; i++) {
        const double eta = p->eta[i] + length * p->move[i];
        sum += p->weights[i] * (p->response[i] * eta - p->family->partition(eta));
    }
    for (int j = p->first; j < p->d; j++) {
        const double coefficient = p->beta[j] + length * p->step[j];
        squares += coefficient * coefficient;
    }
    return sum - 0.5 * p->with.ridge * squares;
}

static double growing_length(const struct problem *p)
{
    const double value = likelihood(p, 0.0);
    double length = 1.0;
    while (!(likelihood(p, length) > value)) {
        length *= 0.5;
        if (length < 1e-10)
            return 0.0;
    }
    return length;
}

static int surely_gains(double moved, double reach)
{
    return reach < 2.0 && exp(moved) * (expm1(reach) - reach) < reach * reach;
}

/* Takes the moments at eta, and the residual. */
WIDE static void look(const struct problem *p)
{
    p->family->moments(p->n, p->eta, p->mean, p->variance);
    for (int i = 0; i < p->n; i++)
        p->residual[i] = p->weights[i] * (p->response[i] - p->mean[i]);
}

/* beta and eta go on by a part of the step. */
WIDE static void walk(const struct problem *p, double length)
{
    for (int j = 0; j < p->d; j++)
        p->beta[j] += length * p->step[j];
    for (int i = 0; i < p->n; i++)
        p->eta[i] += length * p->move[i];
}

/* The farthest that a step moves the linear predictor of an observation that counts. */
WIDE static double farthest(const struct problem *p)
{
    double reach = 0.0;
    for (int i = 0; i < p->n; i++) {
        const double here = p->weights[i] != 0.0 ? fabs(p->move[i]) : 0.0;
        reach = here > reach ? here : reach;
    }
    return reach;
}

/* Fills factor with that of the curvature here. Returns 0, or -1 when it is not positive definite. */
WIDE static int curvature_here(const struct problem *p)
{
    double trace = 0.0;
    int failed;
    memset(p->factor, 0, (size_t)p->d * (size_t)p->d * sizeof(double));
    for (int i = 0; i < p->n; i++)
        p->scale[i] = sqrt(p->weights[i] * p->variance[i]);
    for (int start = 0; start < p->n; start += BLOCK) {
        const int count = p->n - start < BLOCK ? p->n - start : BLOCK;
        for (int j = 0; j < p->d; j++) {
            const double *column = p->design + (size_t)j * (size_t)p->n + start;
            for (int i = 0; i < count; i++)
                p->scaled[(size_t)j * (size_t)count + (size_t)i] = column[i] * p->scale[start + i];
        }
        dsyrk("U", "T", &p->d, &count, &ONE, p->scaled, &count, &ONE, p->factor, &p->d);
    }
    for (int j = 0; j < p->d; j++)
        trace += p->factor[(size_t)j * (size_t)(p->d + 1)];
    for (int j = 0; j < p->d; j++)
        p->factor[(size_t)j * (size_t)(p->d + 1)] += penalty(p, j) + 1e-12 * (1.0 + trace / p->d);
    dpotrf("U", &p->d, p->factor, &p->d, &failed);
    return failed ? -1 : 0;
}

/* Fills factor with `known` (size x size), stretched and extended by the other columns of the design. Returns whether it could. */
WIDE static int bordered(const struct problem *p, const double *known, int size, double moved)
{
    const int added = p->d - size;
    const size_t d = (size_t)p->d;
    const double stretch = added ? exp(0.5 * moved) : 1.0;
    int failed;
    for (int j = 0; j < size; j++)
        for (int i = 0; i < size; i++)
            p->factor[(size_t)j * d + (size_t)i] = i <= j ? stretch * known[(size_t)j * (size_t)size + (size_t)i] : 0.0;
    if (!added)
        return 1;
    double *above = p->factor + (size_t)size * d, *below = above + size;
    for (int j = 0; j < added; j++) {
        const double *column = p->design + (size_t)(size + j) * (size_t)p->n;
        for (int i = 0; i < p->n; i++)
            p->scale[i] = column[i] * p->weights[i] * p->variance[i];
        across(p, p->scale, above + (size_t)j * d);
        below[(size_t)j * (d + 1)] += penalty(p, size + j);
    }
    dtrtrs("U", "T", "N", &size, &added, p->factor, &p->d, above, &p->d, &failed);
    if (failed)
        return 0;
    dsyrk("U", "T", &added, &size, &MINUS_ONE, above, &p->d, &ONE, below, &p->d);
    dpotrf("U", &added, below, &p->d, &failed);
    return !failed;
}

/* Goes to the maximum. Returns how far the last factor is off, -1 when there is none, -2 when one could not be had. */
static double climb(const struct problem *p, const double *known, int size, double moved)
{
    double before = INFINITY;
    int failed, has_factor;
    look(p);
    has_factor = known && 3 * size >= 2 * p->d && bordered(p, known, size, moved);
    if (size < p->d)
        moved = 0.0;
    for (int count = 0; count < p->with.max_steps; count++) {
        const int fresh = !has_factor;
        double decrement = 0.0, length = 1.0;
        across(p, p->residual, p->gradient);
        for (int j = 0; j < p->d; j++)
            p->step[j] = p->gradient[j] -= penalty(p, j) * p->beta[j];
        if (fresh) {
            if (curvature_here(p) < 0)
                return -2.0;
            has_factor = 1;
            moved = 0.0;
        }
        dpotrs("U", &p->d, &STRIDE, p->factor, &p->d, p->step, &p->d, &failed);
        for (int j = 0; j < p->d; j++)
            decrement += p->gradient[j] * p->step[j];
        if (decrement > p->with.slow * before && !fresh) {
            has_factor = 0;
            continue;
        }
        along(p, p->step, p->move);
        if (decrement <= p->with.tolerance) {
            walk(p, 1.0);
            look(p);
            break;
        }
        before = decrement;
        const double reach = farthest(p);
        if (!surely_gains(moved, reach)) {
            length = growing_length(p);
            if (length == 0.0 && fresh)
                break;
        }
        walk(p, length);
        look(p);
        moved += length * reach;
        has_factor = moved <= p->with.far;
    }
    return has_factor ? moved : -1.0;
}

/* ---- Python ----------------------------------------------------------------------------------------------------------------- */

/* Lays the work space out and climbs. Returns what climb does, or -3 without memory. */
static double climb_with_room(struct problem *p, const double *known, int size, double moved)
{
    const size_t n = (size_t)p->n, d = (size_t)p->d;
    double *room = PyMem_RawMalloc((4 * n + 2 * d + (n < BLOCK ? n : BLOCK) * d) * sizeof(double));
    if (!room)
        return -3.0;
    p->mean = room;
    p->variance = p->mean + n;
    p->move = p->variance + n;
    p->scale = p->move + n;
    p->gradient = p->scale + n;
    p->step = p->gradient + d;
    p->scaled = p->step + d;
    moved = climb(p, known, size, moved);
    PyMem_RawFree(room);
    return moved;
}

static const struct family *family_named(const char *name)
{
    for (size_t k = 0; k < sizeof FAMILIES / sizeof *FAMILIES; k++)
        if (strcmp(FAMILIES[k].name, name) == 0)
            return &FAMILIES[k];
    return NULL;
}

static PyObject *maximise(PyObject *module, PyObject *arguments)
{
    struct problem p;
    Py_buffer design, response, weights, known, beta, eta, residual, factor;
    const char *name;
    double moved;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sy*y*y*dp(dddi)z*dw*w*w*w*", &name, &design, &response, &weights, &p.with.ridge, &p.first,
                          &p.with.tolerance, &p.with.slow, &p.with.far, &p.with.max_steps, &known, &moved, &beta, &eta, &residual,
                          &factor))
        return NULL;
    const Py_ssize_t entry = (Py_ssize_t)sizeof(double), n = response.len / entry, d = beta.len / entry;
    const Py_ssize_t size = (Py_ssize_t)sqrt((double)(known.len / entry));
    p.family = family_named(name);
    if (!p.family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (n < 1 || d < 1 || n > INT_MAX || d > INT_MAX || design.len != n * d * entry || weights.len != response.len ||
             eta.len != response.len || residual.len != response.len || factor.len != d * d * entry || size > d ||
             known.len != size * size * entry)
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (d, n), (n,), (n,), (s, s), (d,), "
                                          "(n,), (n,), (d, d) with s at most d");
    else {
        p.n = (int)n, p.d = (int)d;
        p.design = design.buf, p.response = response.buf, p.weights = weights.buf;
        p.beta = beta.buf, p.eta = eta.buf, p.residual = residual.buf, p.factor = factor.buf;
        Py_BEGIN_ALLOW_THREADS
        moved = climb_with_room(&p, known.buf, (int)size, moved);
        Py_END_ALLOW_THREADS
        result = moved == -3.0 ? PyErr_NoMemory() : PyFloat_FromDouble(moved);
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
             "maximise(family, design, response, weights, ridge, intercept, settings, known, moved, beta, eta, residual, factor, /)"
             "\n--\n\n"
             "Move beta and eta to the maximum; fill residual and factor; return how far the factor is off.\n\n"
             "-1: there is no factor; -2: the curvature is not positive definite.");

static PyMethodDef METHODS[] = {
    {"maximise", maximise, METH_VARARGS, maximise_doc},
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
    (void)module;
    if (find_routine("scipy.linalg.cython_blas", "dgemv", &dgemv) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dsyrk", &dsyrk) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dpotrf", &dpotrf) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dpotrs", &dpotrs) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dtrtrs", &dtrtrs) < 0)
        return -1;
    return 0;
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
