/* Greedy additions to a GLM by second-order gains, with refits in between. The reference is glm_gains.py. */

#include "objectives.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- The quadratic model ---------------------------------------------------------------------------------------------------- */

/* The curvature of a fit and of columns that may be added to it. */
struct quadratic {
    int n, size, near;    /* observations; columns of the fit; columns that may be added */
    const double *design; /* n x size */
    const double *roots;  /* n: square roots of the weighted variances at the fit */
    float *scaled;        /* n x (size + near): work space, then the columns that may be added, each observation times its root */
    double ridge, unit;
    int free;             /* columns that are not penalised, the first ones */
    double *out;          /* near x near: penalised curvature after projecting out the fit, divided by `unit` */
    double *factor;       /* size x size: upper factor of the curvature of the fit */
    double *above;        /* size x near: the block beside it in the factor of all columns */
};

/* Square roots of weighted variances, in place; returns the largest weighted variance. */
WIDE static double roots_of(int n, const double *restrict weights, double *restrict variances)
{
    double most = 0.0;
    for (int i = 0; i < n; i++) {
        const double weighted = weights[i] * variances[i];
        most = weighted > most ? weighted : most;
        variances[i] = sqrt(weighted);
    }
    return most;
}

/* Fills roots (n) with the square roots of the weighted variances at eta; returns the largest weighted variance. */
static double take_roots(const struct family *family, int n, const double *eta, const double *weights, double *mean, double *roots)
{
    family->moments(n, eta, mean, roots);
    return roots_of(n, weights, roots);
}

WIDE static void scale_row(int n, const double *restrict row, const double *restrict roots, float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)(row[i] * roots[i]);
}

/* Fills out, factor and above; products are taken in float32, `gram` has room for (size + near)^2. Returns 0, or -1 where the columns
 * of the fit are nearly dependent. */
static int curvature_left(const struct quadratic *q, float *gram)
{
    const float one = 1.0f, nothing = 0.0f;
    const double whole = 1.0, minus = -1.0;
    const int all = q->size + q->near;
    const size_t width = (size_t)all, size = (size_t)q->size, near = (size_t)q->near;
    int failed = 0;
    for (size_t j = 0; j < size; j++)
        scale_row(q->n, q->design + j * (size_t)q->n, q->roots, q->scaled + j * (size_t)q->n);
    ssyrk("U", "T", &all, &q->n, &one, q->scaled, &q->n, &nothing, gram, &all);
    for (size_t j = 0; j < size; j++) {
        for (size_t i = 0; i <= j; i++)
            q->factor[j * size + i] = (double)gram[j * width + i];
        q->factor[j * size + j] += j < (size_t)q->free ? 0.0 : q->ridge;
    }
    for (size_t j = 0; j < near; j++) {
        const float *column = gram + (size + j) * width;
        for (size_t i = 0; i < size; i++)
            q->above[j * size + i] = (double)column[i];
        for (size_t i = 0; i <= j; i++)
            q->out[j * near + i] = (double)column[size + i];
    }
    if (q->size) {
        dpotrf("U", &q->size, q->factor, &q->size, &failed);
        if (failed)
            return -1;
        dtrsm("L", "U", "T", "N", &q->size, &q->near, &whole, q->factor, &q->size, q->above, &q->size);
        dsyrk("U", "T", &q->near, &q->size, &minus, q->above, &q->size, &whole, q->out, &q->near);
    }
    for (size_t j = 0; j < near; j++) {
        for (size_t i = 0; i <= j; i++)
            q->out[i * near + j] = q->out[j * near + i] = q->out[j * near + i] / q->unit;
        q->out[j * near + j] += q->ridge / q->unit;
    }
    return 0;
}

/* ---- The greedy ------------------------------------------------------------------------------------------------------------- */

/* Constants of glm_gains.py, by their names there. */
struct schedule {
    double trust;
    int first, longest, fewest, least_near, near_per_addition, most_near;
    double not_near, smallest_pivot;
};

struct greedy {
    struct columns candidates;
    struct schedule by;
    char *open;            /* candidates that may be added */
    int count;             /* additions wanted */
    double least;          /* gains up to this end the greedy */
    double left;           /* tolerance of the fit at the start, then of the last one */
    double passing, exact; /* tolerances of intermediate fits, and of the last */
    int64_t *taken;        /* result: positions added */
    double *gains;         /* result: the gain of each */
    int total;             /* result: additions, all of them fitted */
    int ahead;             /* result: additions before the next fit */
    double reached;        /* result: penalised likelihood of the fit */
};

