/* Sweep kernels: out[i, j] = rows[i] . residuals[j] in floating point, and exact dot products of int8 rows.
 *
 * Row-invariant: the bits of out[i, j] depend on rows[i], residuals[j] and the number of observations only. Each pair has one
 * 32-byte vector of partial sums. Observations are added to it in order, one vector per step; after every 4096 bytes of the residual
 * the lanes are folded in a fixed tree and added to out[i, j] in float64. The register blocks (4 x 3, 4 x 1, 1 x 3, 1 x 1 rows x
 * residuals) are instances of one macro body and differ only in how many pairs advance together. The loops above them may visit the
 * chunks of different rows in any order; the chunks of one pair are always visited in ascending order.
 *
 * Interleaved rows (an (n_obs, n_rows) array in C order) are swept where they lie, with the same additions in the same order: entries
 * of one observation are multiplied by one number and added to as many sums side by side, those of the lane of that observation.
 *
 * Two instruction sets with different bits, hence different ids: AVX2 with FMA and F16C, chosen at run time, and plain C. Build with
 * -ffp-contract=off; otherwise the compiler may fuse operations in some blocks and not in others. */

#include "rows.h"

#include <float.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "this target keeps excess precision, so sums would depend on register allocation: use the NumPy kernel"
#endif

#if defined(__x86_64__)
#define WITH_AVX2 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define WITH_AVX2 0
#endif

#define BLOCK_ROWS 4      /* 4 x 3 sums, 3 residual vectors and 1 row vector are the 16 registers of AVX2 */
#define BLOCK_RESIDUALS 3
#define VECTOR_BYTES 32
#define CHUNK_BYTES 4096  /* 4 row chunks and 3 residual chunks fit the 32 KiB first-level cache, even with aliasing strides */
#define PANEL_CHUNKS 64   /* 256 KiB of packed residuals stay in the second-level cache */
#define DEPTH 4           /* observations of one lane that interleaved rows advance by at once */
#define STRIP_VECTORS 128 /* 4 KiB of interleaved rows at a time: prefetched by the processor, and their sums fit the cache */
#define FEWEST_VECTORS 8  /* of a strip, when there are many residuals */
#define INT8_RESIDUAL_LIMIT 8191 /* 128 steps of 2 x 128 x 8191 stay below 2**31 */

/* Up to BLOCK_ROWS row chunks: `whole` vectors from `start`, then, if `ragged`, one vector padded with zeros at `end`. The next
 * chunks to be read are `ahead` bytes further. */
struct strips {
    const char *start[BLOCK_ROWS];
    char end[BLOCK_ROWS][VECTOR_BYTES];
    char converted[BLOCK_ROWS][CHUNK_BYTES]; /* the chunks as float64, where rows have a type without a tile */
    Index count, whole, ahead;
    int ragged;
};


#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 4")

/* Advances all sums of a block by one vector: row i at row_address, residual j at `step` of the panel. */
#define ADVANCE(vector, row_address, load_row, load_residual, multiply_add, prefetch)                                        \
    do {                                                                                                                     \
        vector residual[BLOCK_RESIDUALS];                                                                                    \
        UNROLL for (int j = 0; j < n_residuals; j++)                                                                         \
            load_residual(residual[j], panel + j * CHUNK_BYTES + step * VECTOR_BYTES);                                       \
        UNROLL for (int i = 0; i < n_rows; i++) {                                                                            \
            vector row;                                                                                                      \
            load_row(row, row_address);                                                                                      \
            if (prefetch)                                                                                                    \
                __builtin_prefetch(row_address + ahead);                                                                     \
            UNROLL for (int j = 0; j < n_residuals; j++)                                                                     \
                multiply_add(sums[i][j], row, residual[j]);                                                                  \
        }                                                                                                                    \
    } while (0)

/* Defines `name`, a Tile. load_row and load_residual fill a vector from an address (the vector of a row takes row_bytes there),
 * multiply_add advances a sum by one vector, fold reduces a sum to a number. Rows narrower than a vector are prefetched when there is
 * one residual: they outrun the hardware prefetcher, which serves wide rows better. */
