/* Mean, centred norm and range of each row, in float64, plain or under observation weights.
 *
 * The bits of a row's moments depend on its values, the weights and the number of observations only. Observation i belongs to lane
 * i % STEP; lanes are added in order within a chunk, folded in a fixed tree, and the chunks are added in order. Products are rounded
 * before they are added, so both instruction sets give the same bits; so do contiguous and interleaved rows (rows.h). */

#include "rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES 4
#define STEP 8     /* observations per step: two vectors, so that additions need not wait for each other */
#define CHUNK 4096 /* observations whose lanes are folded at once: keeps the rounding errors of long rows small */
#define STRIP 64   /* vectors of interleaved rows at a time: those of some thousand observations stay in the cache for the second pass */
#define CACHED (1 << 18) /* bytes of contiguous rows at a time that stay in the second-level cache for their products */
#define DEPTH 4    /* observations of one lane that interleaved rows advance by at once */
#define FEW 4      /* the same where they are converted, a chunk at a time */

typedef double Lanes __attribute__((vector_size(LANES * sizeof(double))));
typedef int64_t Mask __attribute__((vector_size(LANES * sizeof(int64_t))));
typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef Lanes Doubles;

#define INLINE static inline __attribute__((always_inline))

/* The lanes of a where `mask` is set, of b elsewhere. */
#define CHOOSE(mask, a, b) ((Lanes)(((mask) & (Mask)(a)) | (~(mask) & (Mask)(b))))
#define FOLD(s, t) ((((s)[0] + (t)[0]) + ((s)[2] + (t)[2])) + (((s)[1] + (t)[1]) + ((s)[3] + (t)[3])))

/* Widens a vector of entries to float64; GCC makes two conversions of halves of it, so that AVX2 has its own. */
#define PLAIN_WIDEN(some) __builtin_convertvector(some, Lanes)

/* The smaller and the larger of x and a limit, lane by lane; the limit where x is not a number. */
#define PLAIN_LEAST(x, limit) CHOOSE((Mask)((x) < (limit)), x, limit)
#define PLAIN_MOST(x, limit) CHOOSE((Mask)((x) > (limit)), x, limit)

/* Runs `use(x, weight, counted, half, ...)` for LANES observations at `values`; lanes beyond `here`, and observations of weight 0 even
 * where they are not finite, are not counted. */
#define TAKE(type, widen, use, least_of, most_of, values, weights, here, half)                                               \
    do {                                                                                                                     \
        type some;                                                                                                           \
        Lanes weight = zero;                                                                                                 \
        memcpy(&some, values, sizeof some);                                                                                  \
        if (weighted)                                                                                                        \
            memcpy(&weight, weights, sizeof weight);                                                                         \
        const Lanes x = widen(some);                                                                                         \
        const Mask counted = weighted ? (Mask)(weight > zero) : (Mask)(order + (half) * LANES < zero + (double)(here));      \
        const int all = !weighted && (here) == STEP;                                                                         \
        use(x, weight, counted, half, least_of, most_of);                                                                    \
    } while (0)

/* Runs `use` for the observations begin to end of a row; the last ones from copies padded with zeros. */
#define EACH_OBSERVATION(type, widen, begin, end, use, least_of, most_of)                                                    \
    do {                                                                                                                     \
        const Index item = (Index)(sizeof(type) / LANES), rest = ((end) - (begin)) % STEP, last = (end) - rest;              \
        for (Index i = begin; i < last; i += STEP) {                                                                         \
            TAKE(type, widen, use, least_of, most_of, row + i * item, weights + i, STEP, 0);                                 \
            TAKE(type, widen, use, least_of, most_of, row + (i + LANES) * item, weights + i + LANES, STEP, 1);               \
        }                                                                                                                    \
        if (rest) {                                                                                                          \
            char values[2 * sizeof(type)] = {0};                                                                             \
            double some_weights[STEP] = {0.0};                                                                               \
            memcpy(values, row + last * item, (size_t)(rest * item));                                                        \
            if (weighted)                                                                                                    \
                memcpy(some_weights, weights + last, (size_t)rest * sizeof(double));                                         \
            TAKE(type, widen, use, least_of, most_of, values, some_weights, rest, 0);                                        \
            TAKE(type, widen, use, least_of, most_of, values + sizeof(type), some_weights + LANES, rest, 1);                 \
        }                                                                                                                    \
    } while (0)

