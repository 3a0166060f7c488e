/* Newton's method for canonical-link GLMs: what _climb.c offers to the others behind the module in _newton.c. */

#ifndef FASTOMP_CLIMB_H
#define FASTOMP_CLIMB_H

#include "../_wide.h"

/* Names as short as these must not meet those of a library that is loaded for everyone. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

struct family; /* of distributions */

struct settings {
    double ridge, tolerance; /* the latter: decrement that may be left */
    double slow, small, overshot;
    int max_steps, intercept; /* the latter: 1 where the first coefficient is one, else 0 */
};

struct problem {
    const struct family *family;
    struct settings with;
    int d, n;
    const double *design, *response, *weights; /* the first n x d, as BLAS has matrices */
    double *beta, *eta;        /* where to start; then the maximum */
    double *residual, *factor; /* there; the latter d x d, upper triangle */
    double *mean, *variance;   /* at eta */
    double *move, *scale;      /* n each, as all above */
    double *gradient, *step;   /* d each */
    double *last, *fall;       /* d each: the last step, and how the gradient fell along it */
    double *scaled;            /* BLOCK x d */
};

enum { NO_FACTOR = 0, FACTORED = 1, NOT_DEFINITE = -1 };

/* Returns NULL where none has this name. */
const struct family *family_named(const char *name);

/* How many doubles of work space a problem of this size needs; lays them out. */
unsigned long long work_space(int n, int d);
void lay_out(struct problem *p, double *room);

/* Goes to the maximum from beta and eta, with the factor `known` of the first `size` columns or NULL. The first `settled` coefficients are
 * fitted as well as is asked for, the others are zero, and the moments and the residual are those at eta; -1: none is, and these are not
 * known. The residual sums to zero, where there is an intercept. Returns FACTORED where `factor` is of use to go on from. */
int climb(const struct problem *p, const double *known, int size, int settled);

double sum_of(int n, const double *vector);

/* Fills mean and variance (n) with those at eta. */
void moments_of(const struct family *family, int n, const double *eta, double *mean, double *variance);

/* Penalised log-likelihood at eta and beta, up to what no model changes. `room` is for n. */
double penalised_likelihood(const struct problem *p, double *room);

/* Fills out with the log-likelihood of each of n observations, up to what no model changes. */
void take_likelihoods(const struct family *family, int n, const double *eta, const double *response, double *out);

/* BLAS and LAPACK: SciPy's, found when the module loads. */
extern void (*dgemv)(const char *, const int *, const int *, const double *, const double *, const int *, const double *,
                     const int *, const double *, double *, const int *);
extern void (*dsyrk)(const char *, const char *, const int *, const int *, const double *, const double *, const int *,
                     const double *, double *, const int *);
extern void (*ssyrk)(const char *, const char *, const int *, const int *, const float *, const float *, const int *, const float *,
                     float *, const int *);
extern void (*dpotrf)(const char *, const int *, double *, const int *, int *);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
