/* The greedy behind the polish of a GLM: what _greedy.c offers to the module in _newton.c. */

#ifndef FASTOMP_GREEDY_H
#define FASTOMP_GREEDY_H

#include <stdint.h>

#include "_climb.h"
#include "_prefixes.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* The settings of glm_gains.py, under their names there. */
struct schedule {
    double trust;
    int first, longest, fewest, least_near, near_per_addition, most_near;
    double not_near, smallest_pivot;
};

struct greedy {
    struct columns candidates;
    struct schedule by;
    char *open;             /* candidates that may be added; what is added no longer may */
    int count;              /* how many to add */
    double least;           /* gain that is not worth adding anything for */
    double *design;         /* n x (p->d + count) */
    double left;            /* tolerance of the fit to start from; then of the last one */
    double passing, exact;  /* tolerances of a fit to go on from, and of the last */
    int64_t *taken;         /* found: what was added, by position */
    double *gains;          /* found: what each of them gains */
    int total;              /* found: how many; all of them fitted */
    int ahead;              /* found: how many to add before the next fit */
    double reached;         /* found: likelihood of the fit, up to what no model changes */
};

enum { NO_MEMORY = -2 };

/* Adds the best candidates to a fit of p->d coefficients, whose factor is in p->factor if `has_factor`, and fits. Ends early, with fewer
 * than x->count, where a candidate that the quadratic model does not have may come next, or the fit is all but dependent: what is
 * found is then where to go on from. Returns what climb does, or NO_MEMORY. */
int greedy_fits(struct greedy *x, struct problem *p, int has_factor);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
