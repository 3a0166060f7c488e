/* Products of candidates with a residual, and FAST_OMP's prefixes of fits: what glm_candidates.py says, in C. Knows no Python. */

#include "_prefixes.h"

#include <string.h>

#include "../_filling.h"

/* ---- Gradients -------------------------------------------------------------------------------------------------------------- */

/* Four numbers that are added up apart from each other: the same sums whether the processor adds four or two at a time. */
#if defined(__GNUC__)
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float FourSingle __attribute__((vector_size(16), aligned(4), may_alias));
#define WIDENED(FROM) __builtin_convertvector(*(const FourSingle *)(FROM), Four)
#define TAKEN(FROM) (*(const Four *)(FROM))
#define LANES 16
#endif

/* A row of no more bytes is fetched while the one before it is multiplied: rows lie here and there, and processors foresee the next
 * lines of one, not the next one. */
#define FETCHED_BYTES 16384

/* Dot product with a row; its bits depend on the two alone. `next` is fetched meanwhile. */
#if defined(__GNUC__)
#define FETCH(FROM) __builtin_prefetch(FROM)
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef double EightWide __attribute__((vector_size(64)));
#define EIGHT(FROM) (*(const Eight *)(FROM))
#define SINGLES 32  /* numbers a turn takes */
#define CARRIED 512 /* numbers, a multiple of the former, after which sums are carried over to double */

/* Both in single precision, as sweeps have them: half the bytes, and twice as many at a time. */
WIDE static double dot_fast(int n, const float *row, const float *vector, const float *next)
{
    double sum = 0.0;
    int i = 0;
    while (i + SINGLES <= n) {
        const int whole = n - i < CARRIED ? (n - i) / SINGLES * SINGLES : CARRIED, end = i + whole;
        Eight a = {0}, b = {0}, c = {0}, d = {0};
        for (; i < end; i += SINGLES) {
            FETCH(next + i);
            FETCH(next + i + 16);
            a += EIGHT(row + i) * EIGHT(vector + i);
            b += EIGHT(row + i + 8) * EIGHT(vector + i + 8);
            c += EIGHT(row + i + 16) * EIGHT(vector + i + 16);
            d += EIGHT(row + i + 24) * EIGHT(vector + i + 24);
        }
        const EightWide all = __builtin_convertvector((a + b) + (c + d), EightWide);
        sum += ((all[0] + all[1]) + (all[2] + all[3])) + ((all[4] + all[5]) + (all[6] + all[7]));
    }
    for (; i < n; i++)
        sum += (double)row[i] * (double)vector[i];
    return sum;
}

#define DOT(NAME, ROW, LOADED)                                                                                                     \
    WIDE static double NAME(int n, const ROW *row, const double *vector, const ROW *next)                                         \
    {                                                                                                                              \
        Four a = {0}, b = {0}, c = {0}, d = {0};                                                                                   \
        int i = 0;                                                                                                                 \
        for (; i + LANES <= n; i += LANES) {                                                                                       \
            FETCH(next + i);                                                                                                       \
            FETCH(next + i + 8);                                                                                                   \
            a += LOADED(row + i) * TAKEN(vector + i);                                                                              \
            b += LOADED(row + i + 4) * TAKEN(vector + i + 4);                                                                      \
            c += LOADED(row + i + 8) * TAKEN(vector + i + 8);                                                                      \
            d += LOADED(row + i + 12) * TAKEN(vector + i + 12);                                                                    \
        }                                                                                                                          \
        a = (a + b) + (c + d);                                                                                                     \
        double sum = (a[0] + a[1]) + (a[2] + a[3]);                                                                                \
        for (; i < n; i++)                                                                                                         \
            sum += (double)row[i] * vector[i];                                                                                     \
        return sum;                                                                                                                \
    }
DOT(dot_single, float, WIDENED)
DOT(dot_double, double, TAKEN)
#else
static double dot_fast(int n, const float *row, const float *vector, const float *next)
{
    double sum = 0.0;
    (void)next;
    for (int i = 0; i < n; i++)
        sum += (double)row[i] * (double)vector[i];
    return sum;
}

#define DOT(NAME, ROW)                                                                                                             \
    static double NAME(int n, const ROW *row, const double *vector, const ROW *next)                                              \
    {                                                                                                                              \
        double sum = 0.0;                                                                                                          \
        (void)next;                                                                                                                \
        for (int i = 0; i < n; i++)                                                                                                \
            sum += (double)row[i] * vector[i];                                                                                     \
        return sum;                                                                                                                \
    }
DOT(dot_single, float)
DOT(dot_double, double)
#endif

/* Fills out with a vector in single precision. Returns the sum of that. */
static double rounded(int n, const double *vector, float *out)
{
    double even = 0.0, odd = 0.0;
    for (int i = 0; i < n; i++) {
        out[i] = (float)vector[i];
        if (i % 2)
            odd += (double)out[i];
        else
            even += (double)out[i];
    }
    return even + odd;
}

