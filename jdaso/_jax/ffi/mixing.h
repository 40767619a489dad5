// A checksum's sum over the words of an array: one pass over memory, without Python's lock.

#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
// Compiled once for each, and chosen when the library is loaded: the first has vectors of 8 words.
#define JDASO_BY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define JDASO_BY_PROCESSOR
#endif
#define JDASO_INLINE __attribute__((always_inline)) inline  // into such clones

namespace mixing {

// As `mixing.py` by NumPy, bit for bit: numbers wrap around.
JDASO_BY_PROCESSOR
uint32_t sum(const uint32_t* words, int64_t count, uint32_t begin) {
  uint32_t total = 0;
  for (int64_t k = 0; k < count; ++k) {
    uint32_t mixed = (begin + static_cast<uint32_t>(k)) * 2654435761u;
    mixed = (mixed ^ words[k]) * 2246822519u;
    mixed = (mixed ^ (mixed >> 15)) * 3266489917u;
    total += mixed ^ (mixed >> 13);
  }
  return total;
}

}  // namespace mixing
