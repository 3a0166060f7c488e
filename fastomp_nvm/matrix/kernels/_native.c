/* The sweep kernel in C: out[i, j] = rows[i] . residuals[j], exact int8 dots, and row gathers.
 *
 * Row-invariant: the bits of out[i, j] depend on rows[i], residuals[j] and the number of observations only. Every pair owns one
 * 32-byte vector of partial sums; observations go through it in order, one vector a step; after each chunk of 4096 residual
 * bytes the lanes are folded in a fixed tree and added to out[i, j] in float64. The register blocks (4 x 3, 4 x 1, 1 x 3, 1 x 1
 * rows x residuals) are instances of one macro body, so they differ in nothing but how many pairs advance together. The loop
 * nest above them may visit chunks of different rows in any order, but those of one pair always in ascending order.
 *
 * There are two instruction sets, each with bits of its own and an id of its own: AVX2 with FMA and F16C, chosen at run time, and
 * plain C. Build with -ffp-contract=off; without it the compiler may fuse where the blocks differ.
 *
 * Knows no NumPy, no store and no thread: buffers come in through the buffer protocol and the GIL is released around the loops. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "this target keeps excess precision, so sums would depend on register allocation: use the numba or NumPy kernel"
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
#define INT8_RESIDUAL_LIMIT 8191 /* 128 steps of 2 x 128 x 8191 stay below 2**31 */

typedef Py_ssize_t Index;

/* Up to BLOCK_ROWS row chunks: `whole` vectors from `start`, then, if `ragged`, one vector padded with zeros at `end`. The chunks
 * to be read next lie `ahead` bytes further. */
struct strips {
    const char *start[BLOCK_ROWS];
    char end[BLOCK_ROWS][VECTOR_BYTES];
    Index count, whole, ahead;
    int ragged;
};

/* Adds to out (row stride out_stride) the dots of the strips with n_residuals packed residual chunks. */
typedef void Tile(const struct strips *strips, const char *panel, Index n_residuals, void *out, Index out_stride);

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 4")

/* Advances every sum of a block by one vector: row i at row_address, residual j at `step` of the panel. */
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

/* Defines `name`, a Tile. load_row and load_residual fill a vector from an address (a row's vector takes row_bytes there),
 * multiply_add advances a sum by one vector, fold turns a sum into a number.
 * Narrow rows against one residual outrun the hardware's prefetcher; wide ones are better left to it. */
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

/* Plain C: every product is rounded before it joins its sum. */

typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));

/* Widens `count` halves exactly. A finite half is its bits moved to a float's places, times 2**112; the others have all exponent
 * bits set. */
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
DEFINE_TILE(plain_bh, , int64_t, int64_t, const char *, 16, PLAIN_ADDRESS, PLAIN_ADDRESS, PLAIN_MULTIPLY_ADD_INT8,
            PLAIN_FOLD_INT8)

/* AVX2, FMA and F16C: products join their sums unrounded. */

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
DEFINE_TILE(avx2_bh, AVX2, int64_t, __m256i, __m256i, 16, AVX2_LOAD_B_AS_H, AVX2_LOAD_H, AVX2_MULTIPLY_ADD_INT8, avx2_fold_int8)