/* Fills out[i * step] with the product of the i-th column, standardised, with a vector. */
void products(const struct columns *x, const double *vector, double *out, int step)
{
    const double sum = sum_of(x->n, vector), single_sum = x->single ? rounded(x->n, vector, x->single) : 0.0;
    const size_t row_bytes = (size_t)x->n * (x->kind == 'd' ? sizeof(double) : sizeof(float));
    const int fetched = row_bytes <= FETCHED_BYTES;
    for (int i = 0; i < x->count; i++) {
        const char *row = x->rows + x->places[i] * x->stride;
        const char *next = x->rows + x->places[fetched && i + 1 < x->count ? i + 1 : i] * x->stride;
        double raw, total = sum;
        if (x->kind == 'd')
            raw = dot_double(x->n, (const double *)row, vector, (const double *)next);
        else if (x->wide[i])
            raw = dot_single(x->n, (const float *)row, vector, (const float *)next);
        else {
            raw = dot_fast(x->n, (const float *)row, x->single, (const float *)next);
            total = single_sum;
        }
        out[(size_t)i * (size_t)step] = (raw - x->mean[i] * total) * x->scale[i];
    }
}

void standardised(const struct columns *x, int64_t position, double *out)
{
    filling(x->kind, 'd')(x->n, x->rows + x->places[position] * x->stride, x->mean[position], x->scale[position], NULL, out);
}

/* ---- Prefixes --------------------------------------------------------------------------------------------------------------- */

/* Lists the candidates whose score reaches the threshold, that are not in the model, and that `added` additions do not block.
 * Returns how many. */
static int alive(const struct prefixes *x, int64_t added)
{
    int count = 0;
    for (int i = 0; i < x->candidates.count; i++) {
        const double squared = x->gradient[i] * x->gradient[i];
        x->kept[count] = i;
        count += (squared >= x->threshold) & !x->in_model[i] & (!x->blocked || x->blocked[i] > added);
    }
    return count;
}

/* Goes on with the first `count` of x->kept, which is ascending: what is written has been read. */
static void keep(struct prefixes *x, int count)
{
    for (int i = 0; i < count; i++) {
        const int64_t from = x->kept[i];
        x->gradient[i] = x->gradient[from];
        x->candidates.places[i] = x->candidates.places[from];
        x->candidates.mean[i] = x->candidates.mean[from];
        x->candidates.scale[i] = x->candidates.scale[from];
        x->candidates.wide[i] = x->candidates.wide[from];
    }
    memset(x->in_model, 0, (size_t)count);
}

/* Adds the candidate at a position to a fit of p->d coefficients, whose factor is in p->factor if `has_factor`, and takes the gradients
 * unless it is the `last` that fits. Returns what climb does. */
static int add(struct prefixes *x, struct problem *p, int has_factor, int64_t position, int last)
{
    const int size = p->d;
    if (has_factor)
        memcpy(x->known, p->factor, (size_t)size * (size_t)size * sizeof(double));
    standardised(&x->candidates, position, x->design + (size_t)size * (size_t)p->n);
    p->beta[size] = 0.0;
    p->d = size + 1;
    has_factor = climb(p, has_factor ? x->known : NULL, size, size);
    if (has_factor != NOT_DEFINITE && !last)
        products(&x->candidates, p->residual, x->gradient, 1);
    x->in_model[position] = 1;
    return has_factor;
}

int advance_fits(struct prefixes *x, struct problem *p, int has_factor)
{
    x->left = -1;
    moments_of(p->family, p->n, p->eta, p->mean, p->variance);
    for (x->added = 0; x->added < x->count && x->left < 0; x->added++) {
        const int64_t position = x->positions[x->added];
        if (x->skip_weak && x->added && x->gradient[position] * x->gradient[position] < x->threshold)
            break;
        has_factor = add(x, p, has_factor, position, 0);
        if (has_factor == NOT_DEFINITE)
            return NOT_DEFINITE;
        const int still = alive(x, x->added + 1);
        if (still < x->enough) {
            x->left = still;
            keep(x, still);
        }
    }
    return has_factor;
}

int walk_fits(struct prefixes *x, struct problem *p, int has_factor, struct walk *w, double effort)
{
    double spent = 0.0;
    w->total = w->iterations = 0;
    x->blocked = NULL;
    moments_of(p->family, p->n, p->eta, p->mean, p->variance);
    while (x->candidates.count && w->total < w->room && spent <= effort) {
        const int size = x->candidates.count, before = w->total;
        int still = size;
        draw(w, size);
        while (!(still < w->share * size)) { /* at the latest when all are in the model, or no more fit */
            const int64_t position = next_drawn(w, x->in_model, size);
            const int full = w->total == w->room;
            has_factor = add(x, p, has_factor, position, full);
            if (has_factor == NOT_DEFINITE)
                return NOT_DEFINITE;
            still = full ? 0 : alive(x, 0);
            spent += (double)p->n * (size + 10.0 * p->d); /* products with the candidates, and about five steps of the fit */
        }
        keep(x, still);
        end_iteration(w, size, before, x->kept, still);
        x->candidates.count = still;
    }
    return has_factor;
}
