/* Fits of GLMs, and FAST_OMP's prefixes of them, in C: the arguments of Python for _climb.c.
 *
 * newton.py and glm.py say what is computed and why. BLAS and LAPACK are SciPy's, through the function pointers it publishes:
 * nothing is linked. Knows no NumPy: buffers come in through the buffer protocol, and the GIL is released while it computes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_climb.h"
#include "_quadratic.h"

/* ---- Gradients -------------------------------------------------------------------------------------------------------------- */

/* Rows of a matrix, picked by number, with what standardises each. */
struct columns {
    const char *rows;
    Py_ssize_t stride;
    char kind; /* 'f' or 'd' */
    int count, n;
    int64_t *places;
    double *mean, *scale;
    char *wide;    /* which of single precision to multiply in double: their mean is so large that digits cancel */
    float *single; /* n: room for a vector in single precision, or NULL where none is needed */
};

/* Four numbers that are added up apart from each other: the same sums whether the processor adds four or two at a time. */
#if defined(__GNUC__)
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float FourSingle __attribute__((vector_size(16), aligned(4), may_alias));
#define WIDENED(FROM) __builtin_convertvector(*(const FourSingle *)(FROM), Four)
#define TAKEN(FROM) (*(const Four *)(FROM))
#define LANES 16
#endif

/* Dot product with a row; its bits depend on the two alone. */
#if defined(__GNUC__)
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef double EightWide __attribute__((vector_size(64)));
#define EIGHT(FROM) (*(const Eight *)(FROM))
#define SINGLES 32  /* numbers a turn takes */
#define CARRIED 512 /* numbers, a multiple of the former, after which sums are carried over to double */

/* Both in single precision, as sweeps have them: half the bytes, and twice as many at a time. */
WIDE static double dot_fast(int n, const float *row, const float *vector)
{
    double sum = 0.0;
    int i = 0;
    while (i + SINGLES <= n) {
        const int whole = n - i < CARRIED ? (n - i) / SINGLES * SINGLES : CARRIED, end = i + whole;
        Eight a = {0}, b = {0}, c = {0}, d = {0};
        for (; i < end; i += SINGLES) {
            a += EIGHT(row + i) * EIGHT(vector + i);
            b += EIGHT(row + i + 8) * EIGHT(vector + i + 8);
            c += EIGHT(row + i + 16) * EIGHT(vector + i + 16);
            d += EIGHT(row + i + 24) * EIGHT(vector + i + 24);
        }
        const EightWide all = __builtin_convertvector((a + b) + (c + d), EightWide);
        sum += ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
    }
    for (; i < n; i++)
        sum += (double)row[i] * (double)vector[i];
    return sum;
}

#define DOT(NAME, ROW, LOADED)                                                                                                     \
    WIDE static double NAME(int n, const ROW *row, const double *vector)                                                          \
    {                                                                                                                              \
        Four a = {0}, b = {0}, c = {0}, d = {0};                                                                                   \
        int i = 0;                                                                                                                 \
        for (; i + LANES <= n; i += LANES) {                                                                                       \
            a += LOADED(row + i) * TAKEN(vector + i);                                                                              \
            b += LOADED(row + i + 4) * TAKEN(vector + i + 4);                                                                      \
            c += LOADED(row + i + 8) * TAKEN(vector + i + 8);                                                                      \
            d += LOADED(row + i + 12) * TAKEN(vector + i + 12);                                                                    \
        }                                                                                                                          \
        a = (a + b) + (c + d);                                                                                                     \
        double sum = (a[0] + a[1]) + (a[2] + a[3]);                                                                                \
        for (; i < n; i++)                                                                                                         \
            sum += (double)row[i] * vector[i];                                                                                     \
        return sum;                                                                                                                \
    }
DOT(dot_single, float, WIDENED)
DOT(dot_double, double, TAKEN)
#else
static double dot_fast(int n, const float *row, const float *vector)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += (double)row[i] * (double)vector[i];
    return sum;
}

#define DOT(NAME, ROW)                                                                                                             \
    static double NAME(int n, const ROW *row, const double *vector)                                                               \
    {                                                                                                                              \
        double sum = 0.0;                                                                                                          \
        for (int i = 0; i < n; i++)                                                                                                \
            sum += (double)row[i] * vector[i];                                                                                     \
        return sum;                                                                                                                \
    }
DOT(dot_single, float)
DOT(dot_double, double)
#endif