#define DEFINE_TILE(name, target, number, sum, vector, row_bytes, load_row, load_residual, multiply_add, fold)               \
    target INLINE void name##_block(const struct strips *strips, Index first, const char *panel, number *out,                \
                                    Index out_stride, const int n_rows, const int n_residuals)                               \
    {                                                                                                                        \
        sum sums[BLOCK_ROWS][BLOCK_RESIDUALS];                                                                               \
        const char *const *start = strips->start + first;                                                                    \
        const char(*end)[VECTOR_BYTES] = strips->end + first;                                                                \
        const Index whole = strips->whole, ahead = strips->ahead;                                                            \
        memset(sums, 0, sizeof sums);                                                                                        \
        for (Index step = 0; step < whole; step++)                                                                           \
            ADVANCE(vector, start[i] + step * (row_bytes), load_row, load_residual, multiply_add,                            \
                    (row_bytes) < VECTOR_BYTES && n_residuals == 1);                                                         \
        for (Index step = whole; step < whole + strips->ragged; step++)                                                      \
            ADVANCE(vector, end[i], load_row, load_residual, multiply_add, 0);                                               \
        UNROLL for (int i = 0; i < n_rows; i++)                                                                              \
            UNROLL for (int j = 0; j < n_residuals; j++)                                                                     \
                out[i * out_stride + j] += fold(sums[i][j]);                                                                 \
    }                                                                                                                        \
    target static void name(const struct strips *strips, const char *panel, Index n_residuals, void *out, Index out_stride)  \
    {                                                                                                                        \
        number *place = out;                                                                                                 \
        const Index blocked = n_residuals - n_residuals % BLOCK_RESIDUALS;                                                   \
        if (strips->count == BLOCK_ROWS) {                                                                                   \
            for (Index j = 0; j < blocked; j += BLOCK_RESIDUALS)                                                             \
                name##_block(strips, 0, panel + j * CHUNK_BYTES, place + j, out_stride, BLOCK_ROWS, BLOCK_RESIDUALS);        \
            for (Index j = blocked; j < n_residuals; j++)                                                                    \
                name##_block(strips, 0, panel + j * CHUNK_BYTES, place + j, out_stride, BLOCK_ROWS, 1);                      \
            return;                                                                                                          \
        }                                                                                                                    \
        for (Index i = 0; i < strips->count; i++, place += out_stride) {                                                     \
            for (Index j = 0; j < blocked; j += BLOCK_RESIDUALS)                                                             \
                name##_block(strips, i, panel + j * CHUNK_BYTES, place + j, out_stride, 1, BLOCK_RESIDUALS);                 \
            for (Index j = blocked; j < n_residuals; j++)                                                                    \
                name##_block(strips, i, panel + j * CHUNK_BYTES, place + j, out_stride, 1, 1);                               \
        }                                                                                                                    \
    }

/* Adds, for `count` residuals from j on and each of `vectors` vectors of columns, the products of `depth` observations of a lane from i
 * on. */
#define ADVANCE_LANE(number, vector, load, multiply_add, i, depth, count)                                                    \
    do {                                                                                                                     \
        const Index apart = lanes * vectors * VECTOR_BYTES; /* from the sums of one residual to those of the next */         \
        char *sum = sums + j * apart + (i) % lanes * vectors * VECTOR_BYTES;                                                 \
        const char *entry = entries + (i) * stride;                                                                          \
        vector factor[count][depth];                                                                                         \
        UNROLL for (int l = 0; l < (count); l++)                                                                             \
            UNROLL for (int k = 0; k < (depth); k++)                                                                         \
                factor[l][k] = (vector){0} + ((const number *)(panel + (j + l) * CHUNK_BYTES))[(i) + k * lanes];             \
        for (Index v = 0; v < vectors; v++, sum += VECTOR_BYTES, entry += VECTOR_BYTES) {                                    \
            vector totals[count], row;                                                                                       \
            UNROLL for (int l = 0; l < (count); l++)                                                                         \
                load(totals[l], sum + l * apart);                                                                            \
            UNROLL for (int k = 0; k < (depth); k++) {                                                                       \
                if ((depth) > 1 && (count) == 1 && v % 2 == 0) /* one prefetch per cache line */                             \
                    __builtin_prefetch(entry + (k + DEPTH) * lanes * stride);                                                \
                load(row, entry + k * lanes * stride);                                                                       \
                UNROLL for (int l = 0; l < (count); l++)                                                                     \
                    multiply_add(totals[l], row, factor[l][k]);                                                              \
            }                                                                                                                \
            UNROLL for (int l = 0; l < (count); l++)                                                                         \
                memcpy(sum + l * apart, &totals[l], VECTOR_BYTES);                                                           \
        }                                                                                                                    \
    } while (0)