/* Work space, for the largest quadratic model. */
struct room {
    double *gradient, *scores, *sorted; /* of all candidates */
    double *roots, *mean;               /* n each */
    double *left, *factor, *above;      /* of struct quadratic */
    double *known;                      /* factor that the next fit starts with */
    double *directions, *near_gradient, *pivots, *smallest, *near_gains;
    double *found;                      /* gains of the batch */
    float *scaled, *gram;
    int64_t *near, *places;             /* near candidates; the batch, as places among these */
    char *open;                         /* of the near ones */
};

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static double *part(double **next, size_t count)
{
    double *here = *next;
    *next += count;
    return here;
}

/* Allocates the work space of `count` additions to `size` columns. */
static void make_room(struct arguments *a, struct room *r, size_t n, size_t candidates, size_t near, size_t size, size_t count)
{
    const size_t most = size + count, all = most + near;
    const size_t doubles = 3 * candidates + 2 * n + near * near + 2 * most * most + near * most + count * near + 4 * near + count;
    const size_t words = near + count, singles = all * n + all * all;
    /* One block of twice the size: glibc keeps freed memory up to twice the largest block it ever returned to the system. Otherwise the
     * pages would be mapped again in every selection, which takes longer than writing them. */
    double *next = space(a, 2 * (doubles * sizeof(double) + words * sizeof(int64_t) + singles * sizeof(float) + near), 1);
    if (!next)
        return;
    r->gradient = part(&next, candidates);
    r->scores = part(&next, candidates);
    r->sorted = part(&next, candidates);
    r->roots = part(&next, n);
    r->mean = part(&next, n);
    r->left = part(&next, near * near);
    r->factor = part(&next, most * most);
    r->known = part(&next, most * most);
    r->above = part(&next, near * most);
    r->directions = part(&next, count * near);
    r->near_gradient = part(&next, near);
    r->pivots = part(&next, near);
    r->smallest = part(&next, near);
    r->near_gains = part(&next, near);
    r->found = part(&next, count);
    r->near = (int64_t *)next;
    r->places = r->near + near;
    r->scaled = (float *)(r->places + count);
    r->gram = r->scaled + all * n;
    r->open = (char *)(r->gram + all * all);
}

/* Returns the `rank`-th largest value, from 0, and reorders the values. */
static double nth_largest(double *values, int count, int rank)
{
    int first = 0, last = count - 1;
    while (first < last) {
        const double pivot = values[first + (last - first) / 2];
        int low = first, high = last;
        while (low <= high) {
            while (values[low] > pivot)
                low++;
            while (values[high] < pivot)
                high--;
            if (low <= high) {
                const double other = values[low];
                values[low++] = values[high];
                values[high--] = other;
            }
        }
        if (rank <= high)
            last = high;
        else if (rank >= low)
            first = low;
        else
            break;
    }
    return values[rank];
}

/* Lists the `count` of `all` candidates with the largest scores, the first among equals, ascending; returns their number. */
static int nearest(const struct room *r, int all, int count)
{
    int found = 0, above = 0;
    memcpy(r->sorted, r->scores, (size_t)all * sizeof(double));
    count = smaller(count, all);
    const double least = count ? nth_largest(r->sorted, all, count - 1) : 0.0;
    for (int i = 0; i < all; i++)
        above += r->scores[i] > least;
    for (int i = 0, equal = count - above; i < all && found < count; i++)
        if (r->scores[i] > least || (r->scores[i] == least && equal-- > 0))
            r->near[found++] = i;
    return found;
}

/* Fills known with the factor of the fit and of the `added` columns that the quadratic model took. */
static void extend_factor(const struct room *r, int size, int near, int added, double unit)
{
    const size_t d = (size_t)(size + added), fitted = (size_t)size;
    const double root = sqrt(unit);
    memset(r->known, 0, d * d * sizeof(double));
    for (size_t j = 0; j < fitted; j++)
        memcpy(r->known + j * d, r->factor + j * fitted, (j + 1) * sizeof(double));
    for (size_t j = 0; j < (size_t)added; j++) {
        double *column = r->known + (fitted + j) * d;
        memcpy(column, r->above + (size_t)r->places[j] * fitted, fitted * sizeof(double));
        for (size_t i = 0; i <= j; i++)
            column[fitted + i] = r->directions[i * (size_t)near + (size_t)r->places[j]] * root;
    }
}

/* Builds the quadratic model at the fit and takes its best `batch` columns: their places are in r->places. Returns the number of near
 * columns, or -1 where fewer were taken or there is no model. `directions` is the number of columns that were not dependent. */