/* Fills out[i * step] with the product of the i-th column, standardised, with a vector. */
static void products(const struct columns *x, const double *vector, double *out, int step)
{
    double sum = 0.0, single_sum = 0.0;
    for (int i = 0; i < x->n; i++)
        sum += vector[i];
    for (int i = 0; x->single && i < x->n; i++) {
        x->single[i] = (float)vector[i];
        single_sum += x->single[i];
    }
    for (int i = 0; i < x->count; i++) {
        const char *row = x->rows + x->places[i] * x->stride;
        double raw, total = sum;
        if (x->kind == 'd')
            raw = dot_double(x->n, (const double *)row, vector);
        else if (x->wide[i])
            raw = dot_single(x->n, (const float *)row, vector);
        else {
            raw = dot_fast(x->n, (const float *)row, x->single);
            total = single_sum;
        }
        out[(size_t)i * (size_t)step] = (raw - x->mean[i] * total) * x->scale[i];
    }
}

/* Fills out (n) with the column at a position, standardised. */
WIDE static void standardised(const struct columns *x, int64_t position, double *restrict out)
{
    const char *row = x->rows + x->places[position] * x->stride;
    const double mean = x->mean[position], scale = x->scale[position];
    if (x->kind == 'f')
        for (int i = 0; i < x->n; i++)
            out[i] = ((double)((const float *)row)[i] - mean) * scale;
    else
        for (int i = 0; i < x->n; i++)
            out[i] = (((const double *)row)[i] - mean) * scale;
}

/* ---- Prefixes --------------------------------------------------------------------------------------------------------------- */

struct prefixes {
    struct columns candidates;
    const int64_t *positions, *blocked;
    int count;            /* of positions */
    int64_t *kept;        /* positions of the candidates that are left */
    double *gradient;     /* of the candidates */
    char *in_model;       /* which of them are */
    double *design;       /* n x (size + count) */
    double *known;        /* room for a factor, as p->factor */
    double threshold, enough;
    int skip_weak;
    int left, added;      /* found: candidates left where these are not enough, else -1; candidates added */
};

/* Lists the candidates whose score reaches the threshold, that are not in the model, and that `added` additions do not block.
 * Returns how many. */
static int alive(const struct prefixes *x, int64_t added)
{
    int count = 0;
    for (int i = 0; i < x->candidates.count; i++) {
        const double squared = x->gradient[i] * x->gradient[i];
        x->kept[count] = i;
        count += (squared >= x->threshold) & !x->in_model[i] & (!x->blocked || x->blocked[i] > added);
    }
    return count;
}

/* Goes on with the first `count` of x->kept, which is ascending: what is written has been read. */
static void keep(struct prefixes *x, int count)
{
    for (int i = 0; i < count; i++) {
        const int64_t from = x->kept[i];
        x->gradient[i] = x->gradient[from];
        x->candidates.places[i] = x->candidates.places[from];
        x->candidates.mean[i] = x->candidates.mean[from];
        x->candidates.scale[i] = x->candidates.scale[from];
        x->candidates.wide[i] = x->candidates.wide[from];
    }
    memset(x->in_model, 0, (size_t)count);
}

/* Adds candidates to a fit of p->d coefficients, whose factor is in p->factor if `has_factor`. Returns what climb does. */
static int advance_fits(struct prefixes *x, struct problem *p, int has_factor)
{
    const size_t n = (size_t)p->n;
    x->left = -1;
    moments_of(p->family, p->n, p->eta, p->mean, p->variance);
    for (x->added = 0; x->added < x->count && x->left < 0; x->added++) {
        const int64_t position = x->positions[x->added];
        if (x->skip_weak && x->added && x->gradient[position] * x->gradient[position] < x->threshold)
            break;
        const int size = p->d;
        if (has_factor)
            memcpy(x->known, p->factor, (size_t)size * (size_t)size * sizeof(double));
        standardised(&x->candidates, position, x->design + (size_t)size * n);
        p->beta[size] = 0.0;
        p->d = size + 1;
        has_factor = climb(p, has_factor ? x->known : NULL, size, 1);
        if (has_factor == NOT_DEFINITE)
            return NOT_DEFINITE;
        products(&x->candidates, p->residual, x->gradient, 1);
        x->in_model[position] = 1;
        const int still = alive(x, x->added + 1);
        if (still < x->enough) {
            x->left = still;
            keep(x, still);
        }
    }
    return has_factor;
}

/* ---- Python ----------------------------------------------------------------------------------------------------------------- */

static Py_ssize_t doubles(const Py_buffer *buffer)
{
    return buffer->len / (Py_ssize_t)sizeof(double);
}