static int detect_avx2(void)
{
    unsigned int eax, ebx, ecx, edx;
    /* Not every compiler that knows F16C lets __builtin_cpu_supports ask for it. */
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
        return 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define TILE_PAIR(suffix) {plain_##suffix, avx2_##suffix}
#else
static int detect_avx2(void)
{
    return 0;
}
#define TILE_PAIR(suffix) {plain_##suffix, plain_##suffix}
#endif

/* Set once when the module is loaded: cpuid traps to the hypervisor of a virtual machine, far too slow for every call. */
static int with_avx2;

/* The element types of a dot, as buffer format letters, and its tiles: plain, then the best this build has. */
struct pairing {
    char row, residual;
    Tile *tiles[2];
};

static const struct pairing PAIRINGS[] = {
    {'f', 'f', TILE_PAIR(ff)}, {'d', 'd', TILE_PAIR(dd)}, {'e', 'f', TILE_PAIR(ef)},
    {'e', 'd', TILE_PAIR(ed)}, {'f', 'd', TILE_PAIR(fd)}, {'b', 'h', TILE_PAIR(bh)},
};

static Index smaller(Index a, Index b)
{
    return a < b ? a : b;
}

/* Returns how many chunks of a panel these residuals fill, at least 1. */
static Index panel_chunks(const Py_buffer *residuals)
{
    const Index deep = smaller(PANEL_CHUNKS, residuals->shape[1] / (CHUNK_BYTES / residuals->itemsize) + 1);
    const Index wide = smaller(PANEL_CHUNKS, residuals->shape[0]);
    return smaller(PANEL_CHUNKS, wide * deep + 1);
}

/* Packs observations begin..end of `width` residuals from `j` as [chunk][residual][CHUNK_BYTES], the last vector zero-padded. */
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

static int64_t index_at(const Py_buffer *index, Index position)
{
    int64_t value;
    memcpy(&value, (const char *)index->buf + position * index->strides[0], sizeof value);
    return value;
}

/* The rows of a dot: all of `rows`, or, where `index` is given, those it names, in its order. */
struct picked {
    const Py_buffer *rows, *index;
    Index count;
};

static const char *picked_row(const struct picked *picked, Index i)
{
    return (const char *)picked->rows->buf + (picked->index ? index_at(picked->index, i) : i) * picked->rows->strides[0];
}

/* Points the strips at `length` observations of the picked rows i, i + 1, ... from observation `begin`. */
static void place_strips(struct strips *strips, const struct picked *picked, Index i, Index begin, Index length, Index lanes)
{
    const Index rest = length % lanes, item = picked->rows->itemsize;
    strips->count = smaller(BLOCK_ROWS, picked->count - i);
    strips->whole = length / lanes;
    strips->ragged = rest > 0;
    for (Index k = 0; k < strips->count; k++) {
        strips->start[k] = picked_row(picked, i + k) + begin * item;
        if (rest) {
            memset(strips->end[k], 0, VECTOR_BYTES);
            memcpy(strips->end[k], strips->start[k] + (length - rest) * item, (size_t)(rest * item));
        }
    }
}

/* Returns how far ahead of `begin` lies what is read next: the next chunk of these rows, or the first one of the rows after them.
 * Where those are is not known of rows picked by number: nowhere new, then. */
static Index bytes_ahead(const struct picked *picked, Index first, Index begin, Index last, Index chunk)
{
    const Index item = picked->rows->itemsize;
    if (begin + chunk < last)
        return chunk * item;
    return picked->index ? 0 : BLOCK_ROWS * picked->rows->strides[0] - (begin - first) * item;
}

/* Fills out (8-byte numbers) with the dots of every row with every residual; panel has room for panel_chunks() chunks. */
static void sweep(Tile *tile, const struct picked *picked, const Py_buffer *residuals, const Py_buffer *out, char *panel)
{
    const Index n_obs = picked->rows->shape[1], n_residuals = residuals->shape[0];
    const Index chunk = CHUNK_BYTES / residuals->itemsize, lanes = VECTOR_BYTES / residuals->itemsize;
    struct strips strips;

    memset(out->buf, 0, (size_t)out->len);
    for (Index j = 0; j < n_residuals; j += PANEL_CHUNKS) {
        const Index width = smaller(PANEL_CHUNKS, n_residuals - j);
        const Index span = PANEL_CHUNKS / width * chunk;
        for (Index first = 0; first < n_obs; first += span) {
            const Index last = smaller(n_obs, first + span);
            pack(panel, residuals, j, width, first, last);
            for (Index i = 0; i < picked->count; i += BLOCK_ROWS) {
                for (Index begin = first; begin < last; begin += chunk) {
                    place_strips(&strips, picked, i, begin, smaller(chunk, last - begin), lanes);
                    strips.ahead = bytes_ahead(picked, first, begin, last, chunk);
                    tile(&strips, panel + (begin - first) / chunk * width * CHUNK_BYTES, width,
                         (char *)out->buf + (i * n_residuals + j) * out->itemsize, n_residuals);
                }
            }
        }
    }
}

/* Returns the format letter of a native element type, 'q' for any 8-byte signed integer, or 0. */
static char format_letter(const Py_buffer *view)
{
    const uint16_t one = 1;
    const char native = *(const char *)&one ? '<' : '>';
    const char *format = view->format ? view->format : "B";
    /* NumPy marks unaligned arrays with '='. */
    if (*format == '@' || *format == '=' || *format == '^' || *format == native)
        format++;
    if (strlen(format) != 1 || !strchr("efdbhlq", *format))
        return 0;
    if (*format == 'l' || *format == 'q')
        return view->itemsize == 8 ? 'q' : 0;
    return *format;
}

/* Opens a buffer of ndim dimensions; a matrix must have its rows' entries side by side. Returns 0, or -1 with ValueError set. */
static int acquire(PyObject *object, Py_buffer *view, const char *name, int ndim, int writable)
{
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_ValueError, "%s is no %sbuffer: expected an ndarray of %d dimensions", name,
                         writable ? "writable " : "", ndim);
        return -1;
    }
    if (view->ndim != ndim)
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions: expected %d", name, view->ndim, ndim);
    else if (!format_letter(view))
        PyErr_Format(PyExc_ValueError, "%s has element format %s: expected native float16, float32, float64, int8, int16 or int64",
                     name, view->format ? view->format : "B");
    else if (ndim == 2 && view->shape[0] > 0 && view->shape[1] > 1 && view->strides[1] != view->itemsize)
        PyErr_Format(PyExc_ValueError, "the entries of a row of %s are %zd bytes apart: expected them side by side", name,
                     view->strides[1]);
    else
        return 0;
    PyBuffer_Release(view);
    return -1;
}

