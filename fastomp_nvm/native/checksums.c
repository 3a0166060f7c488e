/* CRC-32, the one of zlib and PNG, of buffers and of the rows of matrices.
 *
 * With carry-less multiplication (PCLMULQDQ, or VPCLMULQDQ on four times as many bytes) 64 bytes are folded over the following 64:
 * multiplied by x^512 modulo the polynomial and added. The 16 bytes that remain in the end have the CRC-32 of everything folded into
 * them; they and the last few bytes go through tables, as everything does on other processors. */

#include "native.h"

#include <string.h>

#define POLYNOMIAL 0xEDB88320u /* bit 31 stands for 1 and bit 0 for x^31 */

/* TABLE[k][b]: the effect of byte b on the state after k more bytes of zeros; filled by prepare_checksums. */
static uint32_t TABLE[8][256];

static uint32_t word(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Returns the state after n more bytes. */
static uint32_t by_tables(uint32_t state, const unsigned char *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        const uint32_t low = state ^ word(p), high = word(p + 4);
        state = TABLE[7][low & 255] ^ TABLE[6][low >> 8 & 255] ^ TABLE[5][low >> 16 & 255] ^ TABLE[4][low >> 24]
                ^ TABLE[3][high & 255] ^ TABLE[2][high >> 8 & 255] ^ TABLE[1][high >> 16 & 255] ^ TABLE[0][high >> 24];
    }
    for (; n; p++, n--)
        state = TABLE[0][(state ^ *p) & 255] ^ state >> 8;
    return state;
}

/* The best of this processor, the next best, and tables; set once by prepare_checksums. */
static uint32_t (*ways[3])(uint32_t state, const unsigned char *p, size_t n) = {by_tables, by_tables, by_tables};

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* x^(d + 32) and x^(d - 32) modulo the polynomial, reflected, for folding over a distance of d bits. */
#define OVER_128 0x0ccaa009e, 0x1751997d0
#define OVER_512 0x1c6e41596, 0x154442bd4
#define OVER_2048 0x1322d1430, 0x11542778a

#define FOLDING __attribute__((target("pclmul,sse2")))

FOLDING static inline __m128i folded(__m128i x, __m128i by, __m128i next)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next);
}

/* Returns the state after the bytes that were folded into x[0] to x[3], 64 in their order, and n more. */
FOLDING static uint32_t finish_folding(const __m128i *x, const unsigned char *p, size_t n)
{
    const __m128i over = _mm_set_epi64x(OVER_128);
    unsigned char rest[16];
    __m128i sum = x[0];
    for (int k = 1; k < 4; k++)
        sum = folded(sum, over, x[k]);
    for (; n >= 16; p += 16, n -= 16)
        sum = folded(sum, over, _mm_loadu_si128((const __m128i *)p));
    _mm_storeu_si128((__m128i *)rest, sum);
    return by_tables(by_tables(0, rest, sizeof rest), p, n);
}

FOLDING static uint32_t by_folding(uint32_t state, const unsigned char *p, size_t n)
{
    const __m128i over = _mm_set_epi64x(OVER_512);
    __m128i x[4];
    if (n < 128)
        return by_tables(state, p, n);
    memcpy(x, p, sizeof x);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)state));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int k = 0; k < 4; k++)
            x[k] = folded(x[k], over, _mm_loadu_si128((const __m128i *)p + k));
    return finish_folding(x, p, n);
}

#if __GNUC__ >= 9 || (defined(__clang__) && __clang_major__ >= 7)
#define WIDE_FOLDING __attribute__((target("avx512f,vpclmulqdq,pclmul")))

WIDE_FOLDING static inline __m512i widely_folded(__m512i x, __m512i by, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11), next, 0x96);
}

/* As by_folding, with four registers of 64 bytes each. */
WIDE_FOLDING static uint32_t by_wide_folding(uint32_t state, const unsigned char *p, size_t n)
{
    __m512i over = _mm512_broadcast_i32x4(_mm_set_epi64x(OVER_2048)), x[4];
    __m128i rest[4];
    if (n < 512)
        return by_folding(state, p, n);
    memcpy(x, p, sizeof x);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int k = 0; k < 4; k++)
            x[k] = widely_folded(x[k], over, _mm512_loadu_si512(p + 64 * k));
    over = _mm512_broadcast_i32x4(_mm_set_epi64x(OVER_512));
    for (int k = 1; k < 4; k++)
        x[0] = widely_folded(x[0], over, x[k]);
    for (; n >= 64; p += 64, n -= 64)
        x[0] = widely_folded(x[0], over, _mm512_loadu_si512(p));
    memcpy(rest, x, sizeof rest);
    return finish_folding(rest, p, n);
}
#define HAS_WIDE_FOLDING (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
#else
#define by_wide_folding by_folding
#define HAS_WIDE_FOLDING 0
#endif
#endif

void prepare_checksums(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? POLYNOMIAL : 0);
        TABLE[0][byte] = state;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            TABLE[k][byte] = TABLE[0][TABLE[k - 1][byte] & 255] ^ TABLE[k - 1][byte] >> 8;
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("pclmul")) {
        ways[1] = by_folding;
        ways[0] = HAS_WIDE_FOLDING ? by_wide_folding : by_folding;
    }
#endif
}

/* Returns the CRC-32 of a buffer's bytes, continuing from that of the bytes before it; `way` is 0 but in tests. */
PyObject *crc32(struct arguments *a, PyObject *given)
{
    PyObject *data;
    unsigned int start;
    int way;
    if (!PyArg_ParseTuple(given, "OIi", &data, &start, &way))
        return NULL;
    const Py_buffer *bytes = open_buffer(a, data, "data", PyBUF_SIMPLE);
    require(a, way >= 0 && way < 3, "there are three ways");
    if (a->failed)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    start = ~ways[way](~start, bytes->buf, (size_t)bytes->len);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLong(start);
}

/* Fills out with the CRC-32 of each of rows[places]; rows of any type, contiguous. */
PyObject *row_checksums(struct arguments *a, PyObject *given)
{
    PyObject *rows, *places, *out;
    if (!PyArg_ParseTuple(given, "OOO", &rows, &places, &out))
        return NULL;
    const Py_buffer *matrix = open_buffer(a, rows, "rows", PyBUF_STRIDES);
    const int count = length_of(a, places);
    const int64_t *chosen = WORDS(a, places, count, READ);
    uint32_t *found = array(a, out, "out", "I", count, sizeof(uint32_t), WRITE);
    require(a, a->failed || (matrix->ndim == 2 && (matrix->shape[1] < 2 || matrix->strides[1] == matrix->itemsize)),
            "rows must be contiguous");
    for (int k = 0; !a->failed && k < count; k++)
        require(a, chosen[k] >= 0 && chosen[k] < matrix->shape[0], "a place is outside of rows");
    if (a->failed)
        return NULL;
    const size_t length = (size_t)(matrix->shape[1] * matrix->itemsize);
    Py_BEGIN_ALLOW_THREADS
    for (int k = 0; k < count; k++)
        found[k] = ~ways[0](~0u, (const unsigned char *)matrix->buf + chosen[k] * matrix->strides[0], length);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
