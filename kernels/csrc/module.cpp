// Python bindings: addresses and sizes only, so that the extension depends on no version of torch.
// Arguments are checked by deepinfer_kernels' operator interface. The GIL is released around each call.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core.h"
#include "ops.h"
#include "parallel.h"

namespace py = pybind11;
using namespace deepinfer;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// How Python passes a C++ parameter, and its conversion. Scalars pass as they are.
template <class T>
struct Argument {
  using Type = T;
  static T convert(T value) { return value; }
};

template <class T>
struct Argument<T*> {
  using Type = Address;
  static T* convert(Address value) { return at<T>(value); }
};

template <>
struct Argument<Codec> {
  using Type = int;
  static Codec convert(int value) { return static_cast<Codec>(value); }
};

template <>
struct Argument<Input> {
  using Type = std::tuple<Address, bool>;  // data, is f32
  static Input convert(Type value) { return {at<void>(std::get<0>(value)), std::get<1>(value)}; }
};

template <>
struct Argument<Output> {
  using Type = std::tuple<Address, bool>;
  static Output convert(Type value) { return {at<void>(std::get<0>(value)), std::get<1>(value)}; }
};

template <>
struct Argument<const Weight&> {
  using Type = std::tuple<int, Address, Address, int64_t, int64_t>;  // format, data, scale, M, K
  static Weight convert(Type value) {
    const auto [format, data, scale, M, K] = value;
    return {static_cast<Format>(format), at<const uint8_t>(data), at<const uint8_t>(scale), M, K};
  }
};

template <>
struct Argument<const Window&> {
  using Type = std::tuple<Address, Address, Address, Address, Address, int64_t, int64_t>;
  static Window convert(Type value) {
    const auto [ring, chunk, slots, starts, positions, ring_size, size] = value;
    return {at<const uint8_t>(ring),
            at<const uint8_t>(chunk),
            at<const int32_t>(slots),
            at<const int32_t>(starts),
            at<const int32_t>(positions),
            ring_size,
            size};
  }
};

template <>
struct Argument<const Compressed&> {
  using Type = std::tuple<Address, Address, Address, Address, int64_t, int64_t, int64_t>;
  static Compressed convert(Type value) {
    const auto [cache, block_tables, seq_of_row, indices, page_entries, max_pages, topk] = value;
    return {at<const uint8_t>(cache),
            at<const int32_t>(block_tables),
            at<const int32_t>(seq_of_row),
            at<const int32_t>(indices),
            page_entries,
            max_pages,
            topk};
  }
};

template <>
struct Argument<const Drafts&> {
  using Type = std::tuple<Address, Address, Address, Address, int64_t, int64_t, int64_t>;
  static Drafts convert(Type value) {
    const auto [ring, block, slots, starts, ring_size, window, rows] = value;
    return {at<const uint8_t>(ring),
            at<const uint8_t>(block),
            at<const int32_t>(slots),
            at<const int32_t>(starts),
            ring_size,
            window,
            rows};
  }
};

template <>
struct Argument<const Pages&> {
  using Type = std::tuple<Address, Address, Address, Address, Address, int64_t, int64_t, int64_t, int64_t>;
  static Pages convert(Type value) {
    const auto [keys, values, block_tables, seq_of_row, positions, heads, entries, max_pages, window] = value;
    return {at<const bf16>(keys),
            at<const bf16>(values),
            at<const int32_t>(block_tables),
            at<const int32_t>(seq_of_row),
            at<const int32_t>(positions),
            heads,
            entries,
            max_pages,
            window};
  }
};

