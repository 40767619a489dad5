// Numbers on their way to a wire and back: one pass over memory each, without Python's lock.
//
// A block of numbers goes through all operations before the next one. Each operation rounds by
// itself: the library is compiled without fused multiply-adds, so that the mean has the bits of
// NumPy's, which nodes without a compiler take.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "mixing.h"

namespace fused {

constexpr int64_t kBlock = 256;  // a multiple of wires' blocks; larger ones upset the prefetching

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// The upper half of a float32, rounded to nearest, ties to even. What is not a number stays so.
inline uint16_t to_bfloat16(float x) {
  uint32_t bits = bits_of(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

inline float from_bfloat16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }

// Rounded to the nearest whole number, ties to even; of numbers below 2^22.
inline float rounded(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

// A wire encodes and decodes `size` numbers that begin at place `at` of a row of `width` numbers.

struct Float32 {
  static JDASO_INLINE void encode(const float* x, int64_t at, int64_t size, int64_t, uint8_t* row) {
    std::copy_n(x, size, reinterpret_cast<float*>(row) + at);
  }
  static JDASO_INLINE void decode(const uint8_t* row, int64_t at, int64_t size, int64_t, float* x) {
    std::copy_n(reinterpret_cast<const float*>(row) + at, size, x);
  }
};

struct BFloat16 {
  static JDASO_INLINE void encode(const float* x, int64_t at, int64_t size, int64_t, uint8_t* row) {
    auto* halves = reinterpret_cast<uint16_t*>(row) + at;
    for (int64_t i = 0; i < size; ++i) halves[i] = to_bfloat16(x[i]);
  }
  static JDASO_INLINE void decode(const uint8_t* row, int64_t at, int64_t size, int64_t, float* x) {
    auto* halves = reinterpret_cast<const uint16_t*>(row) + at;
    for (int64_t i = 0; i < size; ++i) x[i] = from_bfloat16(halves[i]);
  }
};

// Blocks of whole numbers within `kLevels`, with a scale each; a row's scales follow its numbers.
template <int64_t kNumbers, int kLevels, int64_t kPerByte, typename Scale>
struct Blocks {
  static constexpr float kLeastScale = 0x1p-120f;

  static JDASO_INLINE uint8_t* scales(uint8_t* row, int64_t at, int64_t width) {
    return row + width / kPerByte + at / kNumbers * Scale::kBytes;
  }

  static JDASO_INLINE void encode(const float* x, int64_t at, int64_t size, int64_t width,
                                  uint8_t* row) {
    uint8_t* data = row + at / kPerByte;
    uint8_t* scale_at = scales(row, at, width);
    for (int64_t begin = 0; begin < size; begin += kNumbers) {
      // Bits of floats without their signs are ordered as the floats; NaN comes last.
      uint32_t most = 0;
      for (int64_t i = 0; i < kNumbers; ++i) {
        most = std::max(most, bits_of(x[begin + i]) & 0x7fffffff);
      }
      float scale = float_of(most) * static_cast<float>(1.0 / kLevels);
      if (scale < kLeastScale) scale = 0;
      scale = Scale::store(scale, scale_at);
      scale_at += Scale::kBytes;
      float factor = 1.0f / (scale > 0 ? scale : 1.0f);
      int32_t whole[kNumbers];
      for (int64_t i = 0; i < kNumbers; ++i) {
        whole[i] = static_cast<int32_t>(rounded(x[begin + i] * factor));
      }
      if constexpr (kPerByte == 1) {
        for (int64_t i = 0; i < kNumbers; ++i) data[i] = static_cast<uint8_t>(whole[i]);
      } else {
        for (int64_t i = 0; i < kNumbers / 2; ++i) {
          data[i] = static_cast<uint8_t>((whole[2 * i] & 15) | (whole[2 * i + 1] << 4));
        }
      }
      data += kNumbers / kPerByte;
    }
  }

  static JDASO_INLINE void decode(const uint8_t* row, int64_t at, int64_t size, int64_t width,
                                  float* x) {
    const uint8_t* data = row + at / kPerByte;
    const uint8_t* scale_at = scales(const_cast<uint8_t*>(row), at, width);
    for (int64_t begin = 0; begin < size; begin += kNumbers) {
      float scale = Scale::load(scale_at);
      scale_at += Scale::kBytes;
      if constexpr (kPerByte == 1) {
        for (int64_t i = 0; i < kNumbers; ++i) {
          x[begin + i] = static_cast<float>(static_cast<int8_t>(data[i])) * scale;
        }
      } else {
        for (int64_t i = 0; i < kNumbers / 2; ++i) {
          int32_t low = static_cast<int8_t>(data[i] << 4) >> 4;
          int32_t high = static_cast<int8_t>(data[i]) >> 4;
          x[begin + 2 * i] = static_cast<float>(low) * scale;
          x[begin + 2 * i + 1] = static_cast<float>(high) * scale;
        }
      }
      data += kNumbers / kPerByte;
    }
  }
};

struct WholeScale {
  static constexpr int64_t kBytes = 4;
  static float store(float scale, uint8_t* at) {
    std::memcpy(at, &scale, 4);
    return scale;
  }
  static float load(const uint8_t* at) {
    float scale;
    std::memcpy(&scale, at, 4);
    return scale;
  }
};

struct HalfScale {
  static constexpr int64_t kBytes = 2;
  static float store(float scale, uint8_t* at) {
    uint16_t half = to_bfloat16(scale);
    std::memcpy(at, &half, 2);
    return from_bfloat16(half);
  }
  static float load(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    return from_bfloat16(half);
  }
};

using Int8 = Blocks<256, 127, 1, WholeScale>;
using Int4 = Blocks<64, 7, 2, HalfScale>;

enum Wire : int64_t { kFloat32, kBFloat16, kInt8, kInt4 };

// Rows of numbers: ``nodes`` of them, ``width`` numbers each. Encoded, a row takes ``stride`` bytes.
struct Shape {
  int64_t wire, nodes, width, stride;
};

// The fields of `fused.py`; a null pointer leaves that part out.
// For `Passes.encode`:
struct Encoding {
  Shape shape;
  const float *numbers, *anchor, *weight;
  const float *lost, *residual, *paid;  // error feedback
  int64_t node;
  float sent, kept;
  uint8_t* rows;
  float *error, *fed;
};

template <typename W>
JDASO_INLINE void encode(const Encoding& e) {
  float send[kBlock], back[kBlock];
  for (int64_t row = 0; row < e.shape.nodes; ++row) {
    uint8_t* encoded = e.rows + row * e.shape.stride;
    for (int64_t at = 0; at < e.shape.width; at += kBlock) {
      const int64_t size = std::min(kBlock, e.shape.width - at), first = row * e.shape.width + at;
      std::copy_n(e.numbers + first, size, send);
      if (e.anchor) {
        const float* anchor = e.anchor + first;
        for (int64_t i = 0; i < size; ++i) send[i] -= anchor[i];
      }
      if (e.weight) {
        const float weight = *e.weight;
        for (int64_t i = 0; i < size; ++i) send[i] = weight > 0 ? weight * send[i] : 0;
      }
      if (e.lost) {
        std::copy_n(e.lost + first, size, back);
        if (row == e.node && e.residual) {
          for (int64_t i = 0; i < size; ++i) back[i] += e.residual[at + i];
        }
        for (int64_t i = 0; i < size; ++i) back[i] *= e.sent;
        if (e.paid) {
          const float* paid = e.paid + first;
          for (int64_t i = 0; i < size; ++i) back[i] += e.kept * paid[i];
        }
        for (int64_t i = 0; i < size; ++i) send[i] += back[i];
        if (e.fed) std::copy_n(back, size, e.fed + first);
      } else if (e.fed) {
        std::fill_n(e.fed + first, size, 0.0f);
      }
      W::encode(send, at, size, e.shape.width, encoded);
      if (e.error) {
        W::decode(encoded, at, size, e.shape.width, back);
        float* error = e.error + first;
        for (int64_t i = 0; i < size; ++i) error[i] = send[i] - back[i];
      }
    }
  }
}

// For `Passes.total`:
struct Summing {
  Shape shape;
  const uint8_t* rows;
  uint8_t* encoded;
  float* residual;
};

template <typename W>
JDASO_INLINE void total(const Summing& s) {
  float sum[kBlock], one[kBlock];
  for (int64_t at = 0; at < s.shape.width; at += kBlock) {
    const int64_t size = std::min(kBlock, s.shape.width - at);
    W::decode(s.rows, at, size, s.shape.width, sum);
    for (int64_t row = 1; row < s.shape.nodes; ++row) {
      W::decode(s.rows + row * s.shape.stride, at, size, s.shape.width, one);
      for (int64_t i = 0; i < size; ++i) sum[i] += one[i];
    }
    W::encode(sum, at, size, s.shape.width, s.encoded);
    if (s.residual) {
      W::decode(s.encoded, at, size, s.shape.width, one);
      for (int64_t i = 0; i < size; ++i) s.residual[at + i] = sum[i] - one[i];
    }
  }
}

// For `Passes.mean` and `Passes.decode`:
struct Mean {
  Shape shape;
  const uint8_t* rows;
  const float* anchor;
  float factor, nodes;
  float *mean, *numbers;
  int64_t subtracts;
};

template <typename W>
JDASO_INLINE void mean(const Mean& m) {
  float found[kBlock];
  const float share = 1.0f / m.nodes;
  for (int64_t row = 0; row < m.shape.nodes; ++row) {
    for (int64_t at = 0; at < m.shape.width; at += kBlock) {
      const int64_t size = std::min(kBlock, m.shape.width - at), first = row * m.shape.width + at;
      W::decode(m.rows + row * m.shape.stride, at, size, m.shape.width, found);
      for (int64_t i = 0; i < size; ++i) found[i] *= m.factor;
      if (m.anchor) {
        const float* anchor = m.anchor + first;
        for (int64_t i = 0; i < size; ++i) found[i] += m.nodes * anchor[i];
      }
      for (int64_t i = 0; i < size; ++i) found[i] *= share;
      if (m.mean) std::copy_n(found, size, m.mean + first);
      if (!m.numbers) continue;
      float* numbers = m.numbers + first;
      if (m.subtracts) {
        for (int64_t i = 0; i < size; ++i) numbers[i] = found[i] - numbers[i];
      } else {
        std::copy_n(found, size, numbers);
      }
    }
  }
}

#define JDASO_BY_WIRE(pass, about)                            \
  switch ((about).shape.wire) {                               \
    case kFloat32: return pass<Float32>(about);               \
    case kBFloat16: return pass<BFloat16>(about);             \
    case kInt8: return pass<Int8>(about);                     \
    case kInt4: return pass<Int4>(about);                     \
  }

JDASO_BY_PROCESSOR void encode_rows(const Encoding& about) { JDASO_BY_WIRE(encode, about) }
JDASO_BY_PROCESSOR void total_of_rows(const Summing& about) { JDASO_BY_WIRE(total, about) }
JDASO_BY_PROCESSOR void mean_of_rows(const Mean& about) { JDASO_BY_WIRE(mean, about) }

}  // namespace fused
