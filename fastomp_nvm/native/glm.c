/* GLM fits, and the candidates of Algorithm 1 with a fit per addition. newton.py and glm_candidates.py are the reference. The GIL is
 * released while fits run. */

#include "objectives.h"

#include <string.h>

/* ---- Candidates of Algorithm 1 ---------------------------------------------------------------------------------------------- */

struct glm {
    struct candidates base;
    struct columns columns;
    struct problem p;
    int status;       /* of the last fit */
    double *known;    /* work space for a factor */
    double *gradient; /* count */
};

static int add(struct candidates *base, int64_t position)
{
    struct glm *x = (struct glm *)base;
    struct problem *p = &x->p;
    const int size = p->d, has_factor = x->status == FACTORED;
    if (has_factor)
        memcpy(x->known, p->factor, (size_t)size * (size_t)size * sizeof(double));
    standardised(&x->columns, position, p->design + (size_t)size * (size_t)p->n);
    p->beta[size] = 0.0;
    p->d = size + 1;
    x->status = climb(p, has_factor ? x->known : NULL, size, size);
    base->spent += (double)p->n * (base->count + 10.0 * p->d); /* products with the candidates, and about five steps of the fit */
    return x->status == NOT_DEFINITE ? -1 : 0;
}

static void score(struct candidates *base)
{
    struct glm *x = (struct glm *)base;
    products(&x->columns, x->p.residual, x->gradient, 1);
    for (int i = 0; i < base->count; i++)
        base->scores[i] = x->gradient[i] * x->gradient[i];
}

static void finish(struct candidates *base, const int64_t *kept, int left)
{
    struct glm *x = (struct glm *)base;
    struct columns *c = &x->columns;
    for (int i = 0; i < left; i++) { /* ascending: every entry is read before it is overwritten */
        x->gradient[i] = x->gradient[kept[i]];
        c->places[i] = c->places[kept[i]];
        c->mean[i] = c->mean[kept[i]];
        c->scale[i] = c->scale[kept[i]];
        c->wide[i] = c->wide[kept[i]];
    }
    if (left >= 0) {
        memset(base->in_model, 0, (size_t)left);
        c->count = left;
    }
}

/* Runs inner iterations with a fit per addition; returns the additions, the candidates left, the iterations that found j*, and the
 * status of the last fit. Design, beta and factor of the fit have room for all additions, and begin with the entries of the fit before
 * and after. The arrays of the candidates begin with the entries of the candidates left. */
PyObject *glm_rounds(struct arguments *a, PyObject *given)
{
    struct glm x = {.base = {.add = add, .score = score, .finish = finish}};
    struct rounds r;
    PyObject *fit, *columns, *gradient, *in_model, *rounds;
    if (!PyArg_ParseTuple(given, "O!pO!OOO", &PyTuple_Type, &fit, &x.status, &PyTuple_Type, &columns, &gradient, &in_model, &rounds))
        return NULL;
    open_fit(a, fit, &x.p);
    open_columns(a, columns, &x.columns);
    const int count = x.base.count = a->failed ? 0 : x.columns.count;
    x.gradient = DOUBLES(a, gradient, count, WRITE);
    x.base.in_model = BOOLS(a, in_model, count, WRITE);
    open_rounds(a, rounds, &x.base, &r);
    require(a, !a->failed && x.columns.n == x.p.n && r.room <= x.p.d - x.p.with.free, "the fit has no room for the additions");
    x.base.scores = space(a, (size_t)count, sizeof(double));
    x.known = space(a, a->failed ? 0 : (size_t)x.p.d * (size_t)x.p.d, sizeof(double));
    if (a->failed)
        return NULL;
    x.p.d -= r.room;
    Py_BEGIN_ALLOW_THREADS
    x.p.family->moments(x.p.n, x.p.eta, x.p.mean, x.p.variance);
    run_rounds(&x.base, &r);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iiii", r.total, x.base.count, r.iterations, x.status);
}

/* ---- Fits ------------------------------------------------------------------------------------------------------------------- */

/* Moves beta and eta to the maximum; fills residual and factor; returns a status code. `known` is the factor of the first columns, or
 * None. The first `settled` coefficients are fitted and have the given residual, the others are zero; -1: none is, and the residual is
 * not read. */
PyObject *maximise(struct arguments *a, PyObject *given)
{
    struct problem p;
    PyObject *fit, *known;
    int settled, status;
    if (!PyArg_ParseTuple(given, "O!Oi", &PyTuple_Type, &fit, &known, &settled))
        return NULL;
    open_fit(a, fit, &p);
    const int size = known == Py_None ? 0 : length_of(a, known);
    const double *factor = known == Py_None ? NULL : DOUBLES(a, known, (Py_ssize_t)size * size, READ);
    require(a, !a->failed && size <= p.d && settled <= p.d, "the start has more coefficients than the fit");
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (settled >= 0)
        p.family->moments(p.n, p.eta, p.mean, p.variance);
    status = climb(&p, factor, size, settled);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

/* Fills out[i, j] with the product of the i-th standardised column and vectors[j]; in float32 where rows are, except wide ones. */
PyObject *gradients(struct arguments *a, PyObject *given)
{
    struct columns x;
    PyObject *columns, *vectors, *out;
    if (!PyArg_ParseTuple(given, "O!OO", &PyTuple_Type, &columns, &vectors, &out))
        return NULL;
    open_columns(a, columns, &x);
    const int count = length_of(a, vectors);
    const double *vector = DOUBLES(a, vectors, a->failed ? 0 : (Py_ssize_t)count * x.n, READ);
    double *found = DOUBLES(a, out, a->failed ? 0 : (Py_ssize_t)count * x.count, WRITE);
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int j = 0; j < count; j++)
        products(&x, vector + (size_t)j * (size_t)x.n, found + j, count);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Returns the penalised log-likelihood, up to a constant of the data. */
PyObject *likelihood(struct arguments *a, PyObject *given)
{
    struct problem p = {0};
    PyObject *eta, *response, *weights, *coef;
    const char *name;
    if (!PyArg_ParseTuple(given, "sOOOOd", &name, &eta, &response, &weights, &coef, &p.with.ridge))
        return NULL;
    p.n = length_of(a, eta), p.d = length_of(a, coef);
    p.family = family_named(a, name);
    p.eta = DOUBLES(a, eta, p.n, READ);
    p.response = DOUBLES(a, response, p.n, READ);
    p.weights = DOUBLES(a, weights, p.n, READ);
    p.beta = DOUBLES(a, coef, p.d, READ);
    double *room = space(a, (size_t)p.n, sizeof(double));
    return a->failed ? NULL : PyFloat_FromDouble(likelihood_at(&p, p.eta, 0.0, room));
}
