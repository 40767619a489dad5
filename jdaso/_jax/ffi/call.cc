// Handlers of XLA's foreign function interface that call a Python function from a compiled step.
//
// The step names the function by a string, not by an address: JAX's compilation cache keeps such
// programs, and another process finds its own function by the same name. Nothing here knows Python:
// `jdaso_set_python` is given one C function, made by ctypes, which takes Python's lock.
//
// CUDA's driver is opened at run time: this file compiles where there is no GPU.

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "chain.h"
#include "fused.h"
#include "mixing.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// Address and bytes of each operand, then of each result. Bytes are negative for an operand that is
// left in the device's memory.
using Arrays = std::vector<int64_t>;

// Returns 1; if the function fails, another number and the reason in `text`. A result that the
// function leaves elsewhere has that address in `arrays` afterwards.
using Python = int (*)(const char* name, int64_t length, int64_t* arrays, char* text,
                       int64_t room);

constexpr int kDone = 1;
constexpr int64_t kRoom = 1 << 14;

std::atomic<Python> python{nullptr};

ffi::Error call_python(std::string_view name, Arrays& arrays) {
  Python call = python.load();
  if (!call) return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "jdaso is not loaded");
  thread_local char text[kRoom];
  text[0] = '\0';
  int status = call(std::string(name).c_str(), arrays.size(), arrays.data(), text, kRoom);
  if (status == kDone) return ffi::Error::Success();
  return ffi::Error::Internal("jdaso's call of the host failed: " + std::string(text));
}

const void* address_of(const Arrays& arrays, size_t k) {
  return reinterpret_cast<const void*>(arrays[2 * k]);
}

void append(Arrays& arrays, const void* address, size_t nbytes) {
  arrays.push_back(reinterpret_cast<int64_t>(address));
  arrays.push_back(static_cast<int64_t>(nbytes));
}

// Buffers of all operands and results; the number of operands first.
ffi::ErrorOr<std::vector<ffi::AnyBuffer>> buffers_of(const ffi::RemainingArgs& args,
                                                     const ffi::RemainingRets& rets) {
  std::vector<ffi::AnyBuffer> found;
  for (size_t k = 0; k < args.size(); ++k) {
    auto buffer = args.get<ffi::AnyBuffer>(k);
    if (!buffer) return ffi::Unexpected(buffer.error());
    found.push_back(*buffer);
  }
  for (size_t k = 0; k < rets.size(); ++k) {
    auto buffer = rets.get<ffi::AnyBuffer>(k);
    if (!buffer) return ffi::Unexpected(buffer.error());
    found.push_back(**buffer);
  }
  return found;
}

ffi::Error on_cpu(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view name,
                  int64_t) {
  auto buffers = buffers_of(args, rets);
  if (!buffers) return buffers.error();
  Arrays arrays;
  for (auto& buffer : *buffers) append(arrays, buffer.untyped_data(), buffer.size_bytes());
  if (auto error = call_python(name, arrays); error.failure()) return error;
  for (size_t k = args.size(); k < buffers->size(); ++k) {
    void* place = (*buffers)[k].untyped_data();
    if (address_of(arrays, k) != place) {
      std::memcpy(place, address_of(arrays, k), (*buffers)[k].size_bytes());
    }
  }
  return ffi::Error::Success();
}

using Stream = void*;

// Functions of CUDA's driver; each returns 0 or an error's number.
struct Driver {
  int (*to_host)(void*, uint64_t, size_t, Stream) = nullptr;
  int (*to_device)(uint64_t, const void*, size_t, Stream) = nullptr;
  int (*synchronize)(Stream) = nullptr;
  int (*allocate)(void**, size_t, unsigned) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*enter)(void*) = nullptr;
  int (*leave)(void**) = nullptr;
  bool complete = true;

  template <typename F>
  void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(library ? dlsym(library, name) : nullptr);
    complete = complete && function;
  }

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    find(library, "cuMemcpyDtoHAsync_v2", to_host);
    find(library, "cuMemcpyHtoDAsync_v2", to_device);
    find(library, "cuStreamSynchronize", synchronize);
    find(library, "cuMemHostAlloc", allocate);
    find(library, "cuDevicePrimaryCtxRetain", retain);
    find(library, "cuCtxPushCurrent_v2", enter);
    find(library, "cuCtxPopCurrent_v2", leave);
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

// Pinned memory of the host. What is given back is kept for later.
class Pinned {
 public:
  // Returns 0, or the driver's error.
  int take(size_t nbytes) {
    size_ = 4096;
    while (size_ < nbytes) size_ *= 2;
    {
      std::lock_guard<std::mutex> lock(mutex());
      auto found = idle().find(size_);
      if (found != idle().end()) {
        memory_ = found->second;
        idle().erase(found);
        return 0;
      }
    }
    return driver().allocate(&memory_, size_, 1);  // 1: for every context
  }

  void* memory() const { return memory_; }

  // Leaves it to the caller, until `give`.
  void* keep() {
    void* memory = memory_;
    memory_ = nullptr;
    std::lock_guard<std::mutex> lock(mutex());
    kept()[memory] = size_;
    return memory;
  }

  static void give(void* memory) {
    std::lock_guard<std::mutex> lock(mutex());
    auto found = kept().find(memory);
    if (found == kept().end()) return;
    idle().emplace(found->second, memory);
    kept().erase(found);
  }

