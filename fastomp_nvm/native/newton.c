/* `_climb` of newton.py in C: the same steps in the same order, without the cost of a hundred small calls.
 *
 * newton.py is the reference; the names are the same. Matrices are in BLAS's order: the design, (d, n_obs) in C order, is n_obs x d
 * here, and a factor is the upper triangle of a d x d matrix. Sums differ from NumPy's in their last bits, so results name the
 * implementation that ran. */

#include "objectives.h"

#include <math.h>
#include <string.h>

#define BLOCK 256 /* observations scaled at a time for a curvature: with 50 coefficients they fit a second-level cache */

static const double ZERO = 0.0, ONE = 1.0, MINUS_ONE = -1.0;
static const int STRIDE = 1;

/* ---- Families --------------------------------------------------------------------------------------------------------------- */

/* Range reduction: x = whole * log 2 + rest, |x| clamped to 700; `power` = 2^whole. */
static inline double reduced(double x, double *power)
{
    x = x < -700.0 ? -700.0 : x;
    x = x > 700.0 ? 700.0 : x;
    const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52; /* the low bits hold the nearest integer to x / log 2 */
    const double whole = shifted - 0x1.8p52;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^whole has only exponent bits */
    memcpy(power, &bits, sizeof bits);
    return (x - whole * 0x1.62e42feep-1) - whole * 0x1.a39ef35793c76p-33; /* log 2 in two parts */
}

/* e^x = 2^whole (even + odd) / (even - odd), to two units in the last place: Pade's approximation of order 6, even and odd powers
 * apart, whose error is below 2e-19 for rests up to log 2 / 2. Branch-free, so that loops over it become vector code: with few
 * coefficients it is most of the cost of a step. */
static inline void exponential_parts(double x, double *even, double *odd, double *power)
{
    const double rest = reduced(x, power), square = rest * rest, fourth = square * square;
    *even = (1.0 + square * (5.0 / 44.0)) + fourth * (1.0 / 792.0 + square * (1.0 / 665280.0));
    *odd = rest * ((0.5 + square * (1.0 / 66.0)) + fourth * (1.0 / 15840.0));
}

static inline double exponential(double x)
{
    double even, odd, power;
    exponential_parts(x, &even, &odd, &power);
    return power * ((even + odd) / (even - odd));
}

WIDE static void logistic_moments(int n, const double *restrict eta, double *restrict mean, double *restrict variance)
{
    for (int i = 0; i < n; i++) { /* 1 / (1 + e^-eta), with a single division */
        double even, odd, power;
        exponential_parts(-eta[i], &even, &odd, &power);
        mean[i] = (even - odd) / ((even - odd) + power * (even + odd));
        variance[i] = mean[i] * (1.0 - mean[i]);
    }
}

/* log(1 + x) to a few units in the last place, for x from 0 to 1, as 2 artanh(x / (2 + x)); branch-free. */
static inline double log_of_one_and(double x)
{
    const double z = x / (2.0 + x), z2 = z * z, z4 = z2 * z2, z8 = z4 * z4; /* z <= 1/3, and 3^-35 is below the rounding error */
    const double a = (1.0 + z2 * (1.0 / 3.0)) + z4 * (1.0 / 5.0 + z2 * (1.0 / 7.0));
    const double b = (1.0 / 9.0 + z2 * (1.0 / 11.0)) + z4 * (1.0 / 13.0 + z2 * (1.0 / 15.0));
    const double c = (1.0 / 17.0 + z2 * (1.0 / 19.0)) + z4 * (1.0 / 21.0 + z2 * (1.0 / 23.0));
    const double d = (1.0 / 25.0 + z2 * (1.0 / 27.0)) + z4 * (1.0 / 29.0 + z2 * (1.0 / 31.0));
    return 2.0 * z * ((a + z8 * b) + (z8 * z8) * (c + z8 * (d + z8 * (1.0 / 33.0))));
}

WIDE static void logistic_partition(int n, const double *restrict eta, double *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = (eta[i] > 0.0 ? eta[i] : 0.0) + log_of_one_and(exponential(-fabs(eta[i])));
}

WIDE static void poisson_moments(int n, const double *restrict eta, double *restrict mean, double *restrict variance)
{
    for (int i = 0; i < n; i++)
        mean[i] = variance[i] = exponential(eta[i] < 600.0 ? eta[i] : 600.0); /* poisson.py: LARGEST_PREDICTOR */
}

WIDE static void poisson_partition(int n, const double *restrict eta, double *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = exponential(eta[i] < 600.0 ? eta[i] : 600.0);
}

static const struct family FAMILIES[] = {
    {"logistic", logistic_moments, logistic_partition},
    {"poisson", poisson_moments, poisson_partition},
};

