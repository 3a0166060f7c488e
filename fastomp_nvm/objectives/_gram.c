/* Rounds over a Gram matrix in C: prefixes of FAST_OMP's sequences, and steps of the greedy behind the polish.
 *
 * linear_candidates.py and linear_gains.py say what is computed and why; here it is done column by column, which needs no more
 * prefixes than are looked at, and without a dozen small calls each. Sums differ from NumPy's in their last bits, so results name
 * which of the two ran.
 *
 * Knows no NumPy: buffers come in through the buffer protocol. The GIL is kept: a call takes microseconds. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_following.h"
#include "_walk.h"

/* ---- Prefixes --------------------------------------------------------------------------------------------------------------- */

struct candidates {
    int features, columns;
    double *gram, *gradient; /* what the model leaves of the former, columns x columns */
    double *lengths;         /* of the columns, or NULL where all have length 1 */
    int64_t *offsets;        /* features + 1 */
    int64_t *kept;           /* features that are left, by position */
    char *added;             /* features: which are in the model */
};

struct rule {
    double threshold, enough;
    double ridge, tolerance; /* the latter: share of a column's squared length that is as good as nothing */
    int skip_weak;
};

static double score(const struct candidates *x, int64_t feature)
{
    double sum = 0.0;
    for (int64_t column = x->offsets[feature]; column < x->offsets[feature + 1]; column++)
        sum += x->gradient[column] * x->gradient[column];
    return sum;
}

/* Lists the features whose score reaches the threshold, that are not in the model, and that `added` additions do not block.
 * Returns how many. */
static int alive(const struct candidates *x, const struct rule *by, const int64_t *blocked, int64_t added)
{
    int count = 0;
    const int single = x->columns == x->features;
    for (int feature = 0; feature < x->features; feature++) { /* without a branch: half of them are out, in no order */
        const double sum = single ? x->gradient[feature] * x->gradient[feature] : score(x, feature);
        x->kept[count] = feature;
        count += (sum >= by->threshold) & !x->added[feature] & (!blocked || blocked[feature] > added);
    }
    return count;
}

/* Takes the directions out of the Gram matrix. */
WIDE static void explain(int n, double *restrict gram, const double *restrict directions, int count)
{
    for (int row = 0; row < n; row++) {
        double *restrict out = gram + (size_t)row * (size_t)n;
        for (int i = 0; i < count; i++) {
            const double *direction = directions + (size_t)i * (size_t)n, along = direction[row];
            for (int j = 0; j < n; j++)
                out[j] -= direction[j] * along;
        }
    }
}

/* Keeps the columns `columns` (ascending, `count` of them) of a matrix of `rows` rows of `width`, in place. */
static void narrow(double *matrix, size_t rows, size_t width, const int *columns, size_t count)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t j = 0; j < count; j++) /* never ahead of what is still to be read */
            matrix[row * count + j] = matrix[row * width + (size_t)columns[j]];
}

/* Goes on with the first `count` features of x->kept; `columns` has room for x->columns entries. */
static void keep(struct candidates *x, int count, double *directions, int directions_count, int *columns)
{
    int left = 0;
    const size_t before = (size_t)x->columns;
    for (int place = 0; place < count; place++) {
        const int64_t first = x->offsets[x->kept[place]], last = x->offsets[x->kept[place] + 1];
        x->offsets[place] = left; /* entries up to kept[place] >= place have been read */
        for (int64_t column = first; column < last; column++)
            columns[left++] = (int)column;
    }
    x->offsets[count] = left;
    memset(x->added, 0, (size_t)count);
    narrow(x->gradient, 1, before, columns, (size_t)left);
    if (x->lengths)
        narrow(x->lengths, 1, before, columns, (size_t)left);
    for (int row = 0; row < left; row++) /* rows first: each moves to the front, or stays */
        memmove(x->gram + (size_t)row * before, x->gram + (size_t)columns[row] * before, before * sizeof(double));
    narrow(x->gram, (size_t)left, before, columns, (size_t)left);
    narrow(directions, (size_t)directions_count, before, columns, (size_t)left);
    x->features = count;
    x->columns = left;
}

/* Adds a feature; *found directions become more, and *gain what the model gained. */
static void add(struct candidates *x, const struct rule *by, int64_t feature, double *directions, int *found, double *gain)
{
    for (int64_t column = x->offsets[feature]; column < x->offsets[feature + 1]; column++) {
        double *direction = directions + (size_t)*found * (size_t)x->columns;
        remainder_of(x->columns, x->gram + (size_t)column * (size_t)x->columns, directions, *found, (int)column, direction);
        const double pivot = direction[column] + by->ridge;
        const double length = x->lengths ? x->lengths[column] : 1.0;
        if (!(pivot > by->tolerance * length * length))
            continue; /* dependent: it moves nothing */
        const double root = sqrt(pivot), move = x->gradient[column] / root;
        move_along(x->columns, direction, root, move, x->gradient);
        *gain += move * move;
        ++*found;
    }
    x->added[feature] = 1;
}

