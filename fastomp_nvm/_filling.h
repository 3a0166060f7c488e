/* Copies of standardised columns, with the bits of Standardisation.fill. */

#ifndef FASTOMP_FILLING_H
#define FASTOMP_FILLING_H

#include <stddef.h>

#include "_wide.h"

/* out[j] = (row[j] - mean) * scale, times factors[j] unless these are NULL. */
typedef void Fill(ptrdiff_t n, const void *row, double mean, double scale, const double *factors, void *out);

#define FILL(NAME, ROW, OUT)                                                                                                       \
    WIDE static void NAME(ptrdiff_t n, const void *given_row, double mean, double scale, const double *restrict factors,         \
                          void *given_out)                                                                                        \
    {                                                                                                                              \
        const ROW *restrict row = given_row;                                                                                       \
        OUT *restrict out = given_out;                                                                                             \
        if (factors)                                                                                                               \
            for (ptrdiff_t j = 0; j < n; j++)                                                                                     \
                out[j] = (OUT)((((double)row[j] - mean) * scale) * factors[j]);                                                    \
        else                                                                                                                       \
            for (ptrdiff_t j = 0; j < n; j++)                                                                                     \
                out[j] = (OUT)(((double)row[j] - mean) * scale);                                                                   \
    }

FILL(single_to_double, float, double)
FILL(double_to_double, double, double)
FILL(single_to_single, float, float)
FILL(double_to_single, double, float)

/* Returns the one that takes rows of a type, 'f' or 'd', to another. */
static inline Fill *filling(char from, char to)
{
    if (from == 'f')
        return to == 'f' ? single_to_single : single_to_double;
    return to == 'f' ? double_to_single : double_to_double;
}

#endif
