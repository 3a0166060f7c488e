/* Linear models over a Gram matrix: candidates of Algorithm 1, and gains for the greedy behind the polish.
 *
 * linear_candidates.py and linear_gains.py are the reference; here columns are added one by one. Sums differ from NumPy's in their last
 * bits, so results name the implementation that ran. The GIL is kept: a call takes microseconds. */

#include "objectives.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- Following a column ----------------------------------------------------------------------------------------------------- */

/* What `directions` leave of a Gram column: out = column - sum over i of directions[i] * directions[i][at], each of length n. */
WIDE static void remainder_of(int n, const double *restrict column, const double *restrict directions, int count, int at,
                              double *restrict out)
{
    memcpy(out, column, (size_t)n * sizeof(double));
    int i = 0;
    for (; i + 4 <= count; i += 4) { /* four at a time: `out` is read and written a quarter as often */
        const double *a = directions + (size_t)i * (size_t)n, *b = a + n, *c = b + n, *d = c + n;
        const double along_a = a[at], along_b = b[at], along_c = c[at], along_d = d[at];
        for (int j = 0; j < n; j++)
            out[j] = (((out[j] - a[j] * along_a) - b[j] * along_b) - c[j] * along_c) - d[j] * along_d;
    }
    for (; i < count; i++) {
        const double *a = directions + (size_t)i * (size_t)n, along = a[at];
        for (int j = 0; j < n; j++)
            out[j] -= a[j] * along;
    }
}

/* Scales a remainder to a direction and moves the gradient along it. */
WIDE static void move_along(int n, double *restrict direction, double root, double move, double *restrict gradient)
{
    for (int j = 0; j < n; j++) {
        direction[j] /= root;
        gradient[j] -= direction[j] * move;
    }
}

WIDE static void lower_pivots(int n, const double *restrict direction, double *restrict pivot)
{
    for (int j = 0; j < n; j++)
        pivot[j] -= direction[j] * direction[j];
}

double follow_column(int n, const double *gram, double *directions, int size, int column, double *gradient, double *pivots)
{
    double *direction = directions + (size_t)size * (size_t)n;
    const double root = sqrt(pivots[column]), move = gradient[column] / root;
    remainder_of(n, gram, directions, size, column, direction);
    direction[column] = pivots[column]; /* the tracked value rather than the recomputed one */
    move_along(n, direction, root, move, gradient);
    lower_pivots(n, direction, pivots);
    return move;
}

/* Separate from the comparison, so that the divisions become vector code; dependent columns gain nothing. */
WIDE static void gains_of(int n, const double *restrict gradient, const double *restrict pivot, const double *restrict smallest,
                          double *restrict out)
{
    for (int j = 0; j < n; j++) {
        const double gain = gradient[j] * gradient[j] / pivot[j];
        out[j] = pivot[j] > smallest[j] ? gain : 0.0;
    }
}

WIDE static void scores_of(int n, const double *restrict gradient, double *restrict out)
{
    for (int j = 0; j < n; j++)
        out[j] = gradient[j] * gradient[j];
}

int best_of(int n, const double *gradient, const double *pivots, const double *smallest, const char *open, double *gains)
{
    int place = -1;
    if (pivots)
        gains_of(n, gradient, pivots, smallest, gains);
    else
        scores_of(n, gradient, gains);
    for (int j = 0; j < n; j++)
        if (open[j] && (place < 0 || gains[j] > gains[place])) /* the first among equals */
            place = j;
    return place;
}

/* ---- Candidates ------------------------------------------------------------------------------------------------------------- */

struct gram {
    struct candidates base;
    int columns;
    double *gram, *gradient; /* columns x columns, after projecting out the model; columns */
    double *lengths;         /* of the columns; NULL where all have length 1 */
    int64_t *offsets;        /* of the features' columns, count + 1 */
    double ridge, tolerance; /* the latter: share of a column's squared length that counts as dependent */
    double *directions;      /* coordinates of the columns along each addition of this iteration */
    int size;                /* directions in this iteration */
    int *left;               /* work space: columns left */
    double gain;             /* increase of f by all additions */
};

static void score(struct candidates *base)
{
    struct gram *x = (struct gram *)base;
    for (int feature = 0; feature < base->count; feature++) {
        double sum = 0.0;
        for (int64_t column = x->offsets[feature]; column < x->offsets[feature + 1]; column++)
            sum += x->gradient[column] * x->gradient[column];
        base->scores[feature] = sum;
    }
}

