/* Greedy additions to a GLM by gains to second order, fits in between: what glm_gains.py says, in C. Knows no Python. */

#include "_greedy.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../_filling.h"
#include "_following.h"
#include "_quadratic.h"

/* Work space of one quadratic model after the other, for as many columns as the largest may have. */
struct room {
    double *gradient, *scores, *sorted;                           /* of all candidates */
    double *roots, *mean;                                         /* n each */
    double *left, *factor, *above;                                /* of a struct quadratic, as is scaled */
    double *known;                                                /* factor that the next fit starts with */
    double *directions, *near_gradient, *pivots, *near_gains;     /* of a struct following, as are smallest and open */
    double *smallest;
    double *found;                                                /* gains of what is taken */
    float *scaled, *gram;
    int64_t *near, *places;                                       /* candidates near; of these, what is taken */
    char *open;
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

/* Allocates all at once. Returns what to free, or NULL. */
static void *make_room(struct room *r, size_t n, size_t candidates, size_t near, size_t size, size_t count)
{
    const size_t most = size + count, all = most + near;
    const size_t doubles = 3 * candidates + 2 * n + near * near + 2 * most * most + near * most + count * near + 4 * near + count;
    const size_t words = near + count, singles = all * n + all * all;
    /* Twice as much as is needed: glibc keeps what is freed up to twice the largest block that it ever gave back, and gives back what is
     * beyond. Each selection would have to be given its pages again, which takes longer than to write them. */
    double *block = malloc(2 * (doubles * sizeof(double) + words * sizeof(int64_t) + singles * sizeof(float) + near + 1));
    double *next = block;
    if (!block)
        return NULL;
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
    return block;
}

/* Returns the `rank`-th largest, from 0, of `count` values, which it puts in another order. */
static double largest_but(double *values, int count, int rank)
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

/* Lists the `count` of `all` candidates with the largest scores, the first among equals, ascending. Returns how many there are. */
static int nearest(const struct room *r, int all, int count)
{
    int found = 0, above = 0;
    memcpy(r->sorted, r->scores, (size_t)all * sizeof(double));
    count = smaller(count, all);
    const double least = count ? largest_but(r->sorted, all, count - 1) : 0.0;
    for (int i = 0; i < all; i++)
        above += r->scores[i] > least;
    for (int i = 0, equal = count - above; i < all && found < count; i++)
        if (r->scores[i] > least || (r->scores[i] == least && equal-- > 0))
            r->near[found++] = i;
    return found;
}

/* Fills out (n each) with those near, standardised, each observation times its root. */
static void scale_near(const struct greedy *x, const struct room *r, int near, float *out)
{
    const struct columns *c = &x->candidates;
    Fill *fill = filling(c->kind, 'f');
    for (int j = 0; j < near; j++, out += c->n) {
        const int64_t i = r->near[j];
        fill(c->n, c->rows + c->places[i] * c->stride, c->mean[i], c->scale[i], r->roots, out);
    }
}

/* Fills known with the factor of the fit and of the `added` columns at r->places that the quadratic model has followed. */
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

/* Makes the quadratic model at the fit, and has it take the best `batch`. Returns how many columns it has; what was taken is in r->places,
 * and f says how far they were followed. -1: fewer were taken, or there is none. */
static int take_batch(const struct greedy *x, const struct problem *p, const struct room *r, int batch, struct following *f, double *unit)
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
    scale_near(x, r, near, r->scaled + (size_t)p->d * (size_t)p->n);
    const struct quadratic q = {p->n,  p->d,    near,   x->design, r->roots, r->scaled, p->with.ridge, *unit, p->with.intercept,
                                r->left, r->factor, r->above};
    if (!near || curvature_left(&q, r->gram) < 0)
        return -1;
    const double root = sqrt(*unit), others = top * (x->by.not_near / *unit);
    for (int j = 0; j < near; j++) {
        r->near_gradient[j] = r->gradient[r->near[j]] / root;
        r->pivots[j] = r->left[(size_t)j * (size_t)(near + 1)];
        r->smallest[j] = x->by.smallest_pivot;
        r->open[j] = x->open[r->near[j]];
    }
    *f = (struct following){near, r->left, r->directions, 0, r->near_gradient, r->pivots, r->smallest, r->open, r->near_gains};
    const double least = 2.0 * (x->least > others ? x->least : others);
    return take_best(f, batch, least, r->places, r->found) < batch ? -1 : near;
}

/* Decides, after a fit, how many to add before the next one. */
static void judge(struct greedy *x, const struct problem *p, const struct room *r, double promised)
{
    const double value = penalised_likelihood(p, r->mean), gained = value - x->reached;
    if (fabs(promised - gained) <= x->by.trust * gained)
        x->ahead = larger(x->by.longest * x->total, x->by.fewest);
    else
        x->ahead = larger(x->ahead / 2, 1);
    x->ahead = smaller(x->ahead, x->count - x->total);
    x->reached = value;
}

static int grow(struct greedy *x, struct problem *p, int has_factor, const struct room *r)
{
    x->total = 0, x->ahead = x->by.first;
    x->reached = penalised_likelihood(p, r->mean);
    while (x->total < x->count) {
        const int size = p->d, batch = smaller(x->ahead, x->count - x->total);
        struct following f;
        double unit, promised = 0.0;
        const int near = take_batch(x, p, r, batch, &f, &unit);
        if (near < 0)
            break;
        for (int j = 0; j < batch; j++) {
            const int64_t position = r->near[r->places[j]];
            standardised(&x->candidates, position, x->design + (size_t)(size + j) * (size_t)p->n);
            p->beta[size + j] = 0.0;
            x->open[position] = 0;
            x->taken[x->total] = position;
            x->gains[x->total++] = 0.5 * r->found[j];
            promised += 0.5 * r->found[j];
        }
        const int followed = f.size == batch; /* none was dependent */
        if (followed)
            extend_factor(r, size, near, batch, unit);
        else if (has_factor)
            memcpy(r->known, p->factor, (size_t)size * (size_t)size * sizeof(double));
        const int last = x->total == x->count;
        p->d = size + batch;
        p->with.tolerance = last ? x->exact : x->passing;
        moments_of(p->family, p->n, p->eta, p->mean, p->variance);
        has_factor = climb(p, followed || has_factor ? r->known : NULL, followed ? p->d : size, x->left <= p->with.tolerance ? size : -1);
        if (has_factor == NOT_DEFINITE)
            break;
        x->left = p->with.tolerance;
        if (!last)
            judge(x, p, r, promised);
    }
    return has_factor;
}

int greedy_fits(struct greedy *x, struct problem *p, int has_factor)
{
    struct room r;
    const size_t all = (size_t)x->candidates.count, count = (size_t)x->count;
    const size_t wanted = (size_t)x->by.least_near + (size_t)x->by.near_per_addition * (size_t)larger(x->count, x->by.first);
    const size_t near = wanted < all ? wanted : all;
    void *block = make_room(&r, (size_t)p->n, all, near, (size_t)p->d, count);
    if (!block)
        return NO_MEMORY;
    const int found = grow(x, p, has_factor, &r);
    free(block);
    return found;
}