/* Adds the candidates at `positions` one after the other. Returns how many were added; *left is how many candidates remain once
 * fewer than enough do, and -1 where that did not happen; *gain is what the model gained. */
static int advance_prefixes(struct candidates *x, const struct rule *by, const int64_t *positions, int count,
                            const int64_t *blocked, double *directions, int *columns, int *left, double *gain)
{
    int added = 0, found = 0;
    *left = -1;
    *gain = 0.0;
    while (added < count) {
        if (by->skip_weak && added && score(x, positions[added]) < by->threshold)
            break;
        add(x, by, positions[added++], directions, &found, gain);
        const int still = alive(x, by, blocked, added);
        if (still < by->enough) {
            *left = still;
            keep(x, still, directions, found, columns);
            break;
        }
    }
    explain(x->columns, x->gram, directions, found);
    return added;
}

/* Goes through all inner iterations: each adds candidates in the order of its draw. */
static void walk_prefixes(struct candidates *x, const struct rule *by, struct walk *w, double *directions, int *columns, double *gain)
{
    w->total = w->iterations = 0;
    *gain = 0.0;
    while (x->features && w->total < w->room) {
        const int size = x->features, before = w->total;
        int still = size, found = 0;
        draw(w, size);
        while (!(still < w->share * size)) { /* at the latest when all are in the model, or no more fit */
            add(x, by, next_drawn(w, x->added, size), directions, &found, gain);
            still = w->total < w->room ? alive(x, by, NULL, 0) : 0;
        }
        end_iteration(w, size, before, x->kept, still);
        keep(x, still, directions, found, columns);
        explain(x->columns, x->gram, directions, found);
    }
}

/* ---- Python ----------------------------------------------------------------------------------------------------------------- */

static Py_ssize_t doubles(const Py_buffer *buffer)
{
    return buffer->len / (Py_ssize_t)sizeof(double);
}

static Py_ssize_t integers(const Py_buffer *buffer)
{
    return buffer->len / (Py_ssize_t)sizeof(int64_t);
}

/* Whether the columns of every feature, and all positions, lie within. */
static int consistent(const struct candidates *x, const int64_t *positions, int count)
{
    if (x->offsets[0] != 0 || x->offsets[x->features] != x->columns)
        return 0;
    for (int feature = 0; feature < x->features; feature++)
        if (x->offsets[feature] > x->offsets[feature + 1])
            return 0;
    for (int place = 0; place < count; place++)
        if (positions[place] < 0 || positions[place] >= x->features)
            return 0;
    return 1;
}

static PyObject *advance(PyObject *module, PyObject *arguments)
{
    struct candidates x;
    struct rule by;
    Py_buffer gram, gradient, lengths, offsets, in_model, positions, blocked, kept;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*w*z*w*w*y*z*w*(dddd)p", &gram, &gradient, &lengths, &offsets, &in_model, &positions, &blocked,
                          &kept, &by.threshold, &by.enough, &by.ridge, &by.tolerance, &by.skip_weak))
        return NULL;
    const Py_ssize_t features = in_model.len, columns = doubles(&gradient), count = integers(&positions);
    x.gram = gram.buf, x.gradient = gradient.buf, x.lengths = lengths.buf, x.offsets = offsets.buf, x.kept = kept.buf;
    x.added = in_model.buf;
    if (columns < INT_MAX && features < INT_MAX && count < INT_MAX && integers(&kept) == features &&
        integers(&offsets) == features + 1 && doubles(&gram) == columns * columns &&
        (!lengths.buf || doubles(&lengths) == columns) && (!blocked.buf || integers(&blocked) == features) &&
        (x.features = (int)features, x.columns = (int)columns, consistent(&x, positions.buf, (int)count))) {
        Py_ssize_t most = 0; /* directions that these positions may have */
        for (Py_ssize_t place = 0; place < count; place++) {
            const int64_t feature = ((const int64_t *)positions.buf)[place];
            most += (Py_ssize_t)(x.offsets[feature + 1] - x.offsets[feature]);
        }
        double *directions = PyMem_Malloc((size_t)(most + 1) * (size_t)(columns + 1) * sizeof(double));
        int *room = PyMem_Malloc((size_t)(columns + 1) * sizeof(int));
        if (directions && room) {
            int left;
            double gain;
            const int added = advance_prefixes(&x, &by, positions.buf, (int)count, blocked.buf, directions, room, &left, &gain);
            result = Py_BuildValue("iiid", added, left, x.columns, gain);
        } else
            PyErr_NoMemory();
        PyMem_Free(directions);
        PyMem_Free(room);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c, c), (c,), (c,) and int64 of "
                                          "(f + 1,), bool of (f,), int64 of (b,) within f, (f,), (f,)");
    PyBuffer_Release(&gram);
    PyBuffer_Release(&gradient);
    if (lengths.buf)
        PyBuffer_Release(&lengths);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&in_model);
    PyBuffer_Release(&positions);
    if (blocked.buf)
        PyBuffer_Release(&blocked);
    PyBuffer_Release(&kept);
    return result;
}