static int add(struct candidates *base, int64_t feature)
{
    struct gram *x = (struct gram *)base;
    for (int64_t column = x->offsets[feature]; column < x->offsets[feature + 1]; column++) {
        double *direction = x->directions + (size_t)x->size * (size_t)x->columns;
        remainder_of(x->columns, x->gram + (size_t)column * (size_t)x->columns, x->directions, x->size, (int)column, direction);
        const double pivot = direction[column] + x->ridge;
        const double length = x->lengths ? x->lengths[column] : 1.0;
        if (!(pivot > x->tolerance * length * length))
            continue; /* dependent: it changes nothing */
        const double root = sqrt(pivot), move = x->gradient[column] / root;
        move_along(x->columns, direction, root, move, x->gradient);
        x->gain += move * move;
        x->size++;
    }
    return 0;
}

/* Keeps the columns `left` (ascending, `count` of them) of a matrix of `rows` rows of `width`, in place. */
static void narrow(double *matrix, size_t rows, size_t width, const int *left, size_t count)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t j = 0; j < count; j++) /* every entry is read before it is overwritten */
            matrix[row * count + j] = matrix[row * width + (size_t)left[j]];
}

/* Projects the directions out of the Gram matrix. */
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

static void finish(struct candidates *base, const int64_t *kept, int left)
{
    struct gram *x = (struct gram *)base;
    if (left >= 0) {
        const size_t before = (size_t)x->columns;
        int count = 0;
        for (int place = 0; place < left; place++) {
            const int64_t first = x->offsets[kept[place]], last = x->offsets[kept[place] + 1];
            x->offsets[place] = count; /* entries up to kept[place] >= place have been read */
            for (int64_t column = first; column < last; column++)
                x->left[count++] = (int)column;
        }
        x->offsets[left] = count;
        memset(base->in_model, 0, (size_t)left);
        narrow(x->gradient, 1, before, x->left, (size_t)count);
        if (x->lengths)
            narrow(x->lengths, 1, before, x->left, (size_t)count);
        for (int row = 0; row < count; row++) /* rows first: each moves to the front, or stays */
            memmove(x->gram + (size_t)row * before, x->gram + (size_t)x->left[row] * before, before * sizeof(double));
        narrow(x->gram, (size_t)count, before, x->left, (size_t)count);
        narrow(x->directions, (size_t)x->size, before, x->left, (size_t)count);
        x->columns = count;
    }
    explain(x->columns, x->gram, x->directions, x->size);
    x->size = 0;
}

/* Runs inner iterations over a Gram matrix; returns the additions, the candidates left, the iterations that found j*, the columns left,
 * and the increase of f. All arrays are overwritten and begin with the entries of the candidates left. */
PyObject *gram_rounds(struct arguments *a, PyObject *given)
{
    struct gram x = {.base = {.add = add, .score = score, .finish = finish}};
    struct rounds r;
    PyObject *gram, *gradient, *lengths, *offsets, *in_model, *rounds;
    if (!PyArg_ParseTuple(given, "OOOOOddO", &gram, &gradient, &lengths, &offsets, &in_model, &x.ridge, &x.tolerance, &rounds))
        return NULL;
    const int count = x.base.count = length_of(a, in_model), columns = x.columns = length_of(a, gradient);
    x.base.in_model = BOOLS(a, in_model, count, WRITE);
    x.gram = DOUBLES(a, gram, (Py_ssize_t)columns * columns, WRITE);
    x.gradient = DOUBLES(a, gradient, columns, WRITE);
    x.lengths = lengths == Py_None ? NULL : DOUBLES(a, lengths, columns, WRITE);
    x.offsets = WORDS(a, offsets, count + 1, WRITE);
    open_rounds(a, rounds, &x.base, &r);
    int64_t widest = 0;
    require(a, !a->failed && x.offsets[0] == 0 && x.offsets[count] == columns, "offsets do not end with the columns");
    for (int i = 0; !a->failed && i < count; i++) {
        require(a, x.offsets[i] <= x.offsets[i + 1], "offsets descend");
        if (!a->failed && x.offsets[i + 1] - x.offsets[i] > widest) /* both lie between 0 and columns */
            widest = x.offsets[i + 1] - x.offsets[i];
    }
    /* Every candidate is drawn once; one that is given again may have a further direction where there is a ridge. */
    const size_t most = a->failed ? 0 : r.given ? (size_t)(r.room * widest) : (size_t)columns;
    x.base.scores = space(a, (size_t)count, sizeof(double));
    x.left = space(a, (size_t)columns, sizeof(int));
    x.directions = space(a, (most + 1) * (size_t)columns, sizeof(double));
    if (a->failed)
        return NULL;
    run_rounds(&x.base, &r);
    return Py_BuildValue("iiiid", r.total, x.base.count, r.iterations, x.columns, x.gain);
}

