/* Shared by the C code of the objectives: arguments from Python, columns, GLM fits, and the interface of the inner iterations of
 * Algorithm 1. The Python modules in fastomp_nvm/objectives are the reference for every computation. */

#ifndef FASTOMP_OBJECTIVES_H
#define FASTOMP_OBJECTIVES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

/* Compiles a loop twice, with and without AVX2, and chooses at load time. Elementwise results have the same bits in both, as long as
 * nothing is fused: build with -ffp-contract=off. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* ---- Arguments (arguments.c) ------------------------------------------------------------------------------------------------ */

/* Buffers and work space of one call; `release` gives all of them back. */
struct arguments {
    Py_buffer views[24];
    void *blocks[8];
    int n_views, n_blocks;
    int failed; /* an exception is set; every later `array` and `space` returns NULL */
};

enum { READ = 0, WRITE = PyBUF_WRITABLE };

/* Returns the data of a C-contiguous array of `count` entries of `size` bytes each, or NULL with `failed` set. */
void *array(struct arguments *a, PyObject *given, const char *name, Py_ssize_t count, size_t size, int access);
#define DOUBLES(A, GIVEN, COUNT, ACCESS) ((double *)array(A, GIVEN, #GIVEN, COUNT, sizeof(double), ACCESS))
#define WORDS(A, GIVEN, COUNT, ACCESS) ((int64_t *)array(A, GIVEN, #GIVEN, COUNT, sizeof(int64_t), ACCESS))
#define BOOLS(A, GIVEN, COUNT, ACCESS) ((char *)array(A, GIVEN, #GIVEN, COUNT, 1, ACCESS))

/* Returns the length of the first dimension, below INT_MAX; 0 with `failed` set where there is none. */
int length_of(struct arguments *a, PyObject *given);

/* Returns uninitialised memory for `count` entries of `size` bytes, or NULL with `failed` set. */
void *space(struct arguments *a, size_t count, size_t size);

/* Sets ValueError unless `fits`. */
void require(struct arguments *a, int fits, const char *what);

void release(struct arguments *a);

/* ---- Columns (columns.c) ---------------------------------------------------------------------------------------------------- */

/* Rows of a raw matrix, by number, with their standardisation. */
struct columns {
    const char *rows;
    ptrdiff_t stride;
    char kind; /* 'f' or 'd' */
    int count, n;
    int64_t *places;
    double *mean, *scale;
    char *wide;    /* float32 rows to multiply in float64: their mean is so large that digits cancel */
    float *single; /* n: work space for a vector in float32; NULL for float64 rows */
};

/* Fills x from a `ColumnArrays` of compiled.py. */
void open_columns(struct arguments *a, PyObject *given, struct columns *x);

/* out[i * step] = the i-th standardised column times a vector. */
void products(const struct columns *x, const double *vector, double *out, int step);

/* Fills out (n), float64 ('d') or float32 ('f'), with a standardised column, times factors[j] unless `factors` is NULL. */
void standardised(const struct columns *x, int64_t position, const double *factors, char kind, void *out);

double sum_of(int n, const double *vector);

/* ---- GLM fits (newton.c) ---------------------------------------------------------------------------------------------------- */

struct family;

struct settings {
    double ridge, tolerance, slow, small, overshot; /* as in newton.py */
    int max_steps, intercept;                       /* the latter 1 where the first column is the intercept's, else 0 */
};

struct problem {
    const struct family *family;
    struct settings with;
    int d, n;
    double *design;                   /* n x d, column by column */
    const double *response, *weights; /* n each */
    double *beta, *eta;               /* the start, then the maximum */
    double *residual, *factor;        /* at the maximum; the factor d x d, upper triangle */
    double *mean, *variance;          /* n each: at eta */
    double *move, *scale;             /* n each */
    double *gradient, *step;          /* d each */
    double *last, *fall;              /* d each: the last step, and the decrease of the gradient along it */
    double *scaled;                   /* BLOCK x d */
};

/* Status codes of a fit: no reusable factor, factor available, curvature not positive definite. */
enum { NO_FACTOR = 0, FACTORED = 1, NOT_DEFINITE = -1 };

/* Fills p from a `FitArrays` of compiled.py, which has room for d coefficients, and allocates its work space. */
void open_fit(struct arguments *a, PyObject *given, struct problem *p);