PyDoc_STRVAR(advance_doc,
             "advance(gram, gradient, lengths, offsets, added, positions, blocked, kept, (threshold, enough, ridge, tolerance), "
             "skip_weak, /)\n--\n\n"
             "Add candidates until fewer than enough are left; return how many were added, features and columns left, and the gain.\n\n"
             "-1 features left: enough still are, and all stay. Otherwise kept lists those that do, and all arrays begin with what\n"
             "belongs to them.");

static PyObject *walk(PyObject *module, PyObject *arguments)
{
    struct candidates x;
    struct rule by = {0};
    struct walk w;
    Py_buffer gram, gradient, lengths, offsets, in_model, names, origin, drawn, sizes, additions;
    unsigned long long seed, outer, inner; /* modulo 2^64 */
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*w*z*w*w*y*w*w*w*w*(KKK)(dddd)", &gram, &gradient, &lengths, &offsets, &in_model, &names,
                          &origin, &drawn, &sizes, &additions, &seed, &outer, &inner, &by.threshold, &w.share, &by.ridge,
                          &by.tolerance))
        return NULL;
    const Py_ssize_t features = in_model.len, columns = doubles(&gradient), room = integers(&drawn);
    x.gram = gram.buf, x.gradient = gradient.buf, x.lengths = lengths.buf, x.offsets = offsets.buf, x.added = in_model.buf;
    w.features = names.buf, w.origin = origin.buf, w.added = drawn.buf, w.sizes = sizes.buf, w.lengths = additions.buf;
    w.name = mixed(mixed(0, seed), outer), w.inner = (int64_t)inner, w.room = (int)room;
    int fits = columns < INT_MAX && features < INT_MAX && room < INT_MAX && integers(&offsets) == features + 1 &&
               doubles(&gram) == columns * columns && (!lengths.buf || doubles(&lengths) == columns) &&
               integers(&names) == features && integers(&origin) == features && integers(&sizes) == room &&
               integers(&additions) == room && w.share > 0.0 &&
               (x.features = (int)features, x.columns = (int)columns, consistent(&x, NULL, 0));
    for (Py_ssize_t i = 0; fits && i < features; i++)
        fits = w.origin[i] == i && !x.added[i];
    if (fits) {
        double gain, *directions = PyMem_Malloc((size_t)(columns + 1) * (size_t)(columns + 1) * sizeof(double));
        int *space = PyMem_Malloc((size_t)(columns + 1) * sizeof(int));
        w.keys = PyMem_Malloc((size_t)(features + 1) * sizeof *w.keys);
        x.kept = PyMem_Malloc((size_t)(features + 1) * sizeof *x.kept);
        if (directions && space && w.keys && x.kept) {
            walk_prefixes(&x, &by, &w, directions, space, &gain);
            result = Py_BuildValue("iiidi", w.total, x.features, x.columns, gain, w.iterations);
        } else
            PyErr_NoMemory();
        PyMem_Free(directions);
        PyMem_Free(space);
        PyMem_Free(w.keys);
        PyMem_Free(x.kept);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c, c), (c,), (c,) and int64 of "
                                          "(f + 1,), bool of (f,), none of it true, int64 of (f,), 0 to f - 1, and (b,) three times");
    PyBuffer_Release(&gram);
    PyBuffer_Release(&gradient);
    if (lengths.buf)
        PyBuffer_Release(&lengths);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&in_model);
    PyBuffer_Release(&names);
    PyBuffer_Release(&origin);
    PyBuffer_Release(&drawn);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&additions);
    return result;
}

PyDoc_STRVAR(walk_doc,
             "walk(gram, gradient, lengths, offsets, added, features, origin, drawn, sizes, additions, (seed, outer, inner), "
             "(threshold, share, ridge, tolerance), /)\n--\n\n"
             "Go through inner iterations until no candidate is left; return how many were added, features and columns left, the gain, "
             "and how many iterations there were.\n\n"
             "Each adds candidates in the order of its draw until fewer than this share of them are left. Nothing fits when as many were\n"
             "added as drawn has room for. It gets them, by position; origin the positions of those left; sizes and additions how many\n"
             "candidates, and additions, each iteration had. All other arrays begin with what belongs to those left.");