/* Whether squares stay in the range of float64 without a scale, which changes no bit of a norm: of float32 without weights. */
#define PLAINLY(type, weighted) (sizeof(type) == sizeof(Floats) && !(weighted))

#define ADD_VALUE(x, weight, counted, half, least_of, most_of)                                                               \
    do {                                                                                                                     \
        const Lanes least = least_of(x, low[half]), most = most_of(x, high[half]);                                           \
        sums[half] += all ? (x) : CHOOSE(counted, weighted ? (weight) * (x) : (x), zero);                                    \
        low[half] = all ? least : CHOOSE(counted, least, low[half]);                                                         \
        high[half] = all ? most : CHOOSE(counted, most, high[half]);                                                         \
    } while (0)

#define ADD_SQUARE(x, weight, counted, half, least_of, most_of)                                                              \
    do {                                                                                                                     \
        const Lanes centred = (x) - means, scaled = PLAINLY(some, weighted) ? centred : centred * scales;                    \
        const Lanes square = scaled * scaled;                                                                                \
        sums[half] += all ? square : CHOOSE(counted, weighted ? (weight) * square : square, zero);                           \
    } while (0)

/* Mean, range, and the power of two by which centred values are multiplied: exact, and keeps squares in the range of float64. */
struct centre {
    double mean, least, most, scale;
    int exponent, constant;
};

static struct centre centre_of(double least, double most, double total, double weight_sum, int plainly)
{
    struct centre c = {.least = least + 0.0, .most = most + 0.0}; /* no -0.0, which depends on the order of comparisons */
    c.constant = least == most && !isnan(total);
    c.mean = c.constant ? c.least : total / weight_sum;
    if (isfinite(c.mean) && !plainly)
        frexp(fmax(most - c.mean, c.mean - least), &c.exponent);
    c.exponent = c.exponent < -1000 ? -1000 : c.exponent > 1000 ? 1000 : c.exponent;
    c.scale = ldexp(1.0, -c.exponent);
    return c;
}

/* Writes mean, norm, minimum and maximum to `found`, `step` entries apart. */
static void report(const struct centre *c, double squares, double *found, Index step)
{
    found[0] = c->mean;
    found[step] = c->constant ? 0.0 : ldexp(sqrt(squares), c->exponent);
    found[2 * step] = c->least;
    found[3 * step] = c->most;
}

/* Defines `name`, which writes mean, norm, minimum and maximum of a row of n values to `found`, `step` entries apart. */
#define DEFINE_MOMENTS(name, type, widen, target, least_of, most_of)                                                         \
    target INLINE void name##_of(const char *row, Index n, const double *weights, double weight_sum, double *found,          \
                                 Index step, const int weighted)                                                             \
    {                                                                                                                        \
        const Lanes zero = {0}, order = {0, 1, 2, 3};                                                                        \
        Lanes low[2] = {zero + INFINITY, zero + INFINITY}, high[2] = {zero - INFINITY, zero - INFINITY};                     \
        double total = 0.0, squares = 0.0;                                                                                   \
        for (Index begin = 0; begin < n; begin += CHUNK) {                                                                   \
            const Index end = begin + CHUNK < n ? begin + CHUNK : n;                                                         \
            Lanes sums[2] = {zero, zero};                                                                                    \
            EACH_OBSERVATION(type, widen, begin, end, ADD_VALUE, least_of, most_of);                                         \
            total += FOLD(sums[0], sums[1]);                                                                                 \
        }                                                                                                                    \
        double least = low[0][0], most = high[0][0];                                                                         \
        for (int lane = 1; lane < STEP; lane++) {                                                                            \
            const double lowest = low[lane / LANES][lane % LANES], highest = high[lane / LANES][lane % LANES];               \
            least = lowest < least ? lowest : least, most = highest > most ? highest : most;                                 \
        }                                                                                                                    \
        const struct centre c = centre_of(least, most, total, weight_sum, PLAINLY(type, weighted));                          \
        const Lanes means = zero + c.mean, scales = zero + c.scale;                                                          \
        for (Index begin = 0; begin < n && !c.constant; begin += CHUNK) {                                                    \
            const Index end = begin + CHUNK < n ? begin + CHUNK : n;                                                         \
            Lanes sums[2] = {zero, zero};                                                                                    \
            EACH_OBSERVATION(type, widen, begin, end, ADD_SQUARE, least_of, most_of);                                        \
            squares += FOLD(sums[0], sums[1]);                                                                               \
        }                                                                                                                    \
        report(&c, squares, found, step);                                                                                    \
    }                                                                                                                        \
    target static void name(const char *row, Index n, const double *weights, double weight_sum, double *found, Index step)   \
    {                                                                                                                        \
        if (weights)                                                                                                         \
            name##_of(row, n, weights, weight_sum, found, step, 1);                                                          \
        else                                                                                                                 \
            name##_of(row, n, NULL, weight_sum, found, step, 0);                                                             \
    }