/* Defines `name`, an Across over entries of the type of the residuals. */
#define DEFINE_ACROSS(name, target, number, vector, load, multiply_add)                                                      \
    target static void name(const char *entries, Index stride, Index vectors, Index length, const char *panel,               \
                            Index n_residuals, char *sums)                                                                   \
    {                                                                                                                        \
        const Index lanes = VECTOR_BYTES / (Index)sizeof(number), whole = length - length % (DEPTH * lanes);                 \
        for (Index first = 0; first < whole; first += DEPTH * lanes)                                                         \
            for (Index i = first; i < first + lanes; i++) {                                                                  \
                Index j = 0;                                                                                                 \
                for (; j + 2 < n_residuals; j += 3)                                                                          \
                    ADVANCE_LANE(number, vector, load, multiply_add, i, DEPTH, 3);                                           \
                for (; j < n_residuals; j++)                                                                                 \
                    ADVANCE_LANE(number, vector, load, multiply_add, i, DEPTH, 1);                                           \
            }                                                                                                                \
        for (Index i = whole; i < length; i++)                                                                               \
            for (Index j = 0; j < n_residuals; j++)                                                                          \
                ADVANCE_LANE(number, vector, load, multiply_add, i, 1, 1);                                                   \
    }

/* Plain C: products are rounded before they are added. */

typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));

/* Widens `count` halves exactly. A finite half has the value of its bits, shifted to the fields of a float, times 2**112; infinities
 * and NaNs get all exponent bits of a float. */
INLINE void widen_halves(Floats *floats, const char *address, const int count)
{
    uint16_t halves[8] = {0};
    Words bits;
    memcpy(halves, address, (size_t)count * sizeof *halves);
    UNROLL for (int lane = 0; lane < 8; lane++)
        bits[lane] = halves[lane];
    const Words size = (Words)((Floats)((bits & 0x7fff) << 13) * 0x1p112f);
    const Words not_finite = (Words)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
    *floats = (Floats)(size | not_finite | (bits & 0x8000) << 16);
}

INLINE void widen_halves_twice(Doubles *doubles, const char *address)
{
    Floats floats;
    widen_halves(&floats, address, 4);
    UNROLL for (int lane = 0; lane < 4; lane++)
        (*doubles)[lane] = floats[lane];
}

INLINE void widen_floats(Doubles *doubles, const char *address)
{
    float floats[4];
    memcpy(floats, address, sizeof floats);
    UNROLL for (int lane = 0; lane < 4; lane++)
        (*doubles)[lane] = floats[lane];
}

static inline int32_t int8_dot(const char *row, const char *residual)
{
    int32_t sum = 0;
    for (int k = 0; k < VECTOR_BYTES / 2; k++) {
        int16_t factor;
        memcpy(&factor, residual + 2 * k, sizeof factor);
        sum += (int32_t)(int8_t)row[k] * factor;
    }
    return sum;
}

#define PLAIN_LOAD(vector, address) memcpy(&(vector), address, VECTOR_BYTES)
#define PLAIN_LOAD_E_AS_F(vector, address) widen_halves(&(vector), address, 8)
#define PLAIN_LOAD_E_AS_D(vector, address) widen_halves_twice(&(vector), address)
#define PLAIN_LOAD_F_AS_D(vector, address) widen_floats(&(vector), address)
#define PLAIN_MULTIPLY_ADD(sum, row, residual) ((sum) += (row) * (residual))
#define PLAIN_FOLD_D(s) (((s)[0] + (s)[2]) + ((s)[1] + (s)[3]))
#define PLAIN_FOLD_F(s) \
    ((((double)(s)[0] + (s)[4]) + ((double)(s)[2] + (s)[6])) + (((double)(s)[1] + (s)[5]) + ((double)(s)[3] + (s)[7])))
#define PLAIN_ADDRESS(vector, address) ((vector) = (address))
#define PLAIN_MULTIPLY_ADD_INT8(sum, row, residual) ((sum) += int8_dot(row, residual))
#define PLAIN_FOLD_INT8(sum) (sum)