/* ---- Gains ------------------------------------------------------------------------------------------------------------------ */

/* Returns the first open column with the largest gain g^2 / d, and its gain; -1 and -1.0 when none is open. */
PyObject *best(struct arguments *a, PyObject *given)
{
    PyObject *gradient, *pivot, *smallest, *open;
    if (!PyArg_ParseTuple(given, "OOOO", &gradient, &pivot, &smallest, &open))
        return NULL;
    const int n = length_of(a, gradient);
    const double *g = DOUBLES(a, gradient, n, READ), *d = DOUBLES(a, pivot, n, READ), *least = DOUBLES(a, smallest, n, READ);
    const char *may = BOOLS(a, open, n, READ);
    double *gains = space(a, (size_t)n, sizeof(double));
    const int place = a->failed ? -1 : best_of(n, g, d, least, may, gains);
    return a->failed ? NULL : Py_BuildValue("id", place, place < 0 ? -1.0 : gains[place]);
}

/* Updates gradient and pivot for an added column, whose Gram column is given; fills directions[size]; returns the response's coordinate
 * along it. */
PyObject *follow(struct arguments *a, PyObject *given)
{
    PyObject *gram, *directions, *gradient, *pivot;
    int size, column;
    if (!PyArg_ParseTuple(given, "OOiiOO", &gram, &directions, &size, &column, &gradient, &pivot))
        return NULL;
    const int n = length_of(a, gradient), rows = length_of(a, directions);
    const double *products = DOUBLES(a, gram, n, READ);
    double *l = DOUBLES(a, directions, (Py_ssize_t)rows * n, WRITE), *g = DOUBLES(a, gradient, n, WRITE);
    double *d = DOUBLES(a, pivot, n, WRITE);
    require(a, size >= 0 && size < rows && column >= 0 && column < n, "size or column is out of range");
    return a->failed ? NULL : PyFloat_FromDouble(follow_column(n, products, l, size, column, g, d));
}

/* Adds the best open column up to `count` times, while it gains more than `least` and its Gram column is row at[column] >= 0 of `gram`;
 * returns the columns with their gains, the directions in use, and `value` with the gains added. `pursuit`: scores decide, not gains. */
PyObject *grow(struct arguments *a, PyObject *given)
{
    PyObject *gram, *at, *directions, *gradient, *pivot, *smallest, *open;
    int size, count, pursuit;
    double value, least;
    if (!PyArg_ParseTuple(given, "OOOiOOOOdidp", &gram, &at, &directions, &size, &gradient, &pivot, &smallest, &open, &value, &count,
                          &least, &pursuit))
        return NULL;
    const int n = length_of(a, gradient), rows = length_of(a, directions), known = length_of(a, gram);
    const double *products = DOUBLES(a, gram, (Py_ssize_t)known * n, READ), *dependent = DOUBLES(a, smallest, n, READ);
    const int64_t *row = WORDS(a, at, n, READ);
    double *l = DOUBLES(a, directions, (Py_ssize_t)rows * n, WRITE), *g = DOUBLES(a, gradient, n, WRITE);
    double *d = DOUBLES(a, pivot, n, WRITE), *gains = space(a, (size_t)n, sizeof(double));
    char *may = BOOLS(a, open, n, WRITE);
    require(a, size >= 0 && count >= 0 && size <= rows - count, "directions has no room for count more");
    for (int j = 0; !a->failed && j < n; j++)
        require(a, row[j] < known, "a row of gram is out of range");
    PyObject *taken = a->failed ? NULL : PyList_New(0);
    while (taken != NULL && count-- > 0) {
        const int place = best_of(n, g, pursuit ? NULL : d, dependent, may, gains);
        if (place < 0 || gains[place] <= least || row[place] < 0)
            break;
        PyObject *addition = Py_BuildValue("id", place, gains[place]);
        if (addition == NULL || PyList_Append(taken, addition) < 0)
            Py_CLEAR(taken);
        Py_XDECREF(addition);
        if (d[place] > dependent[place]) {
            const double move = follow_column(n, products + (size_t)row[place] * (size_t)n, l, size++, place, g, d);
            value += move * move;
        }
        may[place] = 0;
    }
    return taken == NULL ? NULL : Py_BuildValue("Nid", taken, size, value);
}
