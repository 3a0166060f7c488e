/* Genotypes of PLINK's .bed format: four people per byte, two bits each, the first person in the lowest bits.
 *
 * A row of a call holds the codes of all people at one variant. What a code stands for is given by a table of four numbers per row, so
 * that a missing genotype can stand for the mean of its variant. */

#include "rows.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define WITH_AVX2 1
#else
#define WITH_AVX2 0
#endif

#define LOW_BITS 0x5555555555555555ULL /* the low bit of each code in a word */

static int code_of(const unsigned char *row, int64_t person)
{
    return row[person >> 2] >> 2 * (person & 3) & 3;
}

/* Defines `name`, which writes the values of the first n people of a row to `out`. */
#define DEFINE_DECODE(name, number)                                                                                          \
    static void name(const unsigned char *row, Py_ssize_t n, const double *values, number *out)                              \
    {                                                                                                                        \
        const number value[4] = {(number)values[0], (number)values[1], (number)values[2], (number)values[3]};                \
        Py_ssize_t i = 0;                                                                                                    \
        for (; i + 4 <= n; i += 4) {                                                                                         \
            const int codes = row[i >> 2];                                                                                   \
            out[i] = value[codes & 3];                                                                                       \
            out[i + 1] = value[codes >> 2 & 3];                                                                              \
            out[i + 2] = value[codes >> 4 & 3];                                                                              \
            out[i + 3] = value[codes >> 6];                                                                                  \
        }                                                                                                                    \
        for (; i < n; i++)                                                                                                   \
            out[i] = value[code_of(row, i)];                                                                                 \
    }
DEFINE_DECODE(decode_singles, float)
DEFINE_DECODE(decode_doubles, double)

#if WITH_AVX2
/* As decode_singles: sixteen people at a time are shifted to the lowest bits of a lane each, which pick from the table. */
__attribute__((target("avx2"))) static void avx2_decode_singles(const unsigned char *row, Py_ssize_t n, const double *values, float *out)
{
    const __m256 table = _mm256_broadcast_ps(&(const __m128){(float)values[0], (float)values[1], (float)values[2], (float)values[3]});
    const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), high = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
    Py_ssize_t i = 0;
    for (; i + 16 <= n; i += 16) {
        int32_t word;
        memcpy(&word, row + (i >> 2), sizeof word);
        const __m256i codes = _mm256_set1_epi32(word);
        _mm256_storeu_ps(out + i, _mm256_permutevar_ps(table, _mm256_srlv_epi32(codes, low)));
        _mm256_storeu_ps(out + i + 8, _mm256_permutevar_ps(table, _mm256_srlv_epi32(codes, high)));
    }
    if (i < n)
        decode_singles(row + (i >> 2), n - i, values, out + i);
}
#endif

void unpack(const char *codes, Index length, const double *values, int single, void *to)
{
    const unsigned char *row = (const unsigned char *)codes;
    if (!single)
        decode_doubles(row, length, values, to);
#if WITH_AVX2
    else if (has_avx2())
        avx2_decode_singles(row, length, values, to);
#endif
    else
        decode_singles(row, length, values, to);
}

/* Opens rows of codes for `people` people. */
static const Py_buffer *open_codes(struct arguments *a, PyObject *given, Py_ssize_t people)
{
    const Py_buffer *codes = open_array(a, given, "codes", "B", 2, READ);
    require(a, a->failed || (people >= 0 && codes->shape[1] * 4 >= people), "the rows of codes are too short for the people");
    return codes;
}

