// The threads that native code runs on: an engine's, while a thread of Python has them bound.
#pragma once

#include "host_pool.h"

namespace deepinfer {

// Makes a pool the one that the calling thread's native code runs on, here and in the backend's ops, until unbind().
// They nest. The pool must outlive its binding.
void bind_pool(const HostPool& pool);
// Ends the calling thread's newest binding. Throws std::logic_error if that is not this pool's.
void unbind_pool(const HostPool& pool);

// What is bound to the calling thread; nullptr: nothing.
const HostPool* bound_pool();
// One thread per CPU this process may use, for calls outside of engines; they start when first needed.
const HostPool& default_pool();

}  // namespace deepinfer
