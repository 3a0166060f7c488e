/* Fits of GLMs, and FAST_OMP's prefixes of them, in C: the arguments of Python for _climb.c, _greedy.c, _prefixes.c,
 * _quadratic.c.
 *
 * newton.py and glm.py say what is computed and why. BLAS and LAPACK are SciPy's, through the function pointers it publishes:
 * nothing is linked. Knows no NumPy: buffers come in through the buffer protocol, and the GIL is released while it computes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include "_climb.h"
#include "_greedy.h"
#include "_prefixes.h"
#include "_quadratic.h"

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

/* A fit that candidates are added to: what `advance`, `walk` and `greedy` are given alike. */
struct growth {
    struct problem p;
    struct columns candidates;
    int has_factor;
    Py_ssize_t most; /* coefficients there is room for */
    double *room;    /* work space, and behind it that of a factor */
    double *known;
    Py_buffer design, response, weights, beta, eta, residual, factor, places, mean, scale, wide, rows;
};

#define GROWTH_ARGUMENTS 15

static void release_growth(struct growth *g)
{
    PyBuffer_Release(&g->design);
    PyBuffer_Release(&g->response);
    PyBuffer_Release(&g->weights);
    PyBuffer_Release(&g->beta);
    PyBuffer_Release(&g->eta);
    PyBuffer_Release(&g->residual);
    PyBuffer_Release(&g->factor);
    PyBuffer_Release(&g->places);
    PyBuffer_Release(&g->mean);
    PyBuffer_Release(&g->scale);
    PyBuffer_Release(&g->wide);
}

static void close_growth(struct growth *g)
{
    PyMem_RawFree(g->room);
    close_columns(&g->candidates, &g->rows);
    release_growth(g);
}

/* Opens the first GROWTH_ARGUMENTS of `arguments`. Returns 0, or -1 with an exception set. */
static int open_growth(PyObject *arguments, struct growth *g)
{
    PyObject *given, *head = PyTuple_GetSlice(arguments, 0, GROWTH_ARGUMENTS);
    struct settings *with = &g->p.with;
    const char *name;
    /* No buffer within a tuple: CPython keeps no room to give those back. */
    const int parsed = head && PyArg_ParseTuple(head, "sw*y*y*w*w*w*w*p(dddddip)Ow*w*w*w*", &name, &g->design, &g->response,
                                                &g->weights, &g->beta, &g->eta, &g->residual, &g->factor, &g->has_factor,
                                                &with->ridge, &with->tolerance, &with->slow, &with->small, &with->overshot,
                                                &with->max_steps, &with->intercept, &given, &g->places, &g->mean, &g->scale,
                                                &g->wide);
    Py_XDECREF(head); /* `arguments` keeps what it held */
    if (!parsed)
        return -1;
    g->most = doubles(&g->beta);
    g->p.family = family_named(name);
    if (!g->p.family)
        PyErr_Format(PyExc_ValueError, "no family is called %s", name);
    else if (!fit_is_sound(&g->design, &g->response, &g->weights, NULL, &g->beta, &g->eta, &g->residual, &g->factor))
        PyErr_SetString(PyExc_ValueError, FIT_MESSAGE);
    else if (open_columns(given, &g->places, &g->mean, &g->scale, &g->wide, &g->rows, &g->candidates) == 0) {
        const int fits = g->candidates.n == doubles(&g->response);
        const size_t space = (size_t)work_space((int)doubles(&g->response), (int)g->most);
        g->room = fits ? PyMem_RawMalloc((space + (size_t)(g->most * g->most)) * sizeof(double)) : NULL;
        if (g->room) {
            g->p.n = g->candidates.n, g->p.d = (int)g->most;
            g->p.design = g->design.buf, g->p.response = g->response.buf, g->p.weights = g->weights.buf;
            g->p.beta = g->beta.buf, g->p.eta = g->eta.buf, g->p.residual = g->residual.buf, g->p.factor = g->factor.buf;
            g->known = g->room + space;
            lay_out(&g->p, g->room);
            return 0;
        }
        if (fits)
            PyErr_NoMemory();
        else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected columns of as many observations as the fit has");
        close_columns(&g->candidates, &g->rows);
    }
    release_growth(g);
    return -1;
}

/* Parses the arguments behind those of a growth. Returns whether it could. */
static int parse_rest(PyObject *arguments, const char *format, ...)
{
    PyObject *tail = PyTuple_GetSlice(arguments, GROWTH_ARGUMENTS, PyTuple_GET_SIZE(arguments));
    va_list targets;
    va_start(targets, format);
    const int parsed = tail && PyArg_VaParse(tail, format, targets);
    va_end(targets);
    Py_XDECREF(tail);
    return parsed;
}

