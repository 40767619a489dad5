// Chains of additions and subtractions of float32 arrays, for all leaves of a tree in one call.
//
// XLA compiles a loop of its own for each leaf of a new shape, in some 40 ms. Numbers are the same:
// each element is rounded after each operation, as in XLA's loops, and denormals are treated as the
// calling thread is set to treat them.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace chain {

namespace ffi = xla::ffi;

constexpr size_t kBlock = 512;     // numbers of a block; larger ones upset the prefetching
constexpr size_t kPart = 1 << 18;  // numbers of a part, which one thread computes

struct Part {
  std::vector<const float*> operands;
  float* result;
  size_t size;
};

struct Work {
  std::string signs;
  std::vector<Part> parts;
  std::atomic<size_t> next{0}, done{0};

  // The result may lie where an operand does: a block is written once all of them were read.
  void compute(const Part& part) const {
    float sum[kBlock];
    for (size_t begin = 0; begin < part.size; begin += kBlock) {
      size_t size = std::min(kBlock, part.size - begin);
      std::copy_n(part.operands[0] + begin, size, sum);
      for (size_t k = 0; k < signs.size(); ++k) {
        const float* x = part.operands[k + 1] + begin;
        if (signs[k] == '+') {
          for (size_t i = 0; i < size; ++i) sum[i] += x[i];
        } else {
          for (size_t i = 0; i < size; ++i) sum[i] -= x[i];
        }
      }
      std::copy_n(sum, size, part.result + begin);
    }
  }

  void help() {
    for (size_t k; (k = next++) < parts.size(); ++done) compute(parts[k]);
  }
};

// x0 +- x1 +- x2 ... for each leaf. Operands: the leaves of x0, then those of x1, and so on.
inline ffi::Error on_cpu(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::ThreadPool pool,
                         std::string_view signs) {
  size_t leaves = rets.size(), groups = signs.size() + 1;
  if (args.size() != leaves * groups) return ffi::Error::InvalidArgument("a leaf is missing");
  auto work = std::make_shared<Work>();
  work->signs = signs;
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    auto whole = rets.get<ffi::AnyBuffer>(leaf);
    if (!whole) return whole.error();
    size_t size = (*whole)->element_count();
    std::vector<const float*> operands;
    for (size_t group = 0; group < groups; ++group) {
      auto operand = args.get<ffi::AnyBuffer>(group * leaves + leaf);
      if (!operand) return operand.error();
      if (operand->element_type() != ffi::F32 || operand->element_count() != size)
        return ffi::Error::InvalidArgument("leaves of a chain are float32 arrays of one shape");
      operands.push_back(operand->typed_data<float>());
    }
    float* result = (*whole)->typed_data<float>();
    if (groups == 1 && operands[0] == result) continue;  // nothing to compute
    for (size_t begin = 0; begin < size; begin += kPart) {
      Part part{operands, result + begin, std::min(kPart, size - begin)};
      for (auto& x : part.operands) x += begin;
      work->parts.push_back(std::move(part));
    }
  }
  // A helper may start when all is done, or never: nothing waits for one that has not begun.
  int64_t helpers = std::min<int64_t>(pool.num_threads(), work->parts.size()) - 1;
  for (int64_t k = 0; k < helpers; ++k) pool.Schedule([work] { work->help(); });
  work->help();
  while (work->done < work->parts.size()) std::this_thread::yield();
  return ffi::Error::Success();
}

}  // namespace chain