  Pinned() = default;
  Pinned(Pinned&& other) : size_(other.size_), memory_(other.memory_) { other.memory_ = nullptr; }

  ~Pinned() {
    if (!memory_) return;
    std::lock_guard<std::mutex> lock(mutex());
    idle().emplace(size_, memory_);
  }

 private:
  // Never destroyed: a step may end after the static objects of this library.
  static std::mutex& mutex() {
    static auto* made = new std::mutex;
    return *made;
  }
  static std::multimap<size_t, void*>& idle() {
    static auto* made = new std::multimap<size_t, void*>;
    return *made;
  }
  static std::map<void*, size_t>& kept() {
    static auto* made = new std::map<void*, size_t>;
    return *made;
  }

  size_t size_ = 0;
  void* memory_ = nullptr;
};

// Whether this thread is in a call, and its stream: Python copies operands out on it.
thread_local bool in_call = false;
thread_local Stream stream_of_call = nullptr;

ffi::Error call_python_on(Stream stream, std::string_view name, Arrays& arrays) {
  stream_of_call = stream;
  in_call = true;
  auto error = call_python(name, arrays);
  in_call = false;
  return error;
}

// The first `to_host` operands are copied to the host, the others are left in the device's memory.
// Its stream is idle while Python runs, but for the copies that Python makes: it holds nothing that
// Python could wait for.
ffi::Error on_cuda(Stream stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   std::string_view name, int64_t to_host) {
  if (!driver().complete) return ffi::Error::Internal("libcuda.so.1 was not found, or is too old");
  auto buffers = buffers_of(args, rets);
  if (!buffers) return buffers.error();
  std::vector<Pinned> pinned(buffers->size());
  Arrays arrays;
  int status = 0;
  for (size_t k = 0; k < pinned.size() && status == 0; ++k) {
    auto& buffer = (*buffers)[k];
    size_t nbytes = buffer.size_bytes();
    if (k >= static_cast<size_t>(to_host) && k < args.size()) {
      append(arrays, buffer.untyped_data(), nbytes);
      arrays.back() *= -1;
      continue;
    }
    status = pinned[k].take(nbytes);
    append(arrays, pinned[k].memory(), nbytes);
    if (status != 0 || nbytes == 0 || k >= args.size()) continue;
    auto device = reinterpret_cast<uint64_t>(buffer.untyped_data());
    status = driver().to_host(pinned[k].memory(), device, nbytes, stream);
  }
  // Also after an error: a copy may still be writing to memory that goes to other calls.
  int waited = driver().synchronize(stream);
  if (status == 0) status = waited;
  if (status == 0) {
    if (auto error = call_python_on(stream, name, arrays); error.failure()) return error;
    for (size_t k = args.size(); k < pinned.size() && status == 0; ++k) {
      auto& buffer = (*buffers)[k];
      size_t nbytes = buffer.size_bytes();
      auto device = reinterpret_cast<uint64_t>(buffer.untyped_data());
      if (nbytes) status = driver().to_device(device, address_of(arrays, k), nbytes, stream);
    }
    waited = driver().synchronize(stream);
    if (status == 0) status = waited;
  }
  if (status == 0) return ffi::Error::Success();
  return ffi::Error::Internal("CUDA's driver returned error " + std::to_string(status));
}

}  // namespace

extern "C" void jdaso_set_python(Python call) { python = call; }

// Pinned memory until `jdaso_give_pinned`, in the context that JAX has on a device; null if there
// is none. Any thread may call it.
extern "C" void* jdaso_take_pinned(int64_t nbytes, int device) {
  void* context = nullptr;
  if (!driver().complete || driver().retain(&context, device) != 0) return nullptr;
  if (driver().enter(context) != 0) return nullptr;
  Pinned pinned;
  void* memory = pinned.take(nbytes) == 0 ? pinned.keep() : nullptr;
  driver().leave(&context);
  return memory;
}

extern "C" void jdaso_give_pinned(void* memory) { Pinned::give(memory); }

extern "C" uint32_t jdaso_sum_of_mixed(const uint32_t* words, int64_t count, uint32_t begin) {
  return mixing::sum(words, count, begin);
}

extern "C" void jdaso_encode(const fused::Encoding* about) { fused::encode_rows(*about); }
extern "C" void jdaso_total(const fused::Summing* about) { fused::total_of_rows(*about); }
extern "C" void jdaso_mean(const fused::Mean* about) { fused::mean_of_rows(*about); }

// Copies operands that a call has left in the device's memory, and waits. `copies` holds for each
// the target on the host, the source and the bytes. Returns 0, the driver's error, or -1 if this
// thread is in no call.
extern "C" int jdaso_copy_out(int64_t count, const int64_t* copies) {
  if (!in_call) return -1;
  int status = 0;
  for (int64_t k = 0; k < count && status == 0; ++k, copies += 3) {
    if (copies[2] == 0) continue;
    status = driver().to_host(reinterpret_cast<void*>(copies[0]), copies[1], copies[2],
                              stream_of_call);
  }
  int waited = driver().synchronize(stream_of_call);
  return status != 0 ? status : waited;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JdasoCallCpu, on_cpu,
    ffi::Ffi::Bind()
        .RemainingArgs()
        .RemainingRets()
        .Attr<std::string_view>("name")
        .Attr<int64_t>("to_host"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JdasoCallCuda, on_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<Stream>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("to_host"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(JdasoChainCpu, chain::on_cpu,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<std::string_view>("signs"));