/* Opens rows and fills x. Returns 0, or -1 with an exception set. */
static int open_columns(PyObject *rows, const Py_buffer *places, const Py_buffer *mean, const Py_buffer *scale,
                        const Py_buffer *wide, Py_buffer *view, struct columns *x)
{
    if (PyObject_GetBuffer(rows, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return -1;
    const uint16_t one = 1;
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == (*(const char *)&one ? '<' : '>')) /* native, however it is said */
        format++;
    const Py_ssize_t count = places->len / (Py_ssize_t)sizeof(int64_t);
    int fits = view->ndim == 2 && view->shape[1] < INT_MAX && (view->shape[1] < 2 || view->strides[1] == view->itemsize) &&
               (format[0] == 'f' || format[0] == 'd') && !format[1] && !((uintptr_t)view->buf % (size_t)view->itemsize) &&
               (view->shape[0] < 2 || view->strides[0] % view->itemsize == 0) && count < INT_MAX && doubles(mean) == count &&
               doubles(scale) == count && wide->len == count;
    for (Py_ssize_t i = 0; fits && i < count; i++)
        fits = ((const int64_t *)places->buf)[i] >= 0 && ((const int64_t *)places->buf)[i] < view->shape[0];
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the columns do not fit each other: expected aligned float32 or float64 rows (r, n), int64 "
                                          "(c,) below r, float64 (c,) twice, and bool (c,)");
        PyBuffer_Release(view);
        return -1;
    }
    float *single = format[0] == 'f' ? PyMem_RawMalloc((size_t)(view->shape[1] + 1) * sizeof(float)) : NULL;
    if (format[0] == 'f' && !single) {
        PyErr_NoMemory();
        PyBuffer_Release(view);
        return -1;
    }
    *x = (struct columns){view->buf,   view->strides[0], format[0],  (int)count, (int)view->shape[1],
                          places->buf, mean->buf,        scale->buf, wide->buf,  single};
    return 0;
}

static void close_columns(struct columns *x, Py_buffer *view)
{
    PyMem_RawFree(x->single);
    PyBuffer_Release(view);
}

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

/* Whether the arrays of a fit fit each other, and what is known (or NULL). */
static int fit_is_sound(const Py_buffer *design, const Py_buffer *response, const Py_buffer *weights, const Py_buffer *known,
                        const Py_buffer *beta, const Py_buffer *eta, const Py_buffer *residual, const Py_buffer *factor)
{
    const Py_ssize_t n = doubles(response), d = doubles(beta), size = known ? (Py_ssize_t)sqrt((double)doubles(known)) : 0;
    return n >= 1 && d >= 1 && n < INT_MAX && d < INT_MAX && doubles(design) == n * d && weights->len == response->len &&
           eta->len == response->len && residual->len == response->len && doubles(factor) == d * d && size <= d &&
           (!known || doubles(known) == size * size);
}

#define FIT_MESSAGE                                                                                                                \
    "the arrays do not fit each other: expected float64 of (d, n), (n,), (n,), (s, s), (d,), (n,), (n,), (d, d) with s at most d"

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
    else if (!fit_is_sound(&design, &response, &weights, &known, &beta, &eta, &residual, &factor) || settled > doubles(&beta) ||
             (settled >= 0 && known.buf && settled != size))
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
            found = climb(&p, known.buf, settled >= 0 ? (int)settled : size, settled >= 0);
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

static PyObject *advance(PyObject *module, PyObject *arguments)
{
    struct problem p;
    struct prefixes x;
    Py_buffer design, response, weights, beta, eta, residual, factor, rows, places, mean, scale, wide, gradient, in_model, positions,
        blocked, kept;
    PyObject *given, *result = NULL;
    const char *name;
    int has_factor;
    (void)module;
    /* No buffer within a tuple: CPython keeps no room to give those back. */
    if (!PyArg_ParseTuple(arguments, "sw*y*y*w*w*w*w*p(dddddip)Ow*w*w*w*w*w*y*z*w*(ddp)", &name, &design, &response, &weights, &beta,
                          &eta, &residual, &factor, &has_factor, &p.with.ridge, &p.with.tolerance, &p.with.slow, &p.with.small,
                          &p.with.overshot, &p.with.max_steps, &p.with.intercept, &given, &places, &mean, &scale, &wide, &gradient, &in_model, &positions, &blocked, &kept,
                          &x.threshold, &x.enough, &x.skip_weak))
        return NULL;
    const Py_ssize_t word = (Py_ssize_t)sizeof(int64_t), count = positions.len / word, most = doubles(&beta);
    p.family = family_named(name);
    if (!p.family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (!fit_is_sound(&design, &response, &weights, NULL, &beta, &eta, &residual, &factor) || count > most)
        PyErr_SetString(PyExc_ValueError, FIT_MESSAGE);
    else if (open_columns(given, &places, &mean, &scale, &wide, &rows, &x.candidates) == 0) {
        int fits = x.candidates.n == doubles(&response) && doubles(&gradient) == x.candidates.count &&
                   in_model.len == x.candidates.count && (!blocked.buf || blocked.len / word == x.candidates.count) &&
                   kept.len / word == x.candidates.count;
        x.positions = positions.buf, x.blocked = blocked.buf, x.kept = kept.buf, x.in_model = in_model.buf, x.count = (int)count;
        for (int i = 0; fits && i < x.count; i++)
            fits = x.positions[i] >= 0 && x.positions[i] < x.candidates.count;
        double *room = fits ? PyMem_RawMalloc(((size_t)work_space((int)doubles(&response), (int)most) + (size_t)(most * most)) *
                                              sizeof(double))
                            : NULL;
        if (room) {
            int found;
            p.n = x.candidates.n, p.d = (int)most;
            p.design = x.design = design.buf, p.response = response.buf, p.weights = weights.buf;
            p.beta = beta.buf, p.eta = eta.buf, p.residual = residual.buf, p.factor = factor.buf;
            x.gradient = gradient.buf;
            lay_out(&p, room);
            x.known = room + work_space(p.n, p.d);
            p.d = (int)(most - count);
            Py_BEGIN_ALLOW_THREADS
            found = advance_fits(&x, &p, has_factor);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("iii", x.added, x.left, found);
        } else if (fits)
            PyErr_NoMemory();
        else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c,), bool of (c,), int64 of (b,) "
                                              "below c, and (c,) twice beside the columns");
        PyMem_RawFree(room);
        close_columns(&x.candidates, &rows);
    }
    PyBuffer_Release(&design);
    PyBuffer_Release(&response);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&beta);
    PyBuffer_Release(&eta);
    PyBuffer_Release(&residual);
    PyBuffer_Release(&factor);
    PyBuffer_Release(&places);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&wide);
    PyBuffer_Release(&gradient);
    PyBuffer_Release(&in_model);
    PyBuffer_Release(&positions);
    if (blocked.buf)
        PyBuffer_Release(&blocked);
    PyBuffer_Release(&kept);
    return result;
}