static int take_batch(const struct greedy *x, const struct problem *p, const struct room *r, int batch, int *directions, double *unit)
{
    const int all = x->candidates.count, wanted = x->by.least_near + x->by.near_per_addition * x->ahead;
    const int most = larger(x->by.most_near, 2 * x->ahead);
    const double variance = take_roots(p->family, p->n, p->eta, p->weights, r->mean, r->roots) + p->with.ridge;
    double top = 0.0;
    *unit = variance > DBL_MIN ? variance : DBL_MIN;
    products(&x->candidates, p->residual, r->gradient, 1);
    for (int i = 0; i < all; i++) {
        const double score = r->gradient[i] * r->gradient[i];
        top = score > top ? score : top;
        r->scores[i] = x->open[i] ? score : 0.0;
    }
    const int near = nearest(r, all, smaller(wanted, most));
    for (int j = 0; j < near; j++)
        standardised_times(&x->candidates, r->near[j], r->roots, r->scaled + (size_t)(p->d + j) * (size_t)p->n);
    const struct quadratic q = {p->n,  p->d,    near,   p->design, r->roots, r->scaled, p->with.ridge, *unit, p->with.free,
                                r->left, r->factor, r->above};
    if (!near || curvature_left(&q, r->gram) < 0)
        return -1;
    const double root = sqrt(*unit), others = top * (x->by.not_near / *unit);
    const double least = 2.0 * (x->least > others ? x->least : others);
    for (int j = 0; j < near; j++) {
        r->near_gradient[j] = r->gradient[r->near[j]] / root;
        r->pivots[j] = r->left[(size_t)j * (size_t)(near + 1)];
        r->smallest[j] = x->by.smallest_pivot;
        r->open[j] = x->open[r->near[j]];
    }
    *directions = 0;
    for (int taken = 0; taken < batch; taken++) {
        const int place = best_of(near, r->near_gradient, r->pivots, r->smallest, r->open, r->near_gains);
        if (place < 0 || r->near_gains[place] <= least)
            return -1;
        r->open[place] = 0;
        r->places[taken] = place;
        r->found[taken] = r->near_gains[place];
        if (r->pivots[place] > r->smallest[place])
            follow_column(near, r->left + (size_t)place * (size_t)near, r->directions, (*directions)++, place, r->near_gradient, r->pivots);
    }
    return near;
}

/* Decides, after a fit, how many candidates to add before the next one. */
static void judge(struct greedy *x, const struct problem *p, const struct room *r, double promised)
{
    const double value = likelihood_at(p, p->eta, 0.0, r->mean), gained = value - x->reached;
    if (fabs(promised - gained) <= x->by.trust * gained)
        x->ahead = larger(x->by.longest * x->total, x->by.fewest);
    else
        x->ahead = larger(x->ahead / 2, 1);
    x->ahead = smaller(x->ahead, x->count - x->total);
    x->reached = value;
}

/* Adds the best candidates to a fit of p->d coefficients and refits. Stops early where the next candidate may be one that the quadratic
 * model does not have, or the columns are nearly dependent: the caller continues from there. Returns a status code. */
static int enlarge(struct greedy *x, struct problem *p, int has_factor, const struct room *r)
{
    x->total = 0, x->ahead = x->by.first;
    x->reached = likelihood_at(p, p->eta, 0.0, r->mean);
    while (x->total < x->count) {
        const int size = p->d, batch = smaller(x->ahead, x->count - x->total);
        double unit, promised = 0.0;
        int directions;
        const int near = take_batch(x, p, r, batch, &directions, &unit);
        if (near < 0)
            break;
        for (int j = 0; j < batch; j++) {
            const int64_t position = r->near[r->places[j]];
            standardised(&x->candidates, position, p->design + (size_t)(size + j) * (size_t)p->n);
            p->beta[size + j] = 0.0;
            x->open[position] = 0;
            x->taken[x->total] = position;
            x->gains[x->total++] = 0.5 * r->found[j];
            promised += 0.5 * r->found[j];
        }
        const int independent = directions == batch;
        if (independent)
            extend_factor(r, size, near, batch, unit);
        else if (has_factor)
            memcpy(r->known, p->factor, (size_t)size * (size_t)size * sizeof(double));
        const int last = x->total == x->count;
        p->d = size + batch;
        p->with.tolerance = last ? x->exact : x->passing;
        p->family->moments(p->n, p->eta, p->mean, p->variance);
        has_factor =
            climb(p, independent || has_factor ? r->known : NULL, independent ? p->d : size, x->left <= p->with.tolerance ? size : -1);
        if (has_factor == NOT_DEFINITE)
            break;
        x->left = p->with.tolerance;
        if (!last)
            judge(x, p, r, promised);
    }
    return has_factor;
}

/* ---- For Python ------------------------------------------------------------------------------------------------------------- */

