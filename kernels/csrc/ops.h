// The operators, on contiguous arrays. Shapes are in the comments; `bf16` arrays are uint16_t.
#pragma once

#include <cstdint>

#include "codec.h"
#include "core.h"

namespace deepinfer {

using bf16 = uint16_t;

// A matrix [M, K] or a stack of them, as its storage describes it.
struct Weight {
  Format format;
  const uint8_t* data;
  const uint8_t* scale;
  int64_t M, K;

  // Member `index` of a stack, as columns of a product.
  Columns columns(int64_t index = 0) const;
};

// A dense array of bf16 or float32.
struct Input {
  const void* data;
  bool is_f32;
};
struct Output {
  void* data;
  bool is_f32;
};

// x [N, K] -> out [N, M]; `quantize`: x goes through the fp8 codec first.
void linear(Input x, const Weight& weight, Output out, int64_t N, bool quantize);
// x [N, G, K], weight [G * R, K] -> out [N, G, R].
void grouped_linear(const bf16* x, const Weight& weight, bf16* out, int64_t N, int64_t G);

// ---- numbers and cache records

// x [N, D] -> out [N, D]; D a multiple of the codec's group.
void quantize_dequantize(const bf16* x, Codec codec, bf16* out, int64_t N, int64_t D);
void pack_kv(const bf16* x, Codec codec, uint8_t* records, int64_t N, int64_t D);
void unpack_kv(const uint8_t* records, Codec codec, bf16* out, int64_t N, int64_t D);
// cache [entries, bytes][slots[n]] = records[n]; negative slots are skipped.
void store_records(uint8_t* cache, const int64_t* slots, const uint8_t* records, int64_t N, int64_t bytes);

// ---- norm and rotation

void rms_norm(Input x, Input weight, float eps, bf16* out, int64_t N, int64_t D);
void rope_table(const int64_t* positions, const float* inv_freq, float* cos, float* sin, int64_t N,
                int64_t half);
// x [N, H, D]; cos, sin [N, half] turn the trailing 2 * half dimensions.
void apply_rope(const bf16* x, const float* cos, const float* sin, bool inverse, bf16* out, int64_t N,
                int64_t H, int64_t D, int64_t half);
// x [N, H, D]; cos, sin [N, half] turn dimension i < half with dimension half + i.
void apply_rope_half_split(const bf16* x, const float* cos, const float* sin, bf16* out, int64_t N, int64_t H,
                           int64_t D, int64_t half);

// ---- hyper-connections: m streams of width d

void hyper_connection_mix(const bf16* x, const float* fn, const float* base, const float* scale,
                          int64_t iterations, float eps, float norm_eps, float* pre, float* post, float* comb,
                          int64_t N, int64_t m, int64_t d);
void hyper_connection_collapse(const bf16* x, const float* pre, bf16* out, int64_t N, int64_t m, int64_t d);
void hyper_connection_expand(const bf16* y, const bf16* x, const float* post, const float* comb, bf16* out,
                             int64_t N, int64_t m, int64_t d);

// ---- experts

void swiglu(const bf16* a, const bf16* b, float limit, bf16* out, int64_t N, int64_t I);
void route_experts(const bf16* x, const bf16* weight, const float* bias, int64_t k, float route_scale,
                   bool normalize, int32_t* ids, float* weights, int64_t N, int64_t E, int64_t d);
void moe_experts(const bf16* x, const int32_t* ids, const float* weights, const Weight& w1, const Weight& w2,
                 const Weight& w3, float limit, bool quantize, float* out, int64_t N, int64_t k,
                 int64_t experts);

// ---- attention

// members [G, ratio]: a row, or -1 - place in the state; places [N]: in the state, -1 for none.
void compress_pool(const float* values, const float* scores, const float* state, const int64_t* members,
                   float* out, int64_t G, int64_t D, int64_t ratio);
void store_compress_state(const float* values, const float* scores, float* state, const int64_t* places,
                          int64_t N, int64_t D);

struct IndexQuery {
  const bf16* q;                    // [N, H, D]
  const bf16* weights;              // [N, H]
  const uint8_t* keys;              // [pages, page_entries, record]
  const int32_t* block_tables;      // [sequences, max_pages]
  const int32_t* seq_of_row;        // [N]
  const int32_t* visible;           // [N]
  const int32_t* candidate_blocks;  // [N, candidates]; candidates is -1 for no restriction
  int64_t H, D, page_entries, max_pages, topk, candidates, block_size, keep_blocks;
};
void index_topk(const IndexQuery& query, int32_t* indices, int32_t* blocks, int64_t N);

struct Window {
  const uint8_t* ring;                        // [slots, ring_size, record]
  const uint8_t* chunk;                       // [N, record]
  const int32_t *slots, *starts, *positions;  // [N]
  int64_t ring_size, size;
};
struct Compressed {
  const uint8_t* cache;                                // [pages, page_entries, record]
  const int32_t *block_tables, *seq_of_row, *indices;  // [sequences, max_pages], [N], [N, topk]
  int64_t page_entries, max_pages, topk;

  const uint8_t* entry(int64_t row, int64_t index, int64_t record) const {
    const int64_t page = block_tables[seq_of_row[row] * max_pages + index / page_entries];
    return cache + (page * page_entries + index % page_entries) * record;
  }
};
void sparse_attention(const bf16* q, const float* sink, float scale, const Window& window,
                      const Compressed& compressed, bf16* out, int64_t N, int64_t H, int64_t D);
struct Drafts {
  const uint8_t* ring;            // [slots, ring_size, record]
  const uint8_t* block;           // [N, record]
  const int32_t *slots, *starts;  // [N / rows]
  int64_t ring_size, window, rows;
};
void draft_attention(const bf16* q, const float* sink, float scale, const Drafts& drafts, bf16* out, int64_t N,
                     int64_t H, int64_t D);
// The same softmax over plain keys [entries, D] picked by indices [N, K], -1 for an empty place of the list.
void gathered_attention(const bf16* q, const bf16* keys, const int32_t* indices, const float* sink,
                        float scale, bf16* out, int64_t N, int64_t H, int64_t D, int64_t entries, int64_t K);
struct Pages {
  const bf16 *keys, *values;                             // [pages, heads, entries, D]
  const int32_t *block_tables, *seq_of_row, *positions;  // [sequences, max_pages], [N], [N]
  int64_t heads, entries, max_pages, window;             // window: most positions that a row sees
};
// q [N, H, D]; H a multiple of pages.heads.
void paged_attention(const bf16* q, float scale, const Pages& pages, bf16* out, int64_t N, int64_t H,
                     int64_t D);

// ---- n-gram memory

void engram_gate(const bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight, float norm_eps,
                 float clamp, const bool* mask, bf16* out, int64_t N, int64_t m, int64_t d);

}  // namespace deepinfer