PyDoc_STRVAR(advance_doc,
             "advance(family, design, response, weights, beta, eta, residual, factor, has_factor, settings, rows, places, mean, scale, "
             "wide, gradient, added, positions, blocked, kept, (threshold, enough, skip_weak), /)\n--\n\n"
             "Add the candidates at positions to a fit until fewer than enough are left; return how many were added, how many are "
             "left, and what maximise does.\n\n"
             "Design, beta and factor have room for all of them; what belongs to the fit lies at their beginning, before and after.\n"
             "-1 left: enough still are, and all stay. Otherwise kept lists those that are, and places, mean, scale, wide,\n"
             "gradient and added begin with what belongs to them.");

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
    Py_buffer design, given_roots, scaled, out;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*w*(ddp)w*", &design, &given_roots, &scaled, &q.ridge, &q.unit, &q.intercept, &out))
        return NULL;
    const Py_ssize_t n = doubles(&given_roots), size = n ? doubles(&design) / n : 0;
    const Py_ssize_t near = (n ? scaled.len / (Py_ssize_t)sizeof(float) / n : 0) - size;
    if (n > 0 && n < INT_MAX && near >= 0 && size + near < INT_MAX / 2 && doubles(&design) == n * size &&
        scaled.len == n * (size + near) * (Py_ssize_t)sizeof(float) && doubles(&out) == near * near) {
        double *room = PyMem_RawMalloc((size_t)(quadratic_space((int)size, (int)near) + 1) * sizeof(double));
        if (room) {
            int failed = 0;
            q.n = (int)n, q.size = (int)size, q.near = (int)near;
            q.design = design.buf, q.roots = given_roots.buf, q.scaled = scaled.buf, q.out = out.buf;
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
                                          "float64 of (c, c)");
    PyBuffer_Release(&design);
    PyBuffer_Release(&given_roots);
    PyBuffer_Release(&scaled);
    PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(curvature_doc, "curvature(design, roots, scaled, (ridge, unit, intercept), out, /)\n--\n\n"
                            "Fill out with the penalised curvature of the last rows of scaled that those of design leave, in units.\n\n"
                            "The first rows of scaled are room for those of design. False: these are all but dependent.");

static PyMethodDef METHODS[] = {
    {"roots", roots, METH_VARARGS, roots_doc},
    {"curvature", curvature, METH_VARARGS, curvature_doc},
    {"maximise", maximise, METH_VARARGS, maximise_doc},
    {"gradients", gradients, METH_VARARGS, gradients_doc},
    {"advance", advance, METH_VARARGS, advance_doc},
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
    (void)module;
    if (find_routine("scipy.linalg.cython_blas", "dgemv", &dgemv) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dsyrk", &dsyrk) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dpotrf", &dpotrf) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dtrsv", &dtrsv) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dtrsm", &dtrsm) < 0 ||
        find_routine("scipy.linalg.cython_blas", "ssyrk", &ssyrk) < 0)
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