/* Returns the pairing that fits the arguments of a dot product, or NULL with ValueError set. */
static const struct pairing *checked_pairing(const struct picked *picked, const Py_buffer *residuals, const Py_buffer *out, int int8)
{
    const Py_buffer *rows = picked->rows;
    const char row = format_letter(rows), residual = format_letter(residuals), result = format_letter(out);
    const struct pairing *found = NULL;
    for (size_t k = 0; k < sizeof PAIRINGS / sizeof *PAIRINGS; k++)
        if (PAIRINGS[k].row == row && PAIRINGS[k].residual == residual && (row == 'b') == int8)
            found = &PAIRINGS[k];
    if (!found)
        PyErr_Format(PyExc_ValueError, "rows of format '%c' cannot meet residuals of format '%c': expected %s", row, residual,
                     int8 ? "int8 with int16" : "float rows with residuals at least as wide, float32 or float64");
    else if (result != (int8 ? 'q' : 'd') || !PyBuffer_IsContiguous(out, 'C') || (uintptr_t)out->buf % 8)
        PyErr_Format(PyExc_ValueError, "out is not an aligned C-contiguous %s array", int8 ? "int64" : "float64");
    else if (!PyBuffer_IsContiguous(residuals, 'C'))
        PyErr_SetString(PyExc_ValueError, "residuals are not C-contiguous: pass numpy.ascontiguousarray(residuals)");
    else if (rows->shape[1] != residuals->shape[1])
        PyErr_Format(PyExc_ValueError, "rows have %zd observations and residuals %zd: expected the same number", rows->shape[1],
                     residuals->shape[1]);
    else if (out->shape[0] != picked->count || out->shape[1] != residuals->shape[0])
        PyErr_Format(PyExc_ValueError, "out has shape (%zd, %zd): expected (%zd, %zd), rows by residuals", out->shape[0],
                     out->shape[1], picked->count, residuals->shape[0]);
    else
        return found;
    return NULL;
}

/* Tells whether every int16 entry is small enough for int32 sums of a chunk. */
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

/* Sets ValueError and returns -1 unless index names rows that exist. */
static int check_index(const Py_buffer *rows, const Py_buffer *index)
{
    if (format_letter(index) != 'q') {
        PyErr_SetString(PyExc_ValueError, "index is not int64");
        return -1;
    }
    for (Index k = 0; k < index->shape[0]; k++) {
        const long long row = index_at(index, k);
        if (row < 0 || row >= rows->shape[0]) {
            PyErr_Format(PyExc_ValueError, "index %lld at position %zd names no row: expected 0 to %zd", row, k,
                         rows->shape[0] - 1);
            return -1;
        }
    }
    return 0;
}

/* Fills out with the dots of the picked rows. Returns 0, or -1 with an exception set. */
static int fill_dots(const struct picked *picked, const Py_buffer *residuals, const Py_buffer *out, int int8, int plain)
{
    const struct pairing *pairing = checked_pairing(picked, residuals, out, int8);
    if (!pairing)
        return -1;
    if (int8 && !within_int8_limit(residuals)) {
        PyErr_Format(PyExc_ValueError, "an int16 residual exceeds %d in size: rescale the residuals", INT8_RESIDUAL_LIMIT);
        return -1;
    }
    char *panel = aligned_alloc(CHUNK_BYTES, (size_t)panel_chunks(residuals) * CHUNK_BYTES);
    if (!panel) {
        PyErr_NoMemory();
        return -1;
    }
    Tile *tile = pairing->tiles[!plain && with_avx2];
    Py_BEGIN_ALLOW_THREADS
    sweep(tile, picked, residuals, out, panel);
    Py_END_ALLOW_THREADS
    free(panel);
    return 0;
}

/* Opens the arguments of a dot, the index where there is one, and fills out. */
static PyObject *run_dots(PyObject *given_rows, PyObject *given_index, PyObject *given_residuals, PyObject *given_out, int int8,
                          int plain)
{
    PyObject *result = NULL;
    Py_buffer rows, index, residuals, out;
    if (acquire(given_rows, &rows, "rows", 2, 0) < 0)
        return NULL;
    if (given_index && acquire(given_index, &index, "index", 1, 0) < 0)
        goto release_rows;
    if (given_index && check_index(&rows, &index) < 0)
        goto release_index;
    if (acquire(given_residuals, &residuals, "residuals", 2, 0) < 0)
        goto release_index;
    if (acquire(given_out, &out, "out", 2, 1) < 0)
        goto release_residuals;
    const struct picked picked = {&rows, given_index ? &index : NULL, given_index ? index.shape[0] : rows.shape[0]};
    if (fill_dots(&picked, &residuals, &out, int8, plain) == 0)
        result = Py_NewRef(Py_None);
    PyBuffer_Release(&out);
release_residuals:
    PyBuffer_Release(&residuals);
release_index:
    if (given_index)
        PyBuffer_Release(&index);
release_rows:
    PyBuffer_Release(&rows);
    return result;
}

