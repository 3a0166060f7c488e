/* The quadratic model of a likelihood at a fit: what _quadratic.c offers to the module in _newton.c. */

#ifndef FASTOMP_QUADRATIC_H
#define FASTOMP_QUADRATIC_H

#include "_climb.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

struct quadratic {
    int n, size, near;     /* observations; columns of the fit; columns that may be added */
    const double *design;  /* n x size */
    const double *roots;   /* n: of the weighted variances at the fit */
    float *scaled;         /* n x (size + near): room, and behind it what may be added, each observation times its root */
    double ridge, unit;
    int intercept;         /* 1 where the first column is one, and not penalised */
    double *out;           /* near x near */
    double *factor;        /* size x size: that of the curvature of the fit, its upper triangle */
    double *above;         /* size x near: what is beside it in the factor of all */
};

/* Fills roots with those of the weighted variances at eta. Returns the largest weighted variance. */
double take_roots(const struct family *family, int n, const double *eta, const double *weights, double *mean, double *roots);

/* Fills out with the penalised curvature of what may be added that the columns of the fit leave, in units of `unit`; factor and above
 * with what that takes. Returns 0, or -1 where the columns of the fit are all but dependent. Products are taken in single precision;
 * `room` is for (size + near)^2 of them. */
int curvature_left(const struct quadratic *q, float *room);

extern void (*dtrsm)(const char *, const char *, const char *, const char *, const int *, const int *, const double *, const double *,
                     const int *, double *, const int *);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