DEFINE_TILE(plain_ff, , double, Floats, Floats, 32, PLAIN_LOAD, PLAIN_LOAD, PLAIN_MULTIPLY_ADD, PLAIN_FOLD_F)
DEFINE_TILE(plain_dd, , double, Doubles, Doubles, 32, PLAIN_LOAD, PLAIN_LOAD, PLAIN_MULTIPLY_ADD, PLAIN_FOLD_D)
DEFINE_TILE(plain_ef, , double, Floats, Floats, 16, PLAIN_LOAD_E_AS_F, PLAIN_LOAD, PLAIN_MULTIPLY_ADD, PLAIN_FOLD_F)
DEFINE_TILE(plain_ed, , double, Doubles, Doubles, 8, PLAIN_LOAD_E_AS_D, PLAIN_LOAD, PLAIN_MULTIPLY_ADD, PLAIN_FOLD_D)
DEFINE_TILE(plain_fd, , double, Doubles, Doubles, 16, PLAIN_LOAD_F_AS_D, PLAIN_LOAD, PLAIN_MULTIPLY_ADD, PLAIN_FOLD_D)
DEFINE_ACROSS(plain_across_f, , float, Floats, PLAIN_LOAD, PLAIN_MULTIPLY_ADD)
DEFINE_ACROSS(plain_across_d, , double, Doubles, PLAIN_LOAD, PLAIN_MULTIPLY_ADD)
DEFINE_TILE(plain_bh, , int64_t, int64_t, const char *, 16, PLAIN_ADDRESS, PLAIN_ADDRESS, PLAIN_MULTIPLY_ADD_INT8,
            PLAIN_FOLD_INT8)

/* AVX2, FMA and F16C: products are added without rounding. */

#if WITH_AVX2
#define AVX2 __attribute__((target("avx2,fma,f16c")))

AVX2 static inline double avx2_fold_d(__m256d sum)
{
    __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

AVX2 static inline double avx2_fold_f(__m256 sum)
{
    return avx2_fold_d(_mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(sum)), _mm256_cvtps_pd(_mm256_extractf128_ps(sum, 1))));
}

AVX2 static inline int64_t avx2_fold_int8(__m256i sum)
{
    __m256i wide = _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(sum)),
                                    _mm256_cvtepi32_epi64(_mm256_extracti128_si256(sum, 1)));
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(half, _mm_unpackhi_epi64(half, half)));
}

#define AVX2_LOAD_F(vector, address) ((vector) = _mm256_loadu_ps((const float *)(address)))
#define AVX2_LOAD_D(vector, address) ((vector) = _mm256_loadu_pd((const double *)(address)))
#define AVX2_LOAD_E_AS_F(vector, address) ((vector) = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(address))))
#define AVX2_LOAD_E_AS_D(vector, address) ((vector) = _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(address)))))
#define AVX2_LOAD_F_AS_D(vector, address) ((vector) = _mm256_cvtps_pd(_mm_loadu_ps((const float *)(address))))
#define AVX2_LOAD_B_AS_H(vector, address) ((vector) = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(address))))
#define AVX2_LOAD_H(vector, address) ((vector) = _mm256_loadu_si256((const __m256i *)(address)))
#define AVX2_MULTIPLY_ADD_F(sum, row, residual) ((sum) = _mm256_fmadd_ps(row, residual, sum))
#define AVX2_MULTIPLY_ADD_D(sum, row, residual) ((sum) = _mm256_fmadd_pd(row, residual, sum))
#define AVX2_MULTIPLY_ADD_INT8(sum, row, residual) ((sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(row, residual)))

