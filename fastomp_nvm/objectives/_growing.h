/* Functions of the module in _newton.c that _growing.c has. */

#ifndef FASTOMP_GROWING_H
#define FASTOMP_GROWING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

extern PyMethodDef GROWING_METHODS[];

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
