/* Shared by the C code of the objectives: columns, GLM fits, and the interface of the inner iterations of
 * Algorithm 1. The Python modules in fastomp_nvm/objectives are the reference for every computation. */

#ifndef FASTOMP_OBJECTIVES_H
#define FASTOMP_OBJECTIVES_H

#include "native.h"

#include <stddef.h>

/* Compiles a loop twice, with and without AVX2, and chooses at load time. Elementwise results have the same bits in both, as long as
 * nothing is fused: build with -ffp-contract=off. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

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

/* Fills out (n) with a standardised column; in float32, each observation times its factor. */
void standardised(const struct columns *x, int64_t position, double *out);
void standardised_times(const struct columns *x, int64_t position, const double *factors, float *out);

double sum_of(int n, const double *vector);

/* ---- GLM fits (newton.c) ---------------------------------------------------------------------------------------------------- */

struct family {
    const char *name;
    void (*moments)(int n, const double *restrict eta, double *restrict mean, double *restrict variance);
    void (*partition)(int n, const double *restrict eta, double *restrict out); /* b with b' = mean */
};

struct settings {
    double ridge, tolerance, slow, small, overshot; /* as in newton.py */
    int max_steps, free;                            /* the latter: columns without penalty, which come first: the intercept's first */
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
 * With columns without penalty, hence an intercept, the residual sums to zero. Returns a status code. */
int climb(const struct problem *p, const double *known, int size, int settled);

/* Penalised log-likelihood, up to a constant of the data, at the predictor `eta` and the coefficients beta + length * step. `room` has
 * n entries. */
double likelihood_at(const struct problem *p, const double *eta, double length, double *room);

/* ---- Gains over a Gram matrix (gram.c) -------------------------------------------------------------------------------------- */

/* Fills gains g^2 / d, or g^2 where pivots are NULL; returns the first open column with the largest, -1 where none is open. */
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

#endif
