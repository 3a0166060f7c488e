/* The mixing function of random_keys.py. */

#ifndef FASTOMP_MIXING_H
#define FASTOMP_MIXING_H

#include <stdint.h>

/* Takes one word into the state. */
static inline uint64_t mixed(uint64_t state, uint64_t word)
{
    uint64_t z = (state ^ word) + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