typedef void Moments(const char *row, Index n, const double *weights, double weight_sum, double *found, Index step);

/* The strip of interleaved rows in hand: lanes of the chunk, totals of all chunks, and the moments so far, by column. */
struct strip {
    Lanes sums[STEP][STRIP], totals[STRIP], low[STRIP], high[STRIP], means[STRIP], scales[STRIP];
};

/* Adds a chunk of `length` observations, `stride` bytes apart, of `vectors` vectors of columns: values and range, or centred squares. */
typedef void Chunk(const char *entries, Index stride, Index vectors, Index length, const double *weights, struct strip *strip);

#define STRIP_VALUE(x, weight, least, most)                                                                                  \
    do {                                                                                                                     \
        sum += weighted ? (weight) * (x) : (x);                                                                              \
        low = least(x, low);                                                                                                 \
        high = most(x, high);                                                                                                \
    } while (0)

#define STRIP_SQUARE(x, weight, least, most)                                                                                 \
    do {                                                                                                                     \
        const Lanes centred = (x) - strip->means[v], scaled = PLAINLY(some, weighted) ? centred : centred * strip->scales[v]; \
        const Lanes square = scaled * scaled;                                                                                \
        sum += weighted ? (weight) * square : square;                                                                        \
    } while (0)

/* Adds `depth` observations of the lane of observation i; those of weight 0 are not counted, even where they are not finite. */
#define ADVANCE_LANE(type, widen, use, least, most, i, depth)                                                                \
    do {                                                                                                                     \
        const char *entry = entries + (i) * stride;                                                                          \
        for (Index v = 0; v < vectors; v++, entry += sizeof(type)) {                                                         \
            Lanes low = strip->low[v], high = strip->high[v], sum = strip->sums[(i) % STEP][v];                              \
            _Pragma("GCC unroll 4") for (int k = 0; k < (depth); k++)                                                        \
            {                                                                                                                \
                const double weight = weighted ? weights[(i) + k * STEP] : 1.0;                                              \
                type some;                                                                                                   \
                if (!(weight > 0.0))                                                                                         \
                    continue;                                                                                                \
                if ((depth) > 1 && v % (64 / (int)sizeof(type)) == 0) /* one prefetch per cache line */                      \
                    __builtin_prefetch(entry + (k + DEPTH) * STEP * stride);                                                 \
                memcpy(&some, entry + k * STEP * stride, sizeof some);                                                       \
                const Lanes x = widen(some);                                                                                 \
                use(x, weight, least, most);                                                                                 \
            }                                                                                                                \
            strip->low[v] = low, strip->high[v] = high, strip->sums[(i) % STEP][v] = sum;                                    \
        }                                                                                                                    \
    } while (0)

