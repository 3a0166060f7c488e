/* Inner iterations of FAST_OMP that no constraint interferes with but for the number of features: what those over a Gram matrix and
 * those of fits have in common. base.py (`Candidates.walk`) says what they are. */

#ifndef FASTOMP_WALK_H
#define FASTOMP_WALK_H

#include <stdint.h>

#include "../_mixing.h"

struct walk {
    uint64_t name;                    /* of the draws, mixed; the number of the iteration comes behind it */
    int64_t inner;                    /* that of the first iteration */
    const int64_t *features;          /* of the candidates at the start */
    int64_t *origin;                  /* positions among these of the candidates that are left */
    uint64_t *keys;                   /* room for as many */
    int64_t *added, *sizes, *lengths; /* found: positions at the start; candidates before, and additions of, each iteration */
    int room;                         /* features after which the set is full */
    double share;                     /* of the candidates: an iteration ends when fewer are left */
    int total, iterations;            /* found: additions; iterations */
};

/* Draws the order in which an iteration adds `size` candidates. */
static inline void draw(struct walk *w, int size)
{
    const uint64_t drawn = mixed(mixed(w->name, (uint64_t)(w->inner + w->iterations)), 0);
    for (int i = 0; i < size; i++)
        w->keys[i] = mixed(drawn, (uint64_t)w->features[w->origin[i]]);
}

/* Notes and returns the next candidate in this order that is not in the model; there is one. */
static inline int next_drawn(struct walk *w, const char *in_model, int size)
{
    int next = -1;
    for (int i = 0; i < size; i++)
        if (!in_model[i] && (next < 0 || w->keys[i] < w->keys[next])) /* no two are equal */
            next = i;
    w->added[w->total++] = w->origin[next];
    return next;
}

/* Ends an iteration that began with `size` candidates and `before` additions: the first `still` of `kept` are left, by position. */
static inline void end_iteration(struct walk *w, int size, int before, const int64_t *kept, int still)
{
    for (int i = 0; i < still; i++) /* ascending: what is written has been read */
        w->origin[i] = w->origin[kept[i]];
    w->sizes[w->iterations] = size;
    w->lengths[w->iterations++] = w->total - before;
}

#endif