DEFINE_TILE(avx2_ff, AVX2, double, __m256, __m256, 32, AVX2_LOAD_F, AVX2_LOAD_F, AVX2_MULTIPLY_ADD_F, avx2_fold_f)
DEFINE_TILE(avx2_dd, AVX2, double, __m256d, __m256d, 32, AVX2_LOAD_D, AVX2_LOAD_D, AVX2_MULTIPLY_ADD_D, avx2_fold_d)
DEFINE_TILE(avx2_ef, AVX2, double, __m256, __m256, 16, AVX2_LOAD_E_AS_F, AVX2_LOAD_F, AVX2_MULTIPLY_ADD_F, avx2_fold_f)
DEFINE_TILE(avx2_ed, AVX2, double, __m256d, __m256d, 8, AVX2_LOAD_E_AS_D, AVX2_LOAD_D, AVX2_MULTIPLY_ADD_D, avx2_fold_d)
DEFINE_TILE(avx2_fd, AVX2, double, __m256d, __m256d, 16, AVX2_LOAD_F_AS_D, AVX2_LOAD_D, AVX2_MULTIPLY_ADD_D, avx2_fold_d)
DEFINE_ACROSS(avx2_across_f, AVX2, float, __m256, AVX2_LOAD_F, AVX2_MULTIPLY_ADD_F)
DEFINE_ACROSS(avx2_across_d, AVX2, double, __m256d, AVX2_LOAD_D, AVX2_MULTIPLY_ADD_D)
DEFINE_TILE(avx2_bh, AVX2, int64_t, __m256i, __m256i, 16, AVX2_LOAD_B_AS_H, AVX2_LOAD_H, AVX2_MULTIPLY_ADD_INT8, avx2_fold_int8)