/* decode(codes, people, values, out): writes the values of the first `people` to float32 or float64 rows. */
PyObject *decode(struct arguments *a, PyObject *given)
{
    PyObject *codes_given, *values_given, *out_given;
    Py_ssize_t people;
    if (!PyArg_ParseTuple(given, "OnOO", &codes_given, &people, &values_given, &out_given))
        return NULL;
    const Py_buffer *codes = open_codes(a, codes_given, people);
    const Py_ssize_t count = a->failed ? 0 : codes->shape[0];
    const double *values = DOUBLES(a, values_given, 4 * count, READ);
    const Py_buffer *out = open_array(a, out_given, "out", "fd", 2, WRITE | PyBUF_C_CONTIGUOUS);
    require(a, a->failed || (out->shape[0] == count && out->shape[1] == people), "out must have a row per variant and an entry per person");
    if (a->failed)
        return NULL;
    const int single = format_letter(out) == 'f';
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        unpack((const char *)codes->buf + i * codes->strides[0], people, values + 4 * i, single,
               (char *)out->buf + i * people * out->itemsize);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

/* Returns the codes that `mask` covers, both bits of each, side by side. */
static inline uint64_t extract(uint64_t word, uint64_t mask)
{
    uint64_t found = 0;
    for (int at = 0; mask; at += 2, mask &= mask - 1, mask &= mask - 1)
        found |= (word >> __builtin_ctzll(mask) & 3) << at;
    return found;
}

/* Defines `name`, which writes the codes of a row that `mask` covers to `out`, side by side, and zeros to the end of the last byte. */
#define DEFINE_COMPACT(name, target, extract)                                                                                \
    target static void name(const unsigned char *row, const unsigned char *mask, Py_ssize_t bytes, unsigned char *out)       \
    {                                                                                                                        \
        uint64_t waiting = 0; /* the bits that do not fill a word yet */                                                     \
        int filled = 0;                                                                                                      \
        for (Py_ssize_t i = 0; i < bytes; i += 8) {                                                                          \
            const size_t here = (size_t)(bytes - i < 8 ? bytes - i : 8);                                                     \
            uint64_t word = 0, covered = 0;                                                                                  \
            memcpy(&word, row + i, here);                                                                                    \
            memcpy(&covered, mask + i, here);                                                                                \
            const uint64_t found = extract(word, covered);                                                                   \
            waiting |= found << filled;                                                                                      \
            const int more = filled + __builtin_popcountll(covered);                                                         \
            if (more >= 64) {                                                                                                \
                memcpy(out, &waiting, sizeof waiting);                                                                       \
                out += sizeof waiting;                                                                                       \
                waiting = filled ? found >> (64 - filled) : 0;                                                               \
            }                                                                                                                \
            filled = more % 64;                                                                                              \
        }                                                                                                                    \
        memcpy(out, &waiting, (size_t)(filled + 7) / 8);                                                                     \
    }
DEFINE_COMPACT(compact_row, , extract)
#if WITH_AVX2
DEFINE_COMPACT(bmi2_compact_row, __attribute__((target("bmi2,popcnt"))), _pext_u64)
#endif

/* compact(codes, mask, out): writes the codes of the people with both bits in `mask` to rows of as many bytes as they take. */
PyObject *compact(struct arguments *a, PyObject *given)
{
    PyObject *codes_given, *mask_given, *out_given;
    if (!PyArg_ParseTuple(given, "OOO", &codes_given, &mask_given, &out_given))
        return NULL;
    const Py_buffer *codes = open_codes(a, codes_given, 0);
    const Py_ssize_t count = a->failed ? 0 : codes->shape[0], bytes = a->failed ? 0 : codes->shape[1];
    const unsigned char *mask = array(a, mask_given, "mask", "B", bytes, 1, READ);
    const Py_buffer *out = open_array(a, out_given, "out", "B", 2, WRITE | PyBUF_C_CONTIGUOUS);
    Py_ssize_t used = 0;
    for (Py_ssize_t i = 0; !a->failed && i < bytes; i++) {
        used += __builtin_popcount(mask[i]);
        require(a, (mask[i] & 0x55) == (mask[i] >> 1 & 0x55), "the mask must have both bits of a code or none");
    }
    require(a, a->failed || (out->shape[0] == count && out->shape[1] == (used + 7) / 8), "out must have the bytes of the codes in the mask");
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        const unsigned char *row = (const unsigned char *)codes->buf + i * codes->strides[0];
        unsigned char *to = (unsigned char *)out->buf + i * out->shape[1];
#if WITH_AVX2
        if (__builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) {
            bmi2_compact_row(row, mask, bytes, to);
            continue;
        }
#endif
        compact_row(row, mask, bytes, to);
    }
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

/* Counts the low bits, the high bits and the codes with both, of those that `mask` has a low bit for. */
#define DEFINE_COUNT(name, target)                                                                                           \
    target static void name(const unsigned char *row, const unsigned char *mask, Py_ssize_t bytes, int64_t *found)           \
    {                                                                                                                        \
        int64_t low = 0, high = 0, both = 0;                                                                                 \
        for (Py_ssize_t i = 0; i < bytes; i += 8) {                                                                          \
            const size_t here = (size_t)(bytes - i < 8 ? bytes - i : 8);                                                     \
            uint64_t word = 0, counted = 0;                                                                                  \
            memcpy(&word, row + i, here);                                                                                    \
            memcpy(&counted, mask + i, here);                                                                                \
            const uint64_t lows = word & counted & LOW_BITS, highs = word >> 1 & counted & LOW_BITS;                         \
            low += __builtin_popcountll(lows);                                                                               \
            high += __builtin_popcountll(highs);                                                                             \
            both += __builtin_popcountll(lows & highs);                                                                      \
        }                                                                                                                    \
        found[0] = low - both, found[1] = high - both, found[2] = both;                                                      \
    }
DEFINE_COUNT(count_row, )
#if WITH_AVX2
DEFINE_COUNT(popcnt_count_row, __attribute__((target("popcnt"))))
#endif

/* count_codes(codes, mask, out): writes, per row, how many of the people with a low bit in `mask` have the codes 1, 2 and 3. */
PyObject *count_codes(struct arguments *a, PyObject *given)
{
    PyObject *codes_given, *mask_given, *out_given;
    if (!PyArg_ParseTuple(given, "OOO", &codes_given, &mask_given, &out_given))
        return NULL;
    const Py_buffer *codes = open_codes(a, codes_given, 0);
    const Py_ssize_t count = a->failed ? 0 : codes->shape[0], bytes = a->failed ? 0 : codes->shape[1];
    const unsigned char *mask = array(a, mask_given, "mask", "B", bytes, 1, READ);
    int64_t *out = WORDS(a, out_given, 3 * count, WRITE);
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        const unsigned char *row = (const unsigned char *)codes->buf + i * codes->strides[0];
#if WITH_AVX2
        if (has_avx2()) {
            popcnt_count_row(row, mask, bytes, out + 3 * i);
            continue;
        }
#endif
        count_row(row, mask, bytes, out + 3 * i);
    }
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}