static PyObject *best(PyObject *module, PyObject *arguments)
{
    Py_buffer gradient, pivot, smallest, open, gains;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*", &gradient, &pivot, &smallest, &open, &gains))
        return NULL;
    const Py_ssize_t n = doubles(&gradient);
    if (n < INT_MAX && pivot.len == gradient.len && smallest.len == gradient.len && gains.len == gradient.len && open.len == n) {
        const double *found = gains.buf;
        const int place = best_of((int)n, gradient.buf, pivot.buf, smallest.buf, open.buf, gains.buf);
        result = Py_BuildValue("id", place, place < 0 ? -1.0 : found[place]);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c,) three times, bool of (c,) and "
                                          "float64 of (c,)");
    PyBuffer_Release(&gradient);
    PyBuffer_Release(&pivot);
    PyBuffer_Release(&smallest);
    PyBuffer_Release(&open);
    PyBuffer_Release(&gains);
    return result;
}

PyDoc_STRVAR(best_doc, "best(gradient, pivot, smallest, open, gains, /)\n--\n\n"
                       "Fill gains with g^2 / d; return the first open column with the largest, and it; -1 when none is open.");

static PyObject *follow(PyObject *module, PyObject *arguments)
{
    Py_buffer gram, directions, gradient, pivot;
    Py_ssize_t size, column;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*w*nnw*w*", &gram, &directions, &size, &column, &gradient, &pivot))
        return NULL;
    const Py_ssize_t n = doubles(&gradient);
    if (n < INT_MAX && gram.len == gradient.len && pivot.len == gradient.len && column >= 0 && column < n && size >= 0 &&
        size < INT_MAX && doubles(&directions) >= (size + 1) * n) {
        result = PyFloat_FromDouble(
            follow_column((int)n, gram.buf, directions.buf, (int)size, (int)column, gradient.buf, pivot.buf));
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c,), (d, c), (c,), (c,), size below "
                                          "d and column below c");
    PyBuffer_Release(&gram);
    PyBuffer_Release(&directions);
    PyBuffer_Release(&gradient);
    PyBuffer_Release(&pivot);
    return result;
}

PyDoc_STRVAR(follow_doc, "follow(gram, directions, size, column, gradient, pivot, /)\n--\n\n"
                         "Have gradient and pivot follow a column, whose Gram column is given; fill its direction; return its move.");

static PyObject *grow(PyObject *module, PyObject *arguments)
{
    Py_buffer gram, directions, gradient, pivot, smallest, open, gains, places, found;
    Py_ssize_t size;
    double least;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*w*nw*w*y*w*w*w*w*d", &gram, &directions, &size, &gradient, &pivot, &smallest, &open, &gains,
                          &places, &found, &least))
        return NULL;
    const Py_ssize_t n = doubles(&gradient), count = integers(&places);
    if (n < INT_MAX && doubles(&gram) == n * n && pivot.len == gradient.len && smallest.len == gradient.len &&
        gains.len == gradient.len && open.len == n && doubles(&found) == count && size >= 0 && size + count < INT_MAX &&
        doubles(&directions) >= (size + count) * n) {
        struct following f = {(int)n, gram.buf, directions.buf, (int)size, gradient.buf, pivot.buf, smallest.buf, open.buf, gains.buf};
        const int taken = take_best(&f, (int)count, least, places.buf, found.buf);
        result = Py_BuildValue("in", taken, f.size - size);
    } else
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit each other: expected float64 of (c, c), (d, c), (c,) three times, bool "
                                          "of (c,), float64 of (c,), int64 of (b,) and float64 of (b,), size and b at most d together");
    PyBuffer_Release(&gram);
    PyBuffer_Release(&directions);
    PyBuffer_Release(&gradient);
    PyBuffer_Release(&pivot);
    PyBuffer_Release(&smallest);
    PyBuffer_Release(&open);
    PyBuffer_Release(&gains);
    PyBuffer_Release(&places);
    PyBuffer_Release(&found);
    return result;
}

PyDoc_STRVAR(grow_doc, "grow(gram, directions, size, gradient, pivot, smallest, open, gains, places, found, least, /)\n--\n\n"
                       "Take the best open column, and have all follow it, as often as places has room, or until least is all that is "
                       "gained.\n\nReturn how many were taken, and how many directions there are more.");

static PyMethodDef METHODS[] = {
    {"grow", grow, METH_VARARGS, grow_doc},
    {"advance", advance, METH_VARARGS, advance_doc},
    {"walk", walk, METH_VARARGS, walk_doc},
    {"best", best, METH_VARARGS, best_doc},
    {"follow", follow, METH_VARARGS, follow_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.objectives._gram",
    .m_doc = "Prefixes and greedy steps over a Gram matrix.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__gram(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
