/* The inner iterations of Algorithm 1 (lines 6 to 9), over whatever adds candidates and scores them. The reference is
 * algorithms/sequence.py. */

#include "objectives.h"

/* Absorbs one word: the mixing function of random_keys.py. */
static uint64_t mixed(uint64_t state, uint64_t word)
{
    uint64_t z = (state ^ word) + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Fills keys: candidates are drawn in ascending order of these. */
static void draw(const struct rounds *r, int size)
{
    const uint64_t state = mixed(mixed(r->name, r->inner + (uint64_t)r->iterations), 0);
    for (int i = 0; i < size; i++)
        r->keys[i] = mixed(state, (uint64_t)r->features[r->origin[i]]);
}

/* Returns the candidate outside the model with the smallest key; there is one, and no two keys are equal. */
static int next_drawn(const struct rounds *r, const char *in_model, int size)
{
    int next = -1;
    for (int i = 0; i < size; i++)
        if (!in_model[i] && (next < 0 || r->keys[i] < r->keys[next]))
            next = i;
    return next;
}

/* Lists X_j in `kept`: candidates that reach the threshold, are not in the model, and not blocked. Returns |X_j|. */
static int survivors(const struct candidates *x, const struct rounds *r)
{
    int count = 0;
    for (int i = 0; i < x->count; i++) { /* without a branch: about half of them survive, in no order */
        r->kept[count] = i;
        count += (x->scores[i] >= r->threshold) & !x->in_model[i] & (!r->blocked || r->blocked[i] > r->total);
    }
    return count;
}

int run_rounds(struct candidates *x, struct rounds *r)
{
    r->total = r->iterations = 0;
    do {
        const int size = x->count, before = r->total;
        int left = -1; /* |X_j*|, once j* is found */
        if (!r->given)
            draw(r, size);
        while (left < 0 && r->total < r->room) {
            const int64_t next = r->given ? r->given[r->total] : next_drawn(r, x->in_model, size);
            if (r->skip_weak && r->total && x->scores[next] < r->threshold)
                break;
            r->added[r->total++] = r->given ? next : r->origin[next];
            if (x->add(x, next) < 0)
                return -1;
            x->in_model[next] = 1;
            const int full = !r->given && r->total == r->room; /* nothing extends the set: X is empty */
            if (!full)
                x->score(x);
            const int still = full ? 0 : survivors(x, r);
            if (still < r->share * size)
                left = still;
        }
        x->finish(x, r->kept, left);
        if (left < 0)
            break;
        for (int i = 0; i < left; i++) /* ascending: every entry is read before it is overwritten */
            r->origin[i] = r->origin[r->kept[i]];
        x->count = left;
        r->sizes[2 * r->iterations] = size;
        r->sizes[2 * r->iterations++ + 1] = r->total - before;
    } while (!r->given && x->count && r->total < r->room && x->spent <= r->effort);
    return 0;
}

void open_rounds(struct arguments *a, PyObject *given, const struct candidates *x, struct rounds *r)
{
    PyObject *features, *origin, *added, *sizes, *blocked;
    unsigned long long seed, outer, inner; /* modulo 2^64 */
    int is_given;
    const int count = x->count;
    if (a->failed || !PyArg_ParseTuple(given, "OOOOO(KKK)dddpp", &features, &origin, &added, &sizes, &blocked, &seed, &outer, &inner,
                                       &r->threshold, &r->share, &r->effort, &is_given, &r->skip_weak)) {
        a->failed = 1;
        return;
    }
    r->room = length_of(a, added);
    r->features = WORDS(a, features, count, READ);
    r->origin = WORDS(a, origin, count, WRITE);
    r->added = WORDS(a, added, r->room, WRITE);
    r->sizes = WORDS(a, sizes, 2 * (Py_ssize_t)r->room, WRITE);
    r->blocked = blocked == Py_None ? NULL : WORDS(a, blocked, count, READ);
    r->keys = space(a, (size_t)count, sizeof *r->keys);
    r->kept = space(a, (size_t)count, sizeof *r->kept);
    r->given = is_given ? r->added : NULL;
    r->name = mixed(mixed(0, seed), outer), r->inner = inner;
    require(a, r->room > 0 && count > 0 && (is_given || (r->room <= count && r->share > 0.0)), "there is nothing to add");
    for (int i = 0; !a->failed && i < count; i++)
        require(a, r->origin[i] == i && (is_given || !x->in_model[i]), "origin does not count from 0, or the model has candidates");
    for (int i = 0; !a->failed && r->given && i < r->room; i++)
        require(a, r->given[i] >= 0 && r->given[i] < count, "a position is out of range");
}