/* Defines `name`, a Chunk. */
#define DEFINE_CHUNK(name, type, widen, target, use, least, most)                                                            \
    target INLINE void name##_of(const char *entries, Index stride, Index vectors, Index length, const double *weights,      \
                                 struct strip *strip, const int weighted)                                                    \
    {                                                                                                                        \
        const Index whole = length - length % (DEPTH * STEP);                                                                \
        memset(strip->sums, 0, sizeof strip->sums);                                                                          \
        for (Index first = 0; first < whole; first += DEPTH * STEP)                                                          \
            for (Index i = first; i < first + STEP; i++)                                                                     \
                ADVANCE_LANE(type, widen, use, least, most, i, DEPTH);                                                       \
        for (Index i = whole; i < length; i++)                                                                               \
            ADVANCE_LANE(type, widen, use, least, most, i, 1);                                                               \
        for (Index v = 0; v < vectors; v++) {                                                                                \
            Lanes(*s)[STRIP] = strip->sums;                                                                                  \
            strip->totals[v] += ((s[0][v] + s[4][v]) + (s[2][v] + s[6][v])) + ((s[1][v] + s[5][v]) + (s[3][v] + s[7][v]));   \
        }                                                                                                                    \
    }                                                                                                                        \
    target static void name(const char *entries, Index stride, Index vectors, Index length, const double *weights,           \
                            struct strip *strip)                                                                             \
    {                                                                                                                        \
        if (weights)                                                                                                         \
            name##_of(entries, stride, vectors, length, weights, strip, 1);                                                  \
        else                                                                                                                 \
            name##_of(entries, stride, vectors, length, NULL, strip, 0);                                                     \
    }

/* Functions for float32 or float64 entries: a contiguous row, and the first and second pass over a chunk of interleaved rows. */
struct kind {
    Moments *row;
    Chunk *values, *squares;
};