static PyObject *dots(PyObject *module, PyObject *arguments)
{
    PyObject *rows, *residuals, *out;
    int plain = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO|p", &rows, &residuals, &out, &plain))
        return NULL;
    return run_dots(rows, NULL, residuals, out, 0, plain);
}

static PyObject *dots_at(PyObject *module, PyObject *arguments)
{
    PyObject *rows, *index, *residuals, *out;
    int plain = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO|p", &rows, &index, &residuals, &out, &plain))
        return NULL;
    return run_dots(rows, index, residuals, out, 0, plain);
}

static PyObject *dots_int8(PyObject *module, PyObject *arguments)
{
    PyObject *rows, *residuals, *out;
    int plain = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO|p", &rows, &residuals, &out, &plain))
        return NULL;
    return run_dots(rows, NULL, residuals, out, 1, plain);
}

/* Sets ValueError and returns -1 unless out can take rows[index]. */
static int check_gather(const Py_buffer *rows, const Py_buffer *index, const Py_buffer *out)
{
    if (format_letter(rows) != format_letter(out)) {
        PyErr_Format(PyExc_ValueError, "out has format '%c' and rows '%c': expected the same", format_letter(out),
                     format_letter(rows));
        return -1;
    }
    if (out->shape[0] != index->shape[0] || out->shape[1] != rows->shape[1]) {
        PyErr_Format(PyExc_ValueError, "out has shape (%zd, %zd): expected (%zd, %zd), indices by observations", out->shape[0],
                     out->shape[1], index->shape[0], rows->shape[1]);
        return -1;
    }
    return check_index(rows, index);
}

static PyObject *gather(PyObject *module, PyObject *arguments)
{
    PyObject *objects[3], *result = NULL;
    Py_buffer rows, index, out;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &objects[0], &objects[1], &objects[2]))
        return NULL;
    if (acquire(objects[0], &rows, "rows", 2, 0) < 0)
        return NULL;
    if (acquire(objects[1], &index, "index", 1, 0) < 0)
        goto release_rows;
    if (acquire(objects[2], &out, "out", 2, 1) < 0)
        goto release_index;
    if (check_gather(&rows, &index, &out) < 0)
        goto release_out;
    Py_BEGIN_ALLOW_THREADS
    const size_t bytes = (size_t)(rows.shape[1] * rows.itemsize);
    for (Index k = 0; k < index.shape[0]; k++)
        memcpy((char *)out.buf + k * out.strides[0], (const char *)rows.buf + index_at(&index, k) * rows.strides[0], bytes);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
release_out:
    PyBuffer_Release(&out);
release_index:
    PyBuffer_Release(&index);
release_rows:
    PyBuffer_Release(&rows);
    return result;
}

PyDoc_STRVAR(dots_doc, "dots(rows, residuals, out, plain=False, /)\n--\n\n"
                       "Fill out[i, j] with the dot product of rows[i] and residuals[j].");
PyDoc_STRVAR(dots_at_doc, "dots_at(rows, index, residuals, out, plain=False, /)\n--\n\n"
                          "Fill out[i, j] with the dot product of rows[index[i]] and residuals[j].");
PyDoc_STRVAR(dots_int8_doc, "dots_int8(rows, residuals, out, plain=False, /)\n--\n\n"
                            "Fill out[i, j] with the exact integer dot product of int8 rows[i] and int16 residuals[j].");
PyDoc_STRVAR(gather_doc, "gather(rows, index, out, /)\n--\n\n"
                         "Copy rows[index[i]] to out[i].");

static PyMethodDef METHODS[] = {
    {"dots", dots, METH_VARARGS, dots_doc},
    {"dots_at", dots_at, METH_VARARGS, dots_at_doc},
    {"dots_int8", dots_int8, METH_VARARGS, dots_int8_doc},
    {"gather", gather, METH_VARARGS, gather_doc},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module)
{
    with_avx2 = detect_avx2();
    if (PyModule_AddStringConstant(module, "kernel_id", with_avx2 ? "c-avx2-1" : "c-generic-1") < 0)
        return -1;
    return PyModule_AddStringConstant(module, "plain_kernel_id", "c-generic-1");
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.kernels._native",
    .m_doc = "Row-invariant dot products and row gathers in C.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
