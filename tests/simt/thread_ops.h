// What the shim's CUDA functions call from inside a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "simt/shim/vector_types.h"
#include "simt/warp.h"

namespace aegis::simt {

using Where = std::source_location;

/// The running thread's coordinates; meaningless outside a kernel.
extern const uint3& thread_index;
extern const uint3& block_index;
extern const dim3& block_size;
extern const dim3& grid_size;

/// Waits for all threads of the block; returns how many of them brought `predicate`.
int barrier(bool predicate, const Where& where);

/// Waits until every living lane of `request.mask` has brought a request of the same kind and mask.
WarpResult warp_op(const WarpRequest& request, const Where& where);

/// Announces an atomic access; the caller does it before it waits again.
void atomic_access(const void* address, size_t bytes);

/// __threadfence: from here on in this launch, blocks may read what others wrote.
void fence();

/// The block's variable that is declared at `site`, made when its first thread asks for it.
/// `element` is the size of its elements, for messages.
void* shared_variable(const void* site, const char* name, size_t bytes, size_t element,
                      size_t alignment);

/// The launch's dynamic shared memory.
void* dynamic_shared(const char* name, size_t element);

/// __trap
[[noreturn]] void trap(const Where& where);

}  // namespace aegis::simt
