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
    standardised(&x->columns, position, NULL, 'd', p->design + (size_t)size * (size_t)p->n);
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

static PyObject *glm_rounds(PyObject *module, PyObject *arguments)
{
    struct arguments a = {0};
    struct glm x = {.base = {.add = add, .score = score, .finish = finish}};
    struct rounds r;
    PyObject *fit, *columns, *gradient, *in_model, *rounds, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!pO!OOO", &PyTuple_Type, &fit, &x.status, &PyTuple_Type, &columns, &gradient, &in_model, &rounds))
        return NULL;
    open_fit(&a, fit, &x.p);
    open_columns(&a, columns, &x.columns);
    const int count = x.base.count = a.failed ? 0 : x.columns.count;
    x.gradient = DOUBLES(&a, gradient, count, WRITE);
    x.base.in_model = BOOLS(&a, in_model, count, WRITE);
    open_rounds(&a, rounds, &x.base, &r);
    require(&a, !a.failed && x.columns.n == x.p.n && r.room < x.p.d + !x.p.with.intercept, "the fit has no room for the additions");
    x.base.scores = space(&a, (size_t)count, sizeof(double));
    x.known = space(&a, a.failed ? 0 : (size_t)x.p.d * (size_t)x.p.d, sizeof(double));
    if (!a.failed) {
        x.p.d -= r.room;
        Py_BEGIN_ALLOW_THREADS
        moments_at(x.p.family, x.p.n, x.p.eta, x.p.mean, x.p.variance);
        run_rounds(&x.base, &r);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("iiii", r.total, x.base.count, r.iterations, x.status);
    }
    release(&a);
    return result;
}

PyDoc_STRVAR(glm_rounds_doc,
             "glm_rounds(fit, has_factor, columns, gradient, in_model, rounds, /)\n--\n\n"
             "Run inner iterations with a fit per addition; return the additions, the candidates left, the iterations that found j*, and "
             "the status of the last fit.\n\nDesign, beta and factor of the fit have room for all additions, and begin with the entries "
             "of the fit before and after. The arrays of the candidates begin with the entries of the candidates left.");

/* ---- Fits ------------------------------------------------------------------------------------------------------------------- */

static PyObject *maximise(PyObject *module, PyObject *arguments)
{
    struct arguments a = {0};
    struct problem p;
    PyObject *fit, *known, *result = NULL;
    int settled;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!Oi", &PyTuple_Type, &fit, &known, &settled))
        return NULL;
    open_fit(&a, fit, &p);
    const int size = known == Py_None ? 0 : length_of(&a, known);
    const double *factor = known == Py_None ? NULL : DOUBLES(&a, known, (Py_ssize_t)size * size, READ);
    require(&a, !a.failed && size <= p.d && settled <= p.d, "the start has more coefficients than the fit");
    if (!a.failed) {
        int status;
        Py_BEGIN_ALLOW_THREADS
        if (settled >= 0)
            moments_at(p.family, p.n, p.eta, p.mean, p.variance);
        status = climb(&p, factor, size, settled >= 0 ? settled : -1);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(status);
    }
    release(&a);
    return result;
}

PyDoc_STRVAR(maximise_doc, "maximise(fit, known, settled, /)\n--\n\n"
                           "Move beta and eta to the maximum; fill residual and factor; return a status code.\n\n"
                           "`known` is the factor of the first columns, or None. The first `settled` coefficients are fitted and have the "
                           "given residual, the others are zero; -1: none is, and the residual is not read.");

static PyObject *gradients(PyObject *module, PyObject *arguments)
{
    struct arguments a = {0};
    struct columns x;
    PyObject *columns, *vectors, *out, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OO", &PyTuple_Type, &columns, &vectors, &out))
        return NULL;
    open_columns(&a, columns, &x);
    const int count = length_of(&a, vectors);
    const double *vector = DOUBLES(&a, vectors, a.failed ? 0 : (Py_ssize_t)count * x.n, READ);
    double *products_with = DOUBLES(&a, out, a.failed ? 0 : (Py_ssize_t)count * x.count, WRITE);
    if (!a.failed) {
        Py_BEGIN_ALLOW_THREADS
        for (int j = 0; j < count; j++)
            products(&x, vector + (size_t)j * (size_t)x.n, products_with + j, count);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release(&a);
    return result;
}

PyDoc_STRVAR(gradients_doc, "gradients(columns, vectors, out, /)\n--\n\n"
                            "Fill out[i, j] with the product of the i-th standardised column and vectors[j].\n\n"
                            "In float32 where rows are, except wide ones.");

static PyObject *likelihood(PyObject *module, PyObject *arguments)
{
    struct arguments a = {0};
    struct problem p = {0};
    PyObject *eta, *response, *weights, *coef, *result = NULL;
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sOOOOd", &name, &eta, &response, &weights, &coef, &p.with.ridge))
        return NULL;
    p.n = length_of(&a, eta), p.d = length_of(&a, coef);
    p.family = family_named(&a, name);
    p.eta = DOUBLES(&a, eta, p.n, READ);
    p.response = DOUBLES(&a, response, p.n, READ);
    p.weights = DOUBLES(&a, weights, p.n, READ);
    p.beta = DOUBLES(&a, coef, p.d, READ);
    double *room = space(&a, (size_t)p.n, sizeof(double));
    if (!a.failed)
        result = PyFloat_FromDouble(penalised_likelihood(&p, room));
    release(&a);
    return result;
}

PyDoc_STRVAR(likelihood_doc, "likelihood(family, eta, response, weights, coef, ridge, /)\n--\n\n"
                             "Return the penalised log-likelihood, up to a constant of the data.");

PyMethodDef glm_methods[] = {
    {"glm_rounds", glm_rounds, METH_VARARGS, glm_rounds_doc},
    {"maximise", maximise, METH_VARARGS, maximise_doc},
    {"gradients", gradients, METH_VARARGS, gradients_doc},
    {"likelihood", likelihood, METH_VARARGS, likelihood_doc},
    {NULL, NULL, 0, NULL},
};