/* Returns the family of this name, or NULL with `failed` set. */
const struct family *family_named(struct arguments *a, const char *name);

/* Moves beta and eta to the maximum, starting with the factor `known` of the first `size` columns, or NULL. The first `settled`
 * coefficients are fitted to the tolerance, the others zero, and moments and residual are those at eta; -1: nothing of this holds.
 * With an intercept the residual sums to zero. Returns a status code. */
int climb(const struct problem *p, const double *known, int size, int settled);

/* Fills mean and variance (n) at eta. */
void moments_at(const struct family *family, int n, const double *eta, double *mean, double *variance);

/* Penalised log-likelihood, up to a constant of the data. `room` has n entries. */
double penalised_likelihood(const struct problem *p, double *room);

/* ---- Gains over a Gram matrix (gram.c) -------------------------------------------------------------------------------------- */

/* Fills gains g^2 / d; returns the first open column with the largest, -1 where none is open. */
int best_of(int n, const double *gradient, const double *pivots, const double *smallest, const char *open, double *gains);

/* Updates gradient and pivots for a column that is added, whose Gram column is given; fills direction number `size`; returns the
 * response's coordinate along it. */
double follow_column(int n, const double *gram, double *directions, int size, int column, double *gradient, double *pivots);

/* ---- Inner iterations of Algorithm 1 (rounds.c) ----------------------------------------------------------------------------- */

/* X: what the loop needs of an objective. */
struct candidates {
    int count;                 /* |X| */
    char *in_model;            /* count */
    double *scores;            /* count: at the model */
    double spent;              /* multiplications so far */
    /* Adds a candidate to the model. Returns 0, or -1 where the model cannot be fitted. */
    int (*add)(struct candidates *x, int64_t position);
    /* Fills scores. */
    void (*score)(struct candidates *x);
    /* Ends an iteration: only the first `left` positions of `kept`, ascending, stay; all do where left is -1. */
    void (*finish)(struct candidates *x, const int64_t *kept, int left);
};

struct rounds {
    const int64_t *given;       /* the sequence, by position; NULL: every iteration draws its own */
    const int64_t *blocked;     /* per candidate, additions after which it cannot extend the set; NULL: none is blocked */
    const int64_t *features;    /* of the candidates at the start: the last word of their keys */
    uint64_t name, inner;       /* words of the draw: seed and outer iteration mixed; the first inner iteration */
    double threshold, share;    /* t; 1 - epsilon */
    double effort;              /* multiplications after which no further iteration begins */
    int room;                   /* length of `given`; without it, additions after which the set is full */
    int skip_weak;              /* stop before a member, not the first, whose score is below the threshold */
    uint64_t *keys;             /* work space, one entry per candidate, as in kept */
    int64_t *kept;
    int64_t *origin;            /* result: positions, at the start, of the candidates left */
    int64_t *added;             /* result: additions, by position at the start */
    int64_t *sizes;             /* result: pairs of |X| and additions of each iteration that found j* */
    int total, iterations;      /* result: additions; iterations that found j* */
};

/* Fills r from a `Rounds` of compiled.py. */
void open_rounds(struct arguments *a, PyObject *given, const struct candidates *x, struct rounds *r);

/* Returns 0, or -1 where `add` failed. */
int run_rounds(struct candidates *x, struct rounds *r);

/* ---- BLAS and LAPACK (blas.c): SciPy's ------------------------------------------------------------------------------------- */

/* Finds the routines; called once when the module loads. Returns 0, or -1 with ImportError set. */
int find_blas(void);

#ifndef BLAS
#define BLAS extern
#endif
BLAS void (*dgemv)(const char *, const int *, const int *, const double *, const double *, const int *, const double *, const int *,
                   const double *, double *, const int *);
BLAS void (*dsyrk)(const char *, const char *, const int *, const int *, const double *, const double *, const int *, const double *,
                   double *, const int *);
BLAS void (*ssyrk)(const char *, const char *, const int *, const int *, const float *, const float *, const int *, const float *,
                   float *, const int *);
BLAS void (*dtrsm)(const char *, const char *, const char *, const char *, const int *, const int *, const double *, const double *,
                   const int *, double *, const int *);
BLAS void (*dpotrf)(const char *, const int *, double *, const int *, int *);

/* ---- Method tables ---------------------------------------------------------------------------------------------------------- */

extern PyMethodDef glm_methods[], gram_methods[], greedy_methods[];

#endif
