/* Prefixes of fits: what _prefixes.c offers to the module in _newton.c. */

#ifndef FASTOMP_PREFIXES_H
#define FASTOMP_PREFIXES_H

#include <stddef.h>
#include <stdint.h>

#include "_climb.h"
#include "_walk.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Rows of a matrix, picked by number, with what standardises each. */
struct columns {
    const char *rows;
    ptrdiff_t stride;
    char kind; /* 'f' or 'd' */
    int count, n;
    int64_t *places;
    double *mean, *scale;
    char *wide;    /* which of single precision to multiply in double: their mean is so large that digits cancel */
    float *single; /* n: room for a vector in single precision, or NULL where none is needed */
};

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

/* Fills out[i * step] with the product of the i-th column, standardised, with a vector. */
void products(const struct columns *x, const double *vector, double *out, int step);

/* Fills out (n) with the column at a position, standardised. */
void standardised(const struct columns *x, int64_t position, double *out);

/* Adds candidates to a fit of p->d coefficients, whose factor is in p->factor if `has_factor`. Returns what climb does. */
int advance_fits(struct prefixes *x, struct problem *p, int has_factor);

/* Goes through whole inner iterations, and begins no further one after so many multiplications. x->positions, blocked, count and enough
 * are not looked at. */
int walk_fits(struct prefixes *x, struct problem *p, int has_factor, struct walk *w, double effort);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
