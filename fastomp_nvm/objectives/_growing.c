/* Fits that candidates are added to, for Python: one after the other, in whole inner iterations of FAST_OMP, or the best ones. The
 * arguments for _prefixes.c and _greedy.c, which compute without the GIL. */

#include "_growing.h"

#include <stdarg.h>

#include "_arguments.h"
#include "_climb.h"
#include "_greedy.h"
#include "_prefixes.h"

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

PyMethodDef GROWING_METHODS[] = {
    {"advance", advance, METH_VARARGS, advance_doc},
    {"walk", walk, METH_VARARGS, walk_doc},
    {"greedy", greedy, METH_VARARGS, greedy_doc},
    {NULL, NULL, 0, NULL},
};