#define DEFINE_KIND(name, type, widen, target, least, most)                                                                  \
    DEFINE_MOMENTS(name, type, widen, target, least, most)                                                                   \
    DEFINE_CHUNK(name##_values, type, widen, target, STRIP_VALUE, least, most)                                               \
    DEFINE_CHUNK(name##_squares, type, widen, target, STRIP_SQUARE, least, most)
#define KIND(name) {name, name##_values, name##_squares}

DEFINE_KIND(plain_f, Floats, PLAIN_WIDEN, , PLAIN_LEAST, PLAIN_MOST)
DEFINE_KIND(plain_d, Doubles, PLAIN_WIDEN, , PLAIN_LEAST, PLAIN_MOST)
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
DEFINE_KIND(avx2_f, Floats, _mm256_cvtps_pd, AVX2, _mm256_min_pd, _mm256_max_pd)
DEFINE_KIND(avx2_d, Doubles, PLAIN_WIDEN, AVX2, _mm256_min_pd, _mm256_max_pd)
static const struct kind KINDS[2][2] = {{KIND(plain_f), KIND(plain_d)}, {KIND(avx2_f), KIND(avx2_d)}};
#else
static const struct kind KINDS[2][2] = {{KIND(plain_f), KIND(plain_d)}, {KIND(plain_f), KIND(plain_d)}};
#endif

/* Runs one of the passes over the rows first to first + width of an interleaved matrix. `take` is NULL where entries are used as they
 * are; else it converts them, a chunk at a time, into `room`. */
static void pass(Chunk *use, const Py_buffer *matrix, Index first, Index width, Take *take, double *room, const double *weights,
                 struct strip *strip)
{
    const Index n = matrix->shape[1], vectors = (width + LANES - 1) / LANES;
    memset(strip->totals, 0, sizeof strip->totals);
    for (Index begin = 0; begin < n; begin += CHUNK) {
        const Index length = begin + CHUNK < n ? CHUNK : n - begin;
        const char *entries = (const char *)matrix->buf + begin * matrix->strides[1] + first * matrix->itemsize;
        const double *here = weights ? weights + begin : NULL;
        for (Index i = 0; take && i < length; i++)
            take(entries + i * matrix->strides[1], matrix->itemsize, width, room + i * vectors * LANES);
        if (take)
            use((const char *)room, vectors * LANES * (Index)sizeof(double), vectors, length, here, strip);
        else
            use(entries, matrix->strides[1], vectors, length, here, strip);
    }
}

/* Fills found (4, c) with the moments of interleaved rows, and their products unless NULL; room has CHUNK * FEW vectors. */
static void moments_across(const struct kind *kind, const Py_buffer *matrix, Take *take, double *room, const double *weights,
                           double weight_sum, double *found, const struct products *products)
{
    const Index count = matrix->shape[0];
    struct strip strip;
    for (Index first = 0, width; first < count; first += width) {
        struct centre centres[STRIP * LANES];
        width = count - first < (take ? FEW : STRIP) * LANES ? count - first : (take ? FEW : STRIP) * LANES;
        if (!take && width > LANES)
            width -= width % LANES; /* the rest is a strip of its own */
        const int copied = take || width < LANES;
        Take *const widen = copied ? take_as(format_letter(matrix), 'd') : NULL;
        const struct kind *const used = copied ? &KINDS[has_avx2()][1] : kind;
        const int plainly = !weights && !copied && format_letter(matrix) == 'f';
        for (Index v = 0; v < STRIP; v++)
            strip.low[v] = (Lanes){0} + INFINITY, strip.high[v] = (Lanes){0} - INFINITY;
        pass(used->values, matrix, first, width, widen, room, weights, &strip);
        for (Index c = 0; c < width; c++) {
            const Index v = c / LANES, lane = c % LANES;
            centres[c] = centre_of(strip.low[v][lane], strip.high[v][lane], strip.totals[v][lane], weight_sum, plainly);
            strip.means[v][lane] = centres[c].mean, strip.scales[v][lane] = centres[c].scale;
        }
        pass(used->squares, matrix, first, width, widen, room, weights, &strip);
        for (Index c = 0; c < width; c++)
            report(&centres[c], strip.totals[c / LANES][c % LANES], found + first + c, count);
        if (products)
            multiply(products, first, first + width);
    }
}

/* Fills out (4, c) with mean, centred norm, minimum and maximum of each row, weighted unless `weights` is None. Unless `residuals` are
 * None, also fills products[i, j] with rows[i] . residuals[j] while the rows are in the cache. */
PyObject *moments(struct arguments *a, PyObject *given)
{
    PyObject *given_rows, *weights, *out, *residuals, *given_products;
    struct rows rows;
    struct products products;
    int plain;
    if (!PyArg_ParseTuple(given, "OOOOOp", &given_rows, &weights, &out, &residuals, &given_products, &plain))
        return NULL;
    open_rows(a, given_rows, Py_None, &rows);
    const Py_buffer *matrix = rows.matrix;
    const Index count = matrix ? matrix->shape[0] : 0, n = matrix ? matrix->shape[1] : 0;
    const double *each = weights == Py_None ? NULL : DOUBLES(a, weights, n, READ);
    double *found = DOUBLES(a, out, 4 * count, WRITE), weight_sum = each ? 0.0 : (double)n;
    if (residuals != Py_None)
        open_products(a, &rows, residuals, given_products, plain, NULL, &products);
    if (a->failed)
        return NULL;
    const struct products *const also = residuals == Py_None ? NULL : &products;
    const char letter = format_letter(matrix);
    const int across = interleaved(matrix);
    const struct kind *kind = &KINDS[has_avx2()][letter != 'f'];
    Take *const take = letter == 'f' || letter == 'd' ? NULL : take_as(letter, 'd');
    double *room = across || take ? space(a, across ? CHUNK * FEW * LANES : (size_t)n, sizeof *room) : NULL;
    if (a->failed)
        return NULL;
    const Index block = 4 + CACHED / (n * matrix->itemsize + 1);
    Py_BEGIN_ALLOW_THREADS
    for (Index i = 0; each && i < n; i++)
        weight_sum += each[i];
    if (across)
        moments_across(kind, matrix, take, room, each, weight_sum, found, also);
    for (Index first = 0; !across && first < count; first += block) {
        const Index end = first + block < count ? first + block : count;
        for (Index i = first; i < end; i++) {
            const char *row = row_at(&rows, i);
            if (take)
                take(row, matrix->itemsize, n, room);
            kind->row(take ? (const char *)room : row, n, each, weight_sum, found + i, count);
        }
        if (also)
            multiply(also, first, end);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