const struct family *family_named(struct arguments *a, const char *name)
{
    for (size_t k = 0; !a->failed && k < sizeof FAMILIES / sizeof *FAMILIES; k++)
        if (strcmp(FAMILIES[k].name, name) == 0)
            return &FAMILIES[k];
    require(a, 0, "no family has this name");
    return NULL;
}

/* ---- A fit ------------------------------------------------------------------------------------------------------------------ */

static double penalty(const struct problem *p, int row)
{
    return row < p->with.free ? 0.0 : p->with.ridge;
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

double likelihood_at(const struct problem *p, const double *eta, double length, double *room)
{
    double sum = 0.0, squares = 0.0;
    p->family->partition(p->n, eta, room);
    for (int i = 0; i < p->n; i++)
        sum += p->weights[i] * (p->response[i] * eta[i] - room[i]);
    for (int j = p->with.free; j < p->d; j++) {
        const double coefficient = length != 0.0 ? p->beta[j] + length * p->step[j] : p->beta[j];
        squares += coefficient * coefficient;
    }
    return sum - 0.5 * p->with.ridge * squares;
}

/* Returns 1, 1/2, 1/4, ...: the first length of the step that increases the likelihood; 0 when none does. Overwrites the moments. */
static double growing_length(const struct problem *p)
{
    const double value = likelihood_at(p, p->eta, 0.0, p->variance);
    for (double length = 1.0; length >= 1e-10; length *= 0.5) {
        for (int i = 0; i < p->n; i++)
            p->mean[i] = p->eta[i] + length * p->move[i];
        if (likelihood_at(p, p->mean, length, p->variance) > value)
            return length;
    }
    return 0.0;
}

/* Computes moments and residual at eta. */
WIDE static void look(const struct problem *p)
{
    p->family->moments(p->n, p->eta, p->mean, p->variance);
    for (int i = 0; i < p->n; i++)
        p->residual[i] = p->weights[i] * (p->response[i] - p->mean[i]);
}

/* Moves beta and eta along the step. */
WIDE static void advance(const struct problem *p, double length)
{
    for (int j = 0; j < p->d; j++)
        p->beta[j] += length * p->step[j];
    for (int i = 0; i < p->n; i++)
        p->eta[i] += length * p->move[i];
}

/* Fills factor with the Gram matrix of the columns, each observation times its scale. */
WIDE static void scaled_products(const struct problem *p)
{
    memset(p->factor, 0, (size_t)p->d * (size_t)p->d * sizeof(double));
    for (int start = 0; start < p->n; start += BLOCK) {
        const int count = p->n - start < BLOCK ? p->n - start : BLOCK;
        for (int j = 0; j < p->d; j++) {
            const double *column = p->design + (size_t)j * (size_t)p->n + start;
            for (int i = 0; i < count; i++)
                p->scaled[(size_t)j * (size_t)count + (size_t)i] = column[i] * p->scale[start + i];
        }
        dsyrk("U", "T", &p->d, &count, &ONE, p->scaled, &count, &ONE, p->factor, &p->d);
    }
}

/* The same in float32, in half the time. Needs d <= n and d <= BLOCK, so that `scaled` has room for a block and the products. */
WIDE static void scaled_products_in_single(const struct problem *p)
{
    const float one = 1.0f, nothing = 0.0f;
    const size_t d = (size_t)p->d;
    float *scaled = (float *)p->scaled, *gram = scaled + (size_t)(p->n < BLOCK ? p->n : BLOCK) * d;
    for (int start = 0; start < p->n; start += BLOCK) {
        const int count = p->n - start < BLOCK ? p->n - start : BLOCK;
        for (size_t j = 0; j < d; j++) {
            const double *column = p->design + j * (size_t)p->n + start;
            for (int i = 0; i < count; i++)
                scaled[j * (size_t)count + (size_t)i] = (float)(column[i] * p->scale[start + i]);
        }
        ssyrk("U", "T", &p->d, &count, &one, scaled, &count, start ? &one : &nothing, gram, &p->d);
    }
    memset(p->factor, 0, d * d * sizeof(double));
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i <= j; i++)
            p->factor[j * d + i] = (double)gram[j * d + i];
}

/* Factors the curvature at eta. Returns 0, or -1 when it is not positive definite. */
WIDE static int curvature_here(const struct problem *p, int single)
{
    double trace = 0.0;
    int failed;
    for (int i = 0; i < p->n; i++)
        p->scale[i] = sqrt(p->weights[i] * p->variance[i]);
    if (single && p->d <= BLOCK && p->d <= p->n)
        scaled_products_in_single(p);
    else
        scaled_products(p);
    for (int j = 0; j < p->d; j++)
        trace += p->factor[(size_t)j * (size_t)(p->d + 1)];
    for (int j = 0; j < p->d; j++)
        p->factor[(size_t)j * (size_t)(p->d + 1)] += penalty(p, j) + 1e-12 * (1.0 + trace / p->d);
    dpotrf("U", &p->d, p->factor, &p->d, &failed);
    return failed ? -1 : 0;
}