/* Begins with the candidates of a growth. Returns whether what is known of each belongs to them. */
static int begin_prefixes(struct prefixes *x, const struct growth *g, const Py_buffer *gradient, const Py_buffer *in_model)
{
    x->candidates = g->candidates, x->design = g->design.buf, x->known = g->known;
    x->gradient = gradient->buf, x->in_model = in_model->buf;
    return doubles(gradient) == x->candidates.count && in_model->len == x->candidates.count;
}

static PyObject *advance(PyObject *module, PyObject *arguments)
{
    struct growth g;
    struct prefixes x;
    Py_buffer gradient, in_model, positions, blocked, kept;
    PyObject *result = NULL;
    (void)module;
    if (open_growth(arguments, &g) < 0)
        return NULL;
    if (parse_rest(arguments, "w*w*y*z*w*(ddp)", &gradient, &in_model, &positions, &blocked, &kept, &x.threshold, &x.enough,
                   &x.skip_weak)) {
        const Py_ssize_t word = (Py_ssize_t)sizeof(int64_t), count = positions.len / word;
        int fits = count <= g.most && begin_prefixes(&x, &g, &gradient, &in_model) &&
                   (!blocked.buf || blocked.len / word == x.candidates.count) && kept.len / word == x.candidates.count;
        x.positions = positions.buf, x.blocked = blocked.buf, x.kept = kept.buf, x.count = (int)count;
        for (int i = 0; fits && i < x.count; i++)
            fits = x.positions[i] >= 0 && x.positions[i] < x.candidates.count;
        if (fits) {
            int found;
            g.p.d = (int)(g.most - count);
            Py_BEGIN_ALLOW_THREADS
            found = advance_fits(&x, &g.p, g.has_factor);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("iii", x.added, x.left, found);
        } else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 and bool of (c,), int64 of (b,) below c, and "
                                              "(c,) twice beside c columns, b no more than there is room for");
        PyBuffer_Release(&gradient);
        PyBuffer_Release(&in_model);
        PyBuffer_Release(&positions);
        if (blocked.buf)
            PyBuffer_Release(&blocked);
        PyBuffer_Release(&kept);
    }
    close_growth(&g);
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

static PyObject *walk(PyObject *module, PyObject *arguments)
{
    struct growth g;
    struct prefixes x;
    struct walk w;
    double effort;
    Py_buffer gradient, in_model, features, origin, drawn, sizes, lengths;
    unsigned long long seed, outer, inner; /* modulo 2^64 */
    PyObject *result = NULL;
    (void)module;
    if (open_growth(arguments, &g) < 0)
        return NULL;
    if (parse_rest(arguments, "w*w*y*w*w*w*w*(KKK)(ddd)", &gradient, &in_model, &features, &origin, &drawn, &sizes, &lengths, &seed, &outer,
                   &inner, &x.threshold, &w.share, &effort)) {
        const Py_ssize_t word = (Py_ssize_t)sizeof(int64_t), count = g.candidates.count, room = drawn.len / word;
        int fits = begin_prefixes(&x, &g, &gradient, &in_model) && room <= g.most && sizes.len / word == room && lengths.len / word == room && features.len / word == count &&
                   origin.len / word == count && w.share > 0.0;
        w.features = features.buf, w.origin = origin.buf, w.added = drawn.buf, w.sizes = sizes.buf, w.lengths = lengths.buf;
        w.name = mixed(mixed(0, (uint64_t)seed), (uint64_t)outer), w.inner = (int64_t)inner, w.room = (int)room;
        for (Py_ssize_t i = 0; fits && i < count; i++)
            fits = w.origin[i] == i && !x.in_model[i];
        w.keys = fits ? PyMem_RawMalloc((size_t)(count + 1) * sizeof *w.keys) : NULL;
        x.kept = fits ? PyMem_RawMalloc((size_t)(count + 1) * sizeof *x.kept) : NULL;
        if (fits && w.keys && x.kept) {
            int found;
            g.p.d = (int)(g.most - room);
            Py_BEGIN_ALLOW_THREADS
            found = walk_fits(&x, &g.p, g.has_factor, &w, effort);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("iiii", w.total, x.candidates.count, found, w.iterations);
        } else if (fits)
            PyErr_NoMemory();
        else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 and bool of (c,), int64 of (c,), 0 to c - 1, "
                                              "(b,) three times, b no more than there is room for, and no candidate in the model");
        if (fits) {
            PyMem_RawFree(w.keys);
            PyMem_RawFree(x.kept);
        }
        PyBuffer_Release(&gradient);
        PyBuffer_Release(&in_model);
        PyBuffer_Release(&features);
        PyBuffer_Release(&origin);
        PyBuffer_Release(&drawn);
        PyBuffer_Release(&sizes);
        PyBuffer_Release(&lengths);
    }
    close_growth(&g);
    return result;
}

