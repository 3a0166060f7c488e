/* Gradients and remainders of columns that follow others, over their Gram matrix, and the greedy that takes the best of them: what
 * linear_gains.py says (`FollowedGains`), for the modules that include it. */

#ifndef FASTOMP_FOLLOWING_H
#define FASTOMP_FOLLOWING_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../_wide.h"

/* out = column - sum over i of directions[i] * directions[i][at], each of length n: what `directions` leave of a Gram column. */
WIDE static void remainder_of(int n, const double *restrict column, const double *restrict directions, int count, int at,
                              double *restrict out)
{
    memcpy(out, column, (size_t)n * sizeof(double));
    int i = 0;
    for (; i + 4 <= count; i += 4) { /* four at a time: `out` is read and written a quarter as often */
        const double *a = directions + (size_t)i * (size_t)n, *b = a + n, *c = b + n, *d = c + n;
        const double along_a = a[at], along_b = b[at], along_c = c[at], along_d = d[at];
        for (int j = 0; j < n; j++)
            out[j] = (((out[j] - a[j] * along_a) - b[j] * along_b) - c[j] * along_c) - d[j] * along_d;
    }
    for (; i < count; i++) {
        const double *a = directions + (size_t)i * (size_t)n, along = a[at];
        for (int j = 0; j < n; j++)
            out[j] -= a[j] * along;
    }
}

/* The column becomes a direction, and the gradient follows it. */
WIDE static void move_along(int n, double *restrict direction, double root, double move, double *restrict gradient)
{
    for (int j = 0; j < n; j++) {
        direction[j] /= root;
        gradient[j] -= direction[j] * move;
    }
}

/* Entry by entry, so that the divisions become vector code; what is dependent or not open gains nothing. */
WIDE static void gains_of(int n, const double *restrict gradient, const double *restrict pivot, const double *restrict smallest,
                          double *restrict out)
{
    for (int j = 0; j < n; j++) {
        const double gain = gradient[j] * gradient[j] / pivot[j];
        out[j] = pivot[j] > smallest[j] ? gain : 0.0;
    }
}

WIDE static void lower_pivots(int n, const double *restrict direction, double *restrict pivot)
{
    for (int j = 0; j < n; j++)
        pivot[j] -= direction[j] * direction[j];
}

/* Fills gains; returns the first open column with the largest of them, -1 where none is open. */
static int best_of(int n, const double *gradient, const double *pivots, const double *smallest, const char *open, double *gains)
{
    int place = -1;
    gains_of(n, gradient, pivots, smallest, gains);
    for (int j = 0; j < n; j++)
        if (open[j] && (place < 0 || gains[j] > gains[place])) /* the first among equals */
            place = j;
    return place;
}

/* Has gradient and pivots follow a column, whose Gram column is given; fills direction number `size`; returns the move. */
static double follow_column(int n, const double *gram, double *directions, int size, int column, double *gradient, double *pivots)
{
    double *direction = directions + (size_t)size * (size_t)n;
    const double root = sqrt(pivots[column]), move = gradient[column] / root;
    remainder_of(n, gram, directions, size, column, direction);
    direction[column] = pivots[column]; /* as it was followed, rather than as it comes out anew */
    move_along(n, direction, root, move, gradient);
    lower_pivots(n, direction, pivots);
    return move;
}

struct following {
    int n;                    /* columns */
    const double *gram;       /* n x n */
    double *directions;       /* n each */
    int size;                 /* directions so far */
    double *gradient, *pivots;
    const double *smallest;   /* pivots that count as nothing */
    char *open;               /* which may be taken */
    double *gains;            /* room */
};

/* Takes the best open column, and has all follow it, `count` times or until no more than `least` is gained. Returns how many were taken. */
static int take_best(struct following *f, int count, double least, int64_t *places, double *found)
{
    int taken = 0;
    for (; taken < count; taken++) {
        const int place = best_of(f->n, f->gradient, f->pivots, f->smallest, f->open, f->gains);
        if (place < 0 || f->gains[place] <= least)
            break;
        f->open[place] = 0;
        places[taken] = place;
        found[taken] = f->gains[place];
        if (f->pivots[place] > f->smallest[place])
            follow_column(f->n, f->gram + (size_t)place * (size_t)f->n, f->directions, f->size++, place, f->gradient, f->pivots);
    }
    return taken;
}

#endif