/* Inner product, in four independent sums. */
static double inner(int d, const double *a, const double *b)
{
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    int j = 0;
    for (; j + 4 <= d; j += 4)
        for (int k = 0; k < 4; k++)
            sums[k] += a[j + k] * b[j + k];
    for (; j < d; j++)
        sums[0] += a[j] * b[j];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* x (d) = U'^-1 x, with the upper triangle U of the factor. For a few dozen coefficients BLAS takes several times as long. */
static void solve_transposed(int d, const double *factor, int stride, double *x)
{
    for (int j = 0; j < d; j++) {
        const double *column = factor + (size_t)j * (size_t)stride;
        x[j] = (x[j] - inner(j, column, x)) / column[j];
    }
}

/* x (d) = U^-1 x */
WIDE static void solve(int d, const double *restrict factor, double *restrict x)
{
    for (int j = d - 1; j >= 0; j--) {
        const double *column = factor + (size_t)j * (size_t)d;
        const double found = x[j] /= column[j];
        for (int i = 0; i < j; i++)
            x[i] -= column[i] * found;
    }
}

/* Fills factor with `known` (size x size), extended by the other columns of the design. Returns 0 where it is not definite. */
WIDE static int bordered(const struct problem *p, const double *known, int size)
{
    const int added = p->d - size;
    const size_t d = (size_t)p->d;
    int failed;
    for (int j = 0; j < size; j++)
        if (!(known[(size_t)j * (size_t)(size + 1)] != 0.0))
            return 0;
    for (int j = 0; j < size; j++) {
        memcpy(p->factor + (size_t)j * d, known + (size_t)j * (size_t)size, (size_t)(j + 1) * sizeof(double));
        memset(p->factor + (size_t)j * d + j + 1, 0, (d - (size_t)j - 1) * sizeof(double));
    }
    if (!added)
        return 1;
    double *above = p->factor + (size_t)size * d, *below = above + size;
    for (int j = 0; j < added; j++) {
        const double *column = p->design + (size_t)(size + j) * (size_t)p->n;
        for (int i = 0; i < p->n; i++)
            p->scale[i] = column[i] * p->weights[i] * p->variance[i];
        across(p, p->scale, above + (size_t)j * d);
        below[(size_t)j * (d + 1)] += penalty(p, size + j);
        solve_transposed(size, p->factor, p->d, above + (size_t)j * d);
    }
    if (added == 1) { /* the usual case */
        *below -= inner(size, above, above);
        failed = !(*below > 0.0);
        *below = failed ? 0.0 : sqrt(*below);
        return !failed;
    }
    dsyrk("U", "T", &added, &size, &MINUS_ONE, above, &p->d, &ONE, below, &p->d);
    dpotrf("U", &added, below, &p->d, &failed);
    return !failed;
}

/* Computes the gradient from the residual at beta. */
static void slope(const struct problem *p)
{
    across(p, p->residual, p->gradient);
    for (int j = 0; j < p->d; j++)
        p->gradient[j] -= penalty(p, j) * p->beta[j];
}

/* Fills step: the inverse of the curvature, corrected by the last step (a BFGS update of one pair), times the gradient. */
static void corrected(const struct problem *p, int has_last)
{
    const double product = has_last ? inner(p->d, p->last, p->fall) : 0.0;
    const double along = product > 0.0 ? inner(p->d, p->last, p->gradient) / product : 0.0;
    for (int j = 0; j < p->d; j++)
        p->step[j] = product > 0.0 ? p->gradient[j] - along * p->fall[j] : p->gradient[j];
    solve_transposed(p->d, p->factor, p->d, p->step);
    solve(p->d, p->factor, p->step);
    if (product > 0.0) {
        const double rest = along - inner(p->d, p->fall, p->step) / product;
        for (int j = 0; j < p->d; j++)
            p->step[j] += rest * p->last[j];
    }
}

/* Centres the residual: the fit makes its sum vanish up to the tolerance. */
WIDE static void centre(const struct problem *p)
{
    const double mean = sum_of(p->n, p->residual) / sum_of(p->n, p->weights);
    for (int i = 0; i < p->n; i++)
        p->residual[i] -= p->weights[i] * mean;
}

/* The largest move of the predictor of an observation with weight. */
WIDE static double farthest(const struct problem *p)
{
    double most = 0.0;
    for (int i = 0; i < p->n; i++) {
        const double moved = p->weights[i] > 0.0 ? fabs(p->move[i]) : 0.0;
        most = moved > most ? moved : most;
    }
    return most;
}

static int climb_uncentred(const struct problem *p, const double *known, int size, int settled)
{
    double before = INFINITY;
    int has_factor, has_last = 0, single = 1, made = -2; /* the last: the step at which a float32 factor was made */
    if (settled >= 0) {
        const int added = p->d - settled;
        memset(p->gradient, 0, (size_t)settled * sizeof(double));
        dgemv("T", &p->n, &added, &ONE, p->design + (size_t)settled * (size_t)p->n, &p->n, p->residual, &STRIDE, &ZERO,
              p->gradient + settled, &STRIDE);
    } else {
        look(p);
        slope(p);
    }
    has_factor = known && 3 * size >= 2 * p->d && bordered(p, known, size);
    for (int count = 0; count < p->with.max_steps; count++) {
        const int fresh = !has_factor;
        if (fresh) {
            if (single && curvature_here(p, 1) < 0)
                single = 0;
            if (!single && curvature_here(p, 0) < 0)
                return NOT_DEFINITE;
            made = single ? count : -2;
            has_factor = 1;
            has_last = 0;
        }
        corrected(p, has_last);
        const double decrement = inner(p->d, p->gradient, p->step);
        if (decrement > p->with.slow * before && !fresh) {
            single = single && count > made + 1; /* the float32 factor served one step only: the columns may be nearly dependent */
            has_factor = 0;
            continue;
        }
        along(p, p->step, p->move);
        advance(p, 1.0);
        look(p);
        if (decrement * (before < INFINITY ? decrement / before : 1.0) <= p->with.tolerance)
            break;
        before = decrement;
        memcpy(p->last, p->step, (size_t)p->d * sizeof(double));
        memcpy(p->fall, p->gradient, (size_t)p->d * sizeof(double));
        slope(p);
        for (int j = 0; j < p->d; j++)
            p->fall[j] -= p->gradient[j];
        const double end = inner(p->d, p->gradient, p->step);
        has_last = end >= 0.0 || (end >= -p->with.overshot * decrement && farthest(p) <= p->with.small);
        if (!has_last) { /* far past the maximum along the step, which may have lost */
            advance(p, -1.0);
            const double length = growing_length(p);
            advance(p, length);
            look(p);
            slope(p);
            if (length == 0.0) {
                if (fresh && !single)
                    break;
                single = single && !fresh;
                has_factor = 0;
                before = INFINITY;
            }
        }
    }
    return has_factor ? FACTORED : NO_FACTOR;
}

int climb(const struct problem *p, const double *known, int size, int settled)
{
    const int found = climb_uncentred(p, known, size, settled);
    if (p->with.free)
        centre(p);
    return found;
}

/* ---- From Python ------------------------------------------------------------------------------------------------------------ */

void open_fit(struct arguments *a, PyObject *given, struct problem *p)
{
    PyObject *design, *response, *weights, *beta, *eta, *residual, *factor;
    struct settings *with = &p->with;
    const char *name;
    if (!PyArg_ParseTuple(given, "s(dddddii)OOOOOOO", &name, &with->ridge, &with->tolerance, &with->slow, &with->small, &with->overshot,
                          &with->max_steps, &with->free, &design, &response, &weights, &beta, &eta, &residual, &factor)) {
        a->failed = 1;
        return;
    }
    const int n = p->n = length_of(a, response), d = p->d = length_of(a, beta);
    p->family = family_named(a, name);
    require(a, n > 0 && d > 0, "there are no observations or no coefficients");
    require(a, with->free >= 0 && with->free <= d, "the number of columns without penalty is out of range");
    p->design = DOUBLES(a, design, (Py_ssize_t)d * n, WRITE);
    p->response = DOUBLES(a, response, n, READ);
    p->weights = DOUBLES(a, weights, n, READ);
    p->beta = DOUBLES(a, beta, d, WRITE);
    p->eta = DOUBLES(a, eta, n, WRITE);
    p->residual = DOUBLES(a, residual, n, WRITE);
    p->factor = DOUBLES(a, factor, (Py_ssize_t)d * d, WRITE);
    double *room = space(a, 4 * (size_t)n + (4 + (size_t)(n < BLOCK ? n : BLOCK)) * (size_t)d, sizeof(double));
    if (!room)
        return;
    p->mean = room;
    p->variance = p->mean + n;
    p->move = p->variance + n;
    p->scale = p->move + n;
    p->gradient = p->scale + n;
    p->step = p->gradient + d;
    p->last = p->step + d;
    p->fall = p->last + d;
    p->scaled = p->fall + d;
}