PyDoc_STRVAR(walk_doc,
             "walk(family, design, response, weights, beta, eta, residual, factor, has_factor, settings, rows, places, mean, scale, "
             "wide, gradient, added, features, origin, drawn, sizes, lengths, (seed, outer, inner), (threshold, share, effort), /)"
             "\n--\n\n"
             "Go through inner iterations, at least one, and no further one after this effort; return how many candidates were added, how "
             "many are left, what maximise does, and how many iterations there were.\n\n"
             "Each adds candidates in the order of the draw until fewer than this share of them are left. Nothing fits when as many were\n"
             "added as drawn has room for. It gets them, by position; origin the positions of those left; sizes and lengths how many\n"
             "candidates, and additions, each iteration had. The rest is as for advance.");

static PyObject *greedy(PyObject *module, PyObject *arguments)
{
    struct growth g;
    struct greedy x;
    Py_buffer open, taken, gains;
    PyObject *result = NULL;
    (void)module;
    if (open_growth(arguments, &g) < 0)
        return NULL;
    if (parse_rest(arguments, "w*w*w*(dddd)(diiiiiidd)", &open, &taken, &gains, &x.least, &x.left, &x.passing, &x.exact, &x.by.trust,
                   &x.by.first, &x.by.longest, &x.by.fewest, &x.by.least_near, &x.by.near_per_addition, &x.by.most_near, &x.by.not_near,
                   &x.by.smallest_pivot)) {
        const Py_ssize_t count = taken.len / (Py_ssize_t)sizeof(int64_t);
        const struct schedule *by = &x.by;
        if (count < g.most && doubles(&gains) == count && open.len == g.candidates.count && by->first > 0 && by->longest > 0 &&
            by->fewest > 0 && by->least_near >= 0 && by->near_per_addition >= 0 && by->most_near >= 0) {
            int found;
            x.candidates = g.candidates, x.design = g.design.buf, x.open = open.buf, x.taken = taken.buf, x.gains = gains.buf;
            x.count = (int)count;
            g.p.d = (int)(g.most - count);
            Py_BEGIN_ALLOW_THREADS
            found = greedy_fits(&x, &g.p, g.has_factor);
            Py_END_ALLOW_THREADS
            result = found == NO_MEMORY ? PyErr_NoMemory() : Py_BuildValue("iiid", x.total, x.ahead, found, x.reached);
        } else
            PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected bool of (c,) beside c columns, int64 and float64 of "
                                              "(b,), b less than there is room for, and no negative counts");
        PyBuffer_Release(&open);
        PyBuffer_Release(&taken);
        PyBuffer_Release(&gains);
    }
    close_growth(&g);
    return result;
}

PyDoc_STRVAR(greedy_doc,
             "greedy(family, design, response, weights, beta, eta, residual, factor, has_factor, settings, rows, places, mean, scale, "
             "wide, open, taken, gains, (least, left, passing, exact), schedule, /)\n--\n\n"
             "Add the best open candidates to a fit, as many as taken has room for; return how many were, how many to add before the next "
             "fit, what maximise does, and the likelihood.\n\n"
             "All that were added are fitted, the last of them exactly. Fewer: who calls goes on from there. The schedule is that of\n"
             "glm_gains.py: trust, first, longest, fewest, least_near, near_per_addition, most_near, not_near, smallest_pivot. The rest is\n"
             "as for advance.");

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
    {"advance", advance, METH_VARARGS, advance_doc},
    {"walk", walk, METH_VARARGS, walk_doc},
    {"greedy", greedy, METH_VARARGS, greedy_doc},
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
    (void)module;
    if (find_routine("scipy.linalg.cython_blas", "dgemv", &dgemv) < 0 ||
        find_routine("scipy.linalg.cython_blas", "dsyrk", &dsyrk) < 0 ||
        find_routine("scipy.linalg.cython_lapack", "dpotrf", &dpotrf) < 0 ||
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