template <>
struct Argument<const IndexQuery&> {
  using Type =
      std::tuple<Address, Address, Address, Address, Address, Address, Address, std::array<int64_t, 8>>;
  static IndexQuery convert(Type value) {
    const auto [q, weights, keys, block_tables, seq_of_row, visible, candidate_blocks, sizes] = value;
    return {at<const bf16>(q),
            at<const bf16>(weights),
            at<const uint8_t>(keys),
            at<const int32_t>(block_tables),
            at<const int32_t>(seq_of_row),
            at<const int32_t>(visible),
            at<const int32_t>(candidate_blocks),
            sizes[0],
            sizes[1],
            sizes[2],
            sizes[3],
            sizes[4],
            sizes[5],
            sizes[6],
            sizes[7]};
  }
};

template <class... Args>
void bind(py::module_& m, const char* name, void (*op)(Args...)) {
  m.def(
      name, [op](typename Argument<Args>::Type... args) { op(Argument<Args>::convert(args)...); },
      py::call_guard<py::gil_scoped_release>());
}

// Smallest and largest of `count` >= 1 indices.
template <class T>
std::pair<int64_t, int64_t> extremes(const T* indices, int64_t count) {
  T low = indices[0], high = indices[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, indices[i]);
    high = std::max(high, indices[i]);
  }
  return {low, high};
}

// A pool as others see it. Lives as long as its capsule.
struct OwnedPool : HostPool {
  explicit OwnedPool(int num_threads) : pool(num_threads) {
    static_cast<HostPool&>(*this) = pool.as_host_pool(
        [](void* self) -> void* { return bind_pool(static_cast<ThreadPool*>(self)); });
  }
  ThreadPool pool;
};

py::capsule new_host_pool(std::optional<int> num_threads) {
  auto owned = std::make_unique<OwnedPool>(num_threads.value_or(usable_cpus()));
  const auto destroy = [](PyObject* capsule) {
    delete static_cast<OwnedPool*>(static_cast<HostPool*>(PyCapsule_GetPointer(capsule, kHostPoolName)));
  };
  const py::capsule capsule(static_cast<HostPool*>(owned.get()), kHostPoolName, destroy);
  owned.release();
  return capsule;
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels of DeepInfer.";

  m.def("set_num_threads", &set_num_threads, py::arg("n"));
  m.def("get_num_threads", &num_threads);
  m.def("usable_cpus", &usable_cpus);
  m.def("new_host_pool", &new_host_pool, py::arg("num_threads"));
  m.def("set_isa", [](const std::string& name) { set_isa(name.c_str()); }, py::arg("name"));
  m.def("get_isa", [] { return core().name; });
  m.def("extremes", [](Address indices, bool is_int64, int64_t count) {
    return is_int64 ? extremes(at<const int64_t>(indices), count) : extremes(at<const int32_t>(indices), count);
  });

  bind(m, "linear", &linear);
  bind(m, "grouped_linear", &grouped_linear);
  bind(m, "quantize_dequantize", &quantize_dequantize);
  bind(m, "pack_kv", &pack_kv);
  bind(m, "unpack_kv", &unpack_kv);
  bind(m, "store_records", &store_records);
  bind(m, "rms_norm", &rms_norm);
  bind(m, "rope_table", &rope_table);
  bind(m, "apply_rope", &apply_rope);
  bind(m, "apply_rope_half_split", &apply_rope_half_split);
  bind(m, "hyper_connection_mix", &hyper_connection_mix);
  bind(m, "hyper_connection_collapse", &hyper_connection_collapse);
  bind(m, "hyper_connection_expand", &hyper_connection_expand);
  bind(m, "swiglu", &swiglu);
  bind(m, "route_experts", &route_experts);
  bind(m, "moe_experts", &moe_experts);
  bind(m, "compress_pool", &compress_pool);
  bind(m, "store_compress_state", &store_compress_state);
  bind(m, "index_topk", &index_topk);
  bind(m, "sparse_attention", &sparse_attention);
  bind(m, "draft_attention", &draft_attention);
  bind(m, "gathered_attention", &gathered_attention);
  bind(m, "paged_attention", &paged_attention);
  bind(m, "engram_gate", &engram_gate);
}