/* Fills out with the square roots of the weighted variances at eta; returns the largest weighted variance. */
PyObject *roots(struct arguments *a, PyObject *given)
{
    PyObject *eta, *weights, *out;
    const char *name;
    if (!PyArg_ParseTuple(given, "sOOO", &name, &eta, &weights, &out))
        return NULL;
    const int n = length_of(a, eta);
    const struct family *family = family_named(a, name);
    const double *predictor = DOUBLES(a, eta, n, READ), *w = DOUBLES(a, weights, n, READ);
    double *found = DOUBLES(a, out, n, WRITE), *mean = space(a, (size_t)n, sizeof(double));
    return a->failed ? NULL : PyFloat_FromDouble(take_roots(family, n, predictor, w, mean, found));
}

/* Fills out with the penalised curvature of the last rows of scaled after projecting out design, divided by unit; units are (ridge,
 * unit, free). Factor gets the upper factor of the curvature of design, above the block beside it in the factor of all rows, both
 * transposed. The first rows of scaled are work space. Returns False where the rows of design are nearly dependent. */
PyObject *curvature(struct arguments *a, PyObject *given)
{
    struct quadratic q;
    PyObject *design, *roots, *scaled, *out, *factor, *above;
    int failed = 0;
    if (!PyArg_ParseTuple(given, "OOO(ddi)OOO", &design, &roots, &scaled, &q.ridge, &q.unit, &q.free, &out, &factor, &above))
        return NULL;
    const int n = q.n = length_of(a, roots), size = q.size = length_of(a, design), near = q.near = length_of(a, out);
    const Py_ssize_t all = (Py_ssize_t)size + near;
    q.design = DOUBLES(a, design, (Py_ssize_t)size * n, READ);
    q.roots = DOUBLES(a, roots, n, READ);
    q.scaled = FLOATS(a, scaled, all * n, WRITE);
    q.out = DOUBLES(a, out, (Py_ssize_t)near * near, WRITE);
    q.factor = DOUBLES(a, factor, (Py_ssize_t)size * size, WRITE);
    q.above = DOUBLES(a, above, (Py_ssize_t)near * size, WRITE);
    require(a, n > 0, "there are no observations");
    float *gram = space(a, (size_t)(all * all), sizeof(float));
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (near)
        failed = curvature_left(&q, gram);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!failed);
}

/* Adds the best open candidates to a fit, as many as taken has room for; returns the additions, the additions before the next fit, the
 * status of the last fit, and the likelihood. All additions are fitted, the last of them exactly. With fewer than wanted the caller
 * continues from there. Tolerances are (least, left, passing, exact); the schedule is that of glm_gains.py, in the order of
 * struct schedule. */
PyObject *greedy(struct arguments *a, PyObject *given)
{
    struct problem p;
    struct greedy x;
    struct room r = {0};
    struct schedule *by = &x.by;
    PyObject *fit, *columns, *open, *taken, *gains;
    int has_factor, status;
    if (!PyArg_ParseTuple(given, "O!pO!OOO(dddd)(diiiiiidd)", &PyTuple_Type, &fit, &has_factor, &PyTuple_Type, &columns, &open, &taken,
                          &gains, &x.least, &x.left, &x.passing, &x.exact, &by->trust, &by->first, &by->longest, &by->fewest,
                          &by->least_near, &by->near_per_addition, &by->most_near, &by->not_near, &by->smallest_pivot))
        return NULL;
    open_fit(a, fit, &p);
    open_columns(a, columns, &x.candidates);
    x.count = length_of(a, taken);
    x.taken = WORDS(a, taken, x.count, WRITE);
    x.gains = DOUBLES(a, gains, x.count, WRITE);
    x.open = BOOLS(a, open, a->failed ? 0 : x.candidates.count, WRITE);
    require(a, !a->failed && x.candidates.n == p.n && x.count < p.d, "the fit has no room for the additions");
    const int counts[] = {by->first, by->longest, by->fewest, by->least_near, by->near_per_addition, x.count};
    require(a, by->most_near >= 0, "the schedule has negative counts");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) /* products of two of them fit into an int */
        require(a, counts[i] >= (i < 3) && counts[i] < 1 << 15, "a count of the schedule is out of range");
    if (a->failed)
        return NULL;
    const int64_t all = x.candidates.count, wanted = by->least_near + (int64_t)by->near_per_addition * larger(x.count, by->first);
    p.d -= x.count;
    make_room(a, &r, (size_t)p.n, (size_t)all, (size_t)(wanted < all ? wanted : all), (size_t)p.d, (size_t)x.count);
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = enlarge(&x, &p, has_factor, &r);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iiid", x.total, x.ahead, status, x.reached);
}
