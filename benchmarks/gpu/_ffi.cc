// Handlers of XLA's foreign function interface that move a buffer to or from host memory whose
// address is fixed when the step is compiled: no Python, no fresh memory, one copy.
//
// The CUDA ones pin that memory at their first call and use the driver's library, which is opened
// at run time: this file needs no CUDA header and compiles where there is no GPU.

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Stream = void*;

ffi::Error check_size(size_t buffer, int64_t nbytes) {
  if (buffer == static_cast<size_t>(nbytes)) return ffi::Error::Success();
  return ffi::Error::InvalidArgument("the buffer and the host memory differ in size");
}

struct Driver {
  int (*to_host)(void*, uint64_t, size_t, Stream) = nullptr;
  int (*to_device)(uint64_t, const void*, size_t, Stream) = nullptr;
  int (*synchronize)(Stream) = nullptr;
  int (*pin)(void*, size_t, unsigned) = nullptr;
  std::string missing;

  template <typename F>
  void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(library ? dlsym(library, name) : nullptr);
    if (!function) missing = name;
  }

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    find(library, "cuMemcpyDtoHAsync_v2", to_host);
    find(library, "cuMemcpyHtoDAsync_v2", to_device);
    find(library, "cuStreamSynchronize", synchronize);
    find(library, "cuMemHostRegister_v2", pin);
  }
};

// Fails unless the memory is pinned, at the latest now.
ffi::Error prepare(const Driver& driver, int64_t address, int64_t nbytes) {
  if (!driver.missing.empty()) {
    return ffi::Error::Internal("libcuda.so.1 lacks " + driver.missing);
  }
  static std::mutex mutex;
  static std::set<int64_t> pinned;
  std::lock_guard<std::mutex> lock(mutex);
  if (pinned.count(address)) return ffi::Error::Success();
  int status = driver.pin(reinterpret_cast<void*>(address), nbytes, 1);  // for every context
  if (status != 0) {
    return ffi::Error::Internal("cuMemHostRegister gave " + std::to_string(status));
  }
  pinned.insert(address);
  return ffi::Error::Success();
}

const Driver& driver() {
  static const Driver found;
  return found;
}

ffi::Error finished(int status, Stream stream) {
  if (status == 0) status = driver().synchronize(stream);
  if (status == 0) return ffi::Error::Success();
  return ffi::Error::Internal("CUDA's driver gave " + std::to_string(status));
}

}  // namespace

static ffi::Error to_host(ffi::AnyBuffer from, ffi::Result<ffi::BufferR0<ffi::S32>> done,
                          int64_t address, int64_t nbytes) {
  if (auto error = check_size(from.size_bytes(), nbytes); error.failure()) return error;
  std::memcpy(reinterpret_cast<void*>(address), from.untyped_data(), nbytes);
  done->typed_data()[0] = 1;
  return ffi::Error::Success();
}

static ffi::Error from_host(ffi::BufferR0<ffi::S32> after, ffi::Result<ffi::AnyBuffer> into,
                            int64_t address, int64_t nbytes) {
  (void)after;
  if (auto error = check_size(into->size_bytes(), nbytes); error.failure()) return error;
  std::memcpy(into->untyped_data(), reinterpret_cast<void*>(address), nbytes);
  return ffi::Error::Success();
}

// `done` stays as it is: nobody reads its number, and XLA keeps the order by the buffer.
static ffi::Error to_host_cuda(Stream stream, ffi::AnyBuffer from,
                               ffi::Result<ffi::BufferR0<ffi::S32>> done, int64_t address,
                               int64_t nbytes) {
  (void)done;
  if (auto error = check_size(from.size_bytes(), nbytes); error.failure()) return error;
  if (auto error = prepare(driver(), address, nbytes); error.failure()) return error;
  auto data = reinterpret_cast<uint64_t>(from.untyped_data());
  void* memory = reinterpret_cast<void*>(address);
  return finished(driver().to_host(memory, data, nbytes, stream), stream);
}

static ffi::Error from_host_cuda(Stream stream, ffi::BufferR0<ffi::S32> after,
                                 ffi::Result<ffi::AnyBuffer> into, int64_t address,
                                 int64_t nbytes) {
  (void)after;
  if (auto error = check_size(into->size_bytes(), nbytes); error.failure()) return error;
  if (auto error = prepare(driver(), address, nbytes); error.failure()) return error;
  auto data = reinterpret_cast<uint64_t>(into->untyped_data());
  const void* memory = reinterpret_cast<const void*>(address);
  return finished(driver().to_device(data, memory, nbytes, stream), stream);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ToHostCpu, to_host,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::BufferR0<ffi::S32>>()
                                  .Attr<int64_t>("address")
                                  .Attr<int64_t>("nbytes"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(FromHostCpu, from_host,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("address")
                                  .Attr<int64_t>("nbytes"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ToHostCuda, to_host_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<Stream>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::BufferR0<ffi::S32>>()
                                  .Attr<int64_t>("address")
                                  .Attr<int64_t>("nbytes"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(FromHostCuda, from_host_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<Stream>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("address")
                                  .Attr<int64_t>("nbytes"));