static int detect_avx2(void)
{
    unsigned int eax, ebx, ecx, edx;
    /* Some compilers with F16C intrinsics do not accept "f16c" in __builtin_cpu_supports. */
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
        return 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define BOTH(suffix) {plain_##suffix, avx2_##suffix}
#else
static int detect_avx2(void)
{
    return 0;
}
#define BOTH(suffix) {plain_##suffix, plain_##suffix}
#endif

/* Set once by prepare_sweeps: cpuid traps to the hypervisor in a virtual machine, which is too slow for every call. */
static int with_avx2;

int has_avx2(void)
{
    return with_avx2;
}

/* Element types of rows, residuals and out, as format letters, and the functions for contiguous and for interleaved rows: plain C,
 * then the best of this build. Rows of any other type become float64 chunk by chunk, and so do interleaved rows narrower than the
 * residuals. */
struct pairing {
    char row, residual, out;
    Tile *tiles[2];
    Across *across[2];
};

static const struct pairing PAIRINGS[] = {
    {'f', 'f', 'd', BOTH(ff), BOTH(across_f)}, {'d', 'd', 'd', BOTH(dd), BOTH(across_d)}, {'e', 'f', 'd', BOTH(ef), {NULL}},
    {'e', 'd', 'd', BOTH(ed), BOTH(across_d)}, {'f', 'd', 'd', BOTH(fd), BOTH(across_d)}, {'b', 'h', 'q', BOTH(bh), {NULL}},
};

#define FLOAT64 PAIRINGS[1]

static Index smaller(Index a, Index b)
{
    return a < b ? a : b;
}

/* Copies observations begin..end of `width` residuals from `j` to [chunk][residual][CHUNK_BYTES]; the last vector is zero-padded. */
static void pack(char *panel, const Py_buffer *residuals, Index j, Index width, Index begin, Index end)
{
    const Index item = residuals->itemsize, chunk = CHUNK_BYTES / item, stride = residuals->shape[1] * item;
    for (; begin < end; begin += chunk) {
        const Index bytes = smaller(chunk, end - begin) * item;
        const Index padding = (VECTOR_BYTES - bytes % VECTOR_BYTES) % VECTOR_BYTES;
        const char *source = (const char *)residuals->buf + j * stride + begin * item;
        for (Index k = 0; k < width; k++, panel += CHUNK_BYTES, source += stride) {
            memcpy(panel, source, (size_t)bytes);
            memset(panel + bytes, 0, (size_t)padding);
        }
    }
}

/* Points the strips at `length` observations of `count` rows from i on, from observation `begin`, converted or unpacked where they are
 * not used as they are. */
static void place_strips(struct strips *strips, const struct products *p, Index i, Index count, Index begin, Index length, Index lanes)
{
    const struct rows *rows = p->rows;
    const Index rest = length % lanes, own = rows->matrix->itemsize;
    const Index item = p->values ? VECTOR_BYTES / lanes : p->take ? (Index)sizeof(double) : own;
    strips->count = count;
    strips->whole = length / lanes;
    strips->ragged = rest > 0;
    for (Index k = 0; k < strips->count; k++) {
        strips->start[k] = row_at(rows, i + k) + (p->values ? begin / 4 : begin * own);
        if (p->values)
            unpack(strips->start[k], length, p->values + 4 * (i + k), item == sizeof(float), strips->converted[k]);
        else if (p->take)
            p->take(strips->start[k], own, length, strips->converted[k]);
        if (p->values || p->take)
            strips->start[k] = strips->converted[k];
        if (rest) {
            memset(strips->end[k], 0, VECTOR_BYTES);
            memcpy(strips->end[k], strips->start[k] + (length - rest) * item, (size_t)(rest * item));
        }
    }
}

/* Returns the distance from `begin` to the bytes read next: the next chunk of these rows, or the first chunk of the following rows;
 * 0 where the following rows are named by an index. */
static Index bytes_ahead(const struct rows *rows, Index first, Index begin, Index last, Index chunk)
{
    const Index item = rows->matrix->itemsize;
    if (begin + chunk < last)
        return chunk * item;
    return rows->index ? 0 : BLOCK_ROWS * rows->matrix->strides[0] - (begin - first) * item;
}

/* Returns the number of chunks of a panel that the residuals fill, at least 1. */
static Index panel_chunks(const Py_buffer *residuals)
{
    const Index deep = smaller(PANEL_CHUNKS, residuals->shape[1] / (CHUNK_BYTES / residuals->itemsize) + 1);
    const Index wide = smaller(PANEL_CHUNKS, residuals->shape[0]);
    return smaller(PANEL_CHUNKS, wide * deep + 1);
}

/* Fills out with the dot products of the contiguous rows `top` to `end` and all residuals. */
static void sweep(const struct products *p, Index top, Index end)
{
    const struct rows *rows = p->rows;
    const Py_buffer *residuals = p->residuals, *out = p->out;
    const Index n_obs = residuals->shape[1], n_residuals = residuals->shape[0];
    const Index chunk = CHUNK_BYTES / residuals->itemsize, lanes = VECTOR_BYTES / residuals->itemsize;
    struct strips strips;

    for (Index j = 0; j < n_residuals; j += PANEL_CHUNKS) {
        const Index width = smaller(PANEL_CHUNKS, n_residuals - j);
        const Index span = PANEL_CHUNKS / width * chunk;
        for (Index first = 0; first < n_obs; first += span) {
            const Index last = smaller(n_obs, first + span);
            pack(p->panel, residuals, j, width, first, last);
            for (Index i = top; i < end; i += BLOCK_ROWS) {
                for (Index begin = first; begin < last; begin += chunk) {
                    place_strips(&strips, p, i, smaller(BLOCK_ROWS, end - i), begin, smaller(chunk, last - begin), lanes);
                    strips.ahead = bytes_ahead(rows, first, begin, last, chunk);
                    p->tile(&strips, p->panel + (begin - first) / chunk * width * CHUNK_BYTES, width,
                            (char *)out->buf + (i * n_residuals + j) * out->itemsize, n_residuals);
                }
            }
        }
    }
}

/* Returns how many vectors of columns a strip of interleaved rows has: few where there are many residuals, whose sums must stay in
 * the cache. */
static Index strip_vectors(Index n_residuals)
{
    const Index few = 4 * STRIP_VECTORS / (n_residuals + 3);
    return few < FEWEST_VECTORS ? FEWEST_VECTORS : smaller(few, STRIP_VECTORS);
}

/* Adds the sums of the lanes of `width` columns to out, folded as tiles fold them. */
static void fold_lanes(const char *sums, Index vectors, Index width, Index n_residuals, int single, double *out)
{
    const Index lanes = single ? 8 : 4, apart = vectors * lanes; /* from one lane to the next */
    double folded[STRIP_VECTORS * 8]; /* by itself, because entries of `out` are not adjacent: becomes vector code */
    for (Index j = 0; j < n_residuals; j++, sums += lanes * vectors * VECTOR_BYTES) {
        const float *f = (const float *)sums;
        const double *d = (const double *)sums;
        for (Index c = 0; single && c < width; c++, f++)
            folded[c] = (((double)f[0] + f[4 * apart]) + ((double)f[2 * apart] + f[6 * apart])) +
                        (((double)f[apart] + f[5 * apart]) + ((double)f[3 * apart] + f[7 * apart]));
        for (Index c = 0; !single && c < width; c++, d++)
            folded[c] = (d[0] + d[2 * apart]) + (d[apart] + d[3 * apart]);
        for (Index c = 0; c < width; c++)
            out[c * n_residuals + j] += folded[c];
    }
}

/* Fills out with the dot products of the interleaved rows `top` to `end` and all residuals. */
static void sweep_across(const struct products *p, Index top, Index end)
{
    const Py_buffer *matrix = p->rows->matrix, *residuals = p->residuals;
    const Index n_obs = residuals->shape[1], n_residuals = residuals->shape[0], chunk = CHUNK_BYTES / residuals->itemsize;
    const Index lanes = VECTOR_BYTES / residuals->itemsize, widest = strip_vectors(n_residuals) * lanes, item = matrix->itemsize;
    Take *copy = p->take ? p->take : take_as(format_letter(matrix), format_letter(matrix));

    for (Index begin = 0; begin < n_obs; begin += chunk) {
        const Index length = smaller(chunk, n_obs - begin);
        pack(p->panel, residuals, 0, n_residuals, begin, begin + length);
        for (Index first = top, width; first < end; first += width) {
            const char *entries = (const char *)matrix->buf + begin * matrix->strides[1] + first * item;
            Index stride = matrix->strides[1];
            width = smaller(widest, end - first);
            if (!p->take && width > lanes)
                width -= width % lanes; /* the rest is a strip of its own */
            const Index vectors = (width + lanes - 1) / lanes;
            if (p->take || width < lanes) {
                for (Index i = 0; i < length; i++)
                    copy(entries + i * stride, item, width, p->converted + i * vectors * VECTOR_BYTES);
                entries = p->converted, stride = vectors * VECTOR_BYTES;
            }
            memset(p->sums, 0, (size_t)(n_residuals * lanes * vectors * VECTOR_BYTES));
            p->across(entries, stride, vectors, length, p->panel, n_residuals, p->sums);
            fold_lanes(p->sums, vectors, width, n_residuals, residuals->itemsize == sizeof(float),
                       (double *)p->out->buf + first * n_residuals);
        }
    }
}

/* Returns whether int32 sums over a chunk of these int16 residuals cannot overflow. */
static int within_int8_limit(const Py_buffer *residuals)
{
    int within = 1;
    for (Index k = 0; k < residuals->len / 2; k++) {
        int16_t entry;
        memcpy(&entry, (const char *)residuals->buf + 2 * k, sizeof entry);
        within &= entry <= INT8_RESIDUAL_LIMIT && entry >= -INT8_RESIDUAL_LIMIT;
    }
    return within;
}

/* Returns the pairing of these element types, or NULL with ValueError set where types or shapes do not fit each other; `codes`: rows are
 * codes of genotypes, which are unpacked as what residuals are. */
static const struct pairing *checked_pairing(const struct rows *rows, const Py_buffer *residuals, const Py_buffer *out, int codes)
{
    const char residual = format_letter(residuals), row = codes ? residual : format_letter(rows->matrix);
    const int across = !codes && interleaved(rows->matrix);
    const Index width = residuals->shape[1], entries = codes ? (width + 3) / 4 : width;
    const struct pairing *found = residual == 'd' ? &FLOAT64 : NULL; /* for rows of other types */
    for (size_t k = 0; k < sizeof PAIRINGS / sizeof *PAIRINGS; k++)
        if (PAIRINGS[k].row == row && PAIRINGS[k].residual == residual)
            found = &PAIRINGS[k];
    if (!found || (across && !*found->across))
        PyErr_Format(PyExc_ValueError, "rows of format '%c' and residuals of format '%c': expected float32 rows and residuals, float64 "
                                       "residuals, or contiguous rows of float16 and float32 or int8 and int16 residuals", row, residual);
    else if (across && rows->index)
        PyErr_SetString(PyExc_ValueError, "rows picked by an index must be contiguous");
    else if (format_letter(out) != found->out || (uintptr_t)out->buf % 8)
        PyErr_Format(PyExc_ValueError, "out is not an aligned %s array", found->out == 'q' ? "int64" : "float64");
    else if (rows->matrix->shape[1] != entries || out->shape[0] != rows->count || out->shape[1] != residuals->shape[0])
        PyErr_Format(PyExc_ValueError, "shapes do not fit: %zd rows of %zd, %zd residuals of %zd, out (%zd, %zd)", rows->count,
                     rows->matrix->shape[1], residuals->shape[0], residuals->shape[1], out->shape[0], out->shape[1]);
    else if (residual == 'h' && !within_int8_limit(residuals))
        PyErr_Format(PyExc_ValueError, "an int16 residual exceeds %d in size: rescale the residuals", INT8_RESIDUAL_LIMIT);
    else
        return found;
    return NULL;
}

void open_products(struct arguments *a, const struct rows *rows, PyObject *given_residuals, PyObject *given_out, int plain,
                   const double *values, struct products *p)
{
    const Py_buffer *residuals = open_array(a, given_residuals, "residuals", "fdh", 2, PyBUF_C_CONTIGUOUS);
    const Py_buffer *out = open_array(a, given_out, "out", "dq", 2, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    const struct pairing *pairing = a->failed ? NULL : checked_pairing(rows, residuals, out, values != NULL);
    if (!pairing) {
        a->failed = 1;
        return;
    }
    const int across = !values && interleaved(rows->matrix), kind = !plain && with_avx2;
    const int known = values || pairing->row == format_letter(rows->matrix);
    const int converts = !known || (across && residuals->itemsize != rows->matrix->itemsize);
    const Index chunk = CHUNK_BYTES / residuals->itemsize, m = residuals->shape[0], vectors = strip_vectors(m);
    *p = (struct products){rows, residuals, out, converts ? take_as(format_letter(rows->matrix), 'd') : NULL, values};
    p->panel = space(a, (size_t)(across ? m : panel_chunks(residuals)) + 1, CHUNK_BYTES);
    if (across) {
        p->across = pairing->across[kind];
        p->sums = space(a, (size_t)(m * vectors * VECTOR_BYTES), (size_t)(VECTOR_BYTES / residuals->itemsize));
        p->converted = space(a, (size_t)chunk, (size_t)(p->take ? vectors * VECTOR_BYTES : VECTOR_BYTES));
    } else
        p->tile = pairing->tiles[kind];
    if (!a->failed)
        p->panel += CHUNK_BYTES - (uintptr_t)p->panel % CHUNK_BYTES; /* `space` aligns to 16 bytes only */
}

void multiply(const struct products *p, Index first, Index end)
{
    const Index row_bytes = p->residuals->shape[0] * p->out->itemsize;
    memset((char *)p->out->buf + first * row_bytes, 0, (size_t)((end - first) * row_bytes));
    (p->across ? sweep_across : sweep)(p, first, end);
}

/* Fills out for all `count` rows, and returns None; NULL where the arguments could not be opened. */
static PyObject *multiply_all(const struct arguments *a, const struct products *p, Index count)
{
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    multiply(p, 0, count);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Fills out[i, j] with rows[index[i]] . residuals[j], or rows[i] . residuals[j] where index is None. */
PyObject *dots(struct arguments *a, PyObject *given)
{
    PyObject *matrix, *index, *residuals, *out;
    struct rows rows;
    struct products products;
    int plain;
    if (!PyArg_ParseTuple(given, "OOOOp", &matrix, &index, &residuals, &out, &plain))
        return NULL;
    open_rows(a, matrix, index, &rows);
    open_products(a, &rows, residuals, out, plain, NULL, &products);
    return multiply_all(a, &products, rows.count);
}

/* Fills out[i, j] with the dot product of the genotypes in codes[i] and residuals[j]; values (rows, 4) is what the codes stand for. */
PyObject *dots_codes(struct arguments *a, PyObject *given)
{
    PyObject *codes, *given_values, *residuals, *out;
    struct rows rows;
    struct products products;
    int plain;
    if (!PyArg_ParseTuple(given, "OOOOp", &codes, &given_values, &residuals, &out, &plain))
        return NULL;
    open_rows(a, codes, Py_None, &rows);
    require(a, a->failed || (format_letter(rows.matrix) == 'B' && (rows.matrix->shape[1] < 2 || rows.matrix->strides[1] == 1)),
            "codes must be rows of uint8");
    const double *values = DOUBLES(a, given_values, a->failed ? 0 : 4 * rows.count, READ);
    if (!a->failed)
        open_products(a, &rows, residuals, out, plain, values, &products);
    return multiply_all(a, &products, rows.count);
}

int prepare_sweeps(PyObject *module)
{
    with_avx2 = detect_avx2();
    if (PyModule_AddStringConstant(module, "kernel_id", with_avx2 ? "c-avx2-1" : "c-generic-1") < 0)
        return -1;
    return PyModule_AddStringConstant(module, "plain_kernel_id", "c-generic-1");
}
