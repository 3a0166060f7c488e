/* Rows in either layout, of any type of real numbers: opening, converting and gathering them. */

#include "rows.h"

#include <string.h>

#define GATHERED 16 /* observations gathered at a time from interleaved rows: a cache line of float32 per row is written at once */

int interleaved(const Py_buffer *matrix)
{
    return matrix->shape[1] > 1 && matrix->strides[1] != matrix->itemsize;
}

static int64_t row_number(const struct rows *rows, Index i)
{
    int64_t number = i;
    if (rows->index)
        memcpy(&number, (const char *)rows->index->buf + i * rows->index->strides[0], sizeof number);
    return number;
}

const char *row_at(const struct rows *rows, Index i)
{
    return (const char *)rows->matrix->buf + row_number(rows, i) * rows->matrix->strides[0];
}

void open_rows(struct arguments *a, PyObject *matrix, PyObject *index, struct rows *rows)
{
    rows->matrix = open_array(a, matrix, "rows", ROW_FORMATS, 2, EITHER_LAYOUT);
    rows->index = index == Py_None ? NULL : open_array(a, index, "index", "q", 1, 0);
    if (a->failed)
        return;
    rows->count = rows->index ? rows->index->shape[0] : rows->matrix->shape[0];
    for (Index i = 0; rows->index && i < rows->count; i++) {
        const long long number = row_number(rows, i);
        if (number < 0 || number >= rows->matrix->shape[0]) {
            PyErr_Format(PyExc_ValueError, "index[%zd] is %lld: expected 0 to %zd", i, number, rows->matrix->shape[0] - 1);
            a->failed = 1;
            return;
        }
    }
}

/* Widens a half exactly. A finite half has the value of its bits, shifted to the fields of a float, times 2**112; infinities and
 * NaNs get all exponent bits of a float. */
static inline double half(uint16_t bits)
{
    uint32_t word = (uint32_t)(bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &word, sizeof value);
    value *= 0x1p112f;
    memcpy(&word, &value, sizeof word);
    word |= (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    word |= (uint32_t)(bits & 0x8000) << 16;
    memcpy(&value, &word, sizeof value);
    return value;
}

#define SAME(x) (x)
#define TAKE_EACH(type, number, value, bytes)                                                                                \
    for (Index i = 0; i < count; i++) {                                                                                      \
        type entry;                                                                                                          \
        memcpy(&entry, from + i * (bytes), sizeof entry);                                                                    \
        const number taken = value(entry);                                                                                   \
        memcpy((char *)to + i * (Index)sizeof taken, &taken, sizeof taken);                                                  \
    }

/* Defines a Take; with contiguous entries it becomes vector code. */
#define DEFINE_TAKE(name, type, number, value)                                                                               \
    static void name(const char *restrict from, Index step, Index count, void *restrict to)                                 \
    {                                                                                                                        \
        if (step == (Index)sizeof(type))                                                                                     \
            TAKE_EACH(type, number, value, (Index)sizeof(type))                                                              \
        else                                                                                                                 \
            TAKE_EACH(type, number, value, step)                                                                             \
    }

DEFINE_TAKE(copy_1, uint8_t, uint8_t, SAME)
DEFINE_TAKE(copy_2, uint16_t, uint16_t, SAME)
DEFINE_TAKE(copy_4, uint32_t, uint32_t, SAME)
DEFINE_TAKE(copy_8, uint64_t, uint64_t, SAME)
DEFINE_TAKE(take_e, uint16_t, double, half)
DEFINE_TAKE(take_f, float, double, SAME)
DEFINE_TAKE(take_b, int8_t, double, SAME)
DEFINE_TAKE(take_B, uint8_t, double, SAME)
DEFINE_TAKE(take_h, int16_t, double, SAME)
DEFINE_TAKE(take_H, uint16_t, double, SAME)
DEFINE_TAKE(take_i, int32_t, double, SAME)
DEFINE_TAKE(take_I, uint32_t, double, SAME)
DEFINE_TAKE(take_q, int64_t, double, SAME)
DEFINE_TAKE(take_Q, uint64_t, double, SAME)

/* In the order of ROW_FORMATS: an entry as it is, and as a double. */
static Take *const TAKES[][2] = {
    {copy_2, take_e}, {copy_4, take_f}, {copy_8, copy_8}, {copy_1, take_B}, {copy_1, take_b}, {copy_1, take_B},
    {copy_2, take_h}, {copy_2, take_H}, {copy_4, take_i}, {copy_4, take_I}, {copy_8, take_q}, {copy_8, take_Q},
};

Take *take_as(char from, char to)
{
    const char *place = strchr(ROW_FORMATS, from);
    return place && (from == to || to == 'd') ? TAKES[place - ROW_FORMATS][from != to] : NULL;
}

/* Copies rows[index[i]] to out[i], converted where out is float64. */
PyObject *gather(struct arguments *a, PyObject *given)
{
    PyObject *given_rows, *given_index, *given_out;
    struct rows rows;
    if (!PyArg_ParseTuple(given, "OOO", &given_rows, &given_index, &given_out))
        return NULL;
    open_rows(a, given_rows, given_index, &rows);
    const Py_buffer *out = open_array(a, given_out, "out", ROW_FORMATS, 2, PyBUF_WRITABLE);
    if (!out)
        return NULL;
    const Py_buffer *matrix = rows.matrix;
    Take *take = take_as(format_letter(matrix), format_letter(out));
    if (!take || out->shape[0] != rows.count || out->shape[1] != matrix->shape[1])
        return PyErr_Format(PyExc_ValueError, "out is (%zd, %zd) of format '%c': expected (%zd, %zd) of '%c'", out->shape[0],
                            out->shape[1], format_letter(out), rows.count, matrix->shape[1], format_letter(matrix));
    const Index n = matrix->shape[1], step = n > 1 ? matrix->strides[1] : matrix->itemsize, depth = interleaved(matrix) ? GATHERED : n;
    Py_BEGIN_ALLOW_THREADS
    for (Index begin = 0; begin < n; begin += depth)
        for (Index i = 0; i < rows.count; i++)
            take(row_at(&rows, i) + begin * step, step, begin + depth < n ? depth : n - begin,
                 (char *)out->buf + i * out->strides[0] + begin * out->itemsize);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
