/* The quadratic model of a likelihood at a fit, in C: what glm_gains.py says, without a dozen small calls. Knows no Python. */

#include "_quadratic.h"

#include <math.h>
#include <stddef.h>

void (*dtrsm)(const char *, const char *, const char *, const char *, const int *, const int *, const double *, const double *,
              const int *, double *, const int *);

/* The roots of weighted variances, in place. Returns the largest of these. */
WIDE static double roots_of(int n, const double *restrict weights, double *restrict variances)
{
    double most = 0.0;
    for (int i = 0; i < n; i++) {
        const double weighted = weights[i] * variances[i];
        most = weighted > most ? weighted : most;
        variances[i] = sqrt(weighted);
    }
    return most;
}

double take_roots(const struct family *family, int n, const double *eta, const double *weights, double *mean, double *roots)
{
    moments_of(family, n, eta, mean, roots);
    return roots_of(n, weights, roots);
}

WIDE static void scale_row(int n, const double *restrict row, const double *restrict roots, float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)(row[i] * roots[i]);
}

int curvature_left(const struct quadratic *q, float *gram)
{
    const float one = 1.0f, nothing = 0.0f;
    const double whole = 1.0, minus = -1.0;
    const int all = q->size + q->near;
    const size_t width = (size_t)all, size = (size_t)q->size, near = (size_t)q->near;
    int failed = 0; /* gram: its upper triangle, as are all below */
    for (size_t j = 0; j < size; j++)
        scale_row(q->n, q->design + j * (size_t)q->n, q->roots, q->scaled + j * (size_t)q->n);
    ssyrk("U", "T", &all, &q->n, &one, q->scaled, &q->n, &nothing, gram, &all);
    for (size_t j = 0; j < size; j++) {
        for (size_t i = 0; i <= j; i++)
            q->factor[j * size + i] = (double)gram[j * width + i];
        q->factor[j * size + j] += j < (size_t)q->intercept ? 0.0 : q->ridge;
    }
    for (size_t j = 0; j < near; j++) {
        const float *column = gram + (size + j) * width;
        for (size_t i = 0; i < size; i++)
            q->above[j * size + i] = (double)column[i];
        for (size_t i = 0; i <= j; i++)
            q->out[j * near + i] = (double)column[size + i];
    }
    if (q->size) {
        dpotrf("U", &q->size, q->factor, &q->size, &failed);
        if (failed)
            return -1;
        dtrsm("L", "U", "T", "N", &q->size, &q->near, &whole, q->factor, &q->size, q->above, &q->size);
        dsyrk("U", "T", &q->near, &q->size, &minus, q->above, &q->size, &whole, q->out, &q->near);
    }
    for (size_t j = 0; j < near; j++) {
        for (size_t i = 0; i <= j; i++)
            q->out[i * near + j] = q->out[j * near + i] = q->out[j * near + i] / q->unit;
        q->out[j * near + j] += q->ridge / q->unit;
    }
    return 0;
}
