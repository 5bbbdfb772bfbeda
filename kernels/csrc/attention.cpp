#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention.h"
#include "codec.h"
#include "linear.h"

namespace deepinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The visible keys of one row: where each lies, in split order, and which slot of the key list it takes.
struct Keys {
  std::vector<const float*> at;
  std::vector<int64_t> slot;

  void add(const float* key, int64_t place) {
    at.push_back(key);
    slot.push_back(place);
  }
  int64_t size() const { return static_cast<int64_t>(at.size()); }
  // End of the run from `begin` whose slots lie in one chunk.
  int64_t chunk_end(int64_t begin) const {
    int64_t end = begin;
    while (end < size() && slot[end] / kProbabilityChunk == slot[begin] / kProbabilityChunk) ++end;
    return end;
  }
};

// p[h] = q[h] . key for the keys [begin, end), a row of kProbabilityChunk per head.
void score(const Rows& q, int64_t heads, int64_t D, const Keys& keys, int64_t begin, int64_t end, float* p) {
  const Columns columns{Format::pointers, keys.at.data()};
  for (int64_t h = 0; h < heads; h += kRowBlock)
    for (int64_t c = begin; c < end; c += kColumnChunk)
      dot_products(q.pointers() + h, std::min(kRowBlock, heads - h), D, columns, c,
                   std::min(kColumnChunk, end - c), p + h * kProbabilityChunk + c - begin, kProbabilityChunk);
}

// Some heads of one row: q, sink and out start at the first of them.
void attend(const bf16* q, const float* sink, float scale, const Keys& keys, int64_t heads, int64_t D,
            bf16* out) {
  if (keys.size() == 0) {
    std::fill(out, out + heads * D, bf16{0});
    return;
  }
  Rows rows(heads, D);
  for (int64_t h = 0; h < heads; ++h) rows.set(h, q + h * D);
  Buffer<float> p(heads * kProbabilityChunk), total(heads * D);
  std::vector<float> peak(heads, -kInfinity), denominator(heads, 0.0f), shrink(heads);
  std::fill(total.data(), total.data() + heads * D, 0.0f);
  for (int64_t begin = 0, end; begin < keys.size(); begin = end) {
    end = keys.chunk_end(begin);
    score(rows, heads, D, keys, begin, end, p.data());
    for (int64_t h = 0; h < heads; ++h)
      shrink[h] =
          core().fold(p.data() + h * kProbabilityChunk, end - begin, scale, &peak[h], &denominator[h]);
    core().add_weighted(p.data(), kProbabilityChunk, shrink.data(), heads, keys.at.data() + begin,
                        end - begin, D, total.data());
  }
  for (int64_t h = 0; h < heads; ++h) {
    float sink_share = sink[h] - peak[h];
    core().exponentials(&sink_share, 1);
    finish(total.data() + h * D, denominator[h] + sink_share, D, out + h * D);
  }
}

// Run f(row, first head, heads): a row per unit, or a share of its heads when rows are few.
template <class F>
void for_each_row(int64_t N, int64_t H, int64_t work, const F& f) {
  const int64_t shares = N >= num_threads() ? 1 : std::min<int64_t>(H, num_threads());
  const int64_t width = (H + shares - 1) / shares;
  parallel_for(N * shares, work / shares, [&](int64_t unit) {
    const int64_t head = unit % shares * width;
    if (head < H) f(unit / shares, head, std::min(width, H - head));
  });
}

}  // namespace

void sparse_attention(const bf16* q, const float* sink, float scale, const Window& window,
                      const Compressed& compressed, bf16* out, int64_t N, int64_t H, int64_t D) {
  const int64_t record = codec_record_bytes(Codec::fp8_e8m0_32, D);
  const int64_t compressed_record = codec_record_bytes(Codec::fp4_e4m3_16, D);
  const auto window_key = [&](const uint8_t* bytes, float* key) {
    core().split_fp8(bytes, bytes + D, D, key);
  };
  Buffer<float> chunk(N * D);
  parallel_for(N, D, [&](int64_t n) { window_key(window.chunk + n * record, chunk.data() + n * D); });
  const int64_t most = window.size + compressed.topk;
  for_each_row(N, H, H * D * most / 8, [&](int64_t row, int64_t head, int64_t heads) {
    const int64_t position = window.positions[row], start = window.starts[row];
    const int64_t first = std::max<int64_t>(0, position - window.size + 1);
    Buffer<float> decoded(most * D);
    Keys keys;
    for (int64_t p = first; p <= position; ++p) {
      float* own = decoded.data() + keys.size() * D;
      const float* key = own;
      if (p >= start)
        key = chunk.data() + (row - (position - p)) * D;
      else
        window_key(window.ring + (window.slots[row] * window.ring_size + p % window.ring_size) * record, own);
      keys.add(key, p - first);
    }
    for (int64_t i = 0; i < compressed.topk; ++i) {
      const int64_t entry = compressed.indices[row * compressed.topk + i];
      if (entry < 0) break;
      float* own = decoded.data() + keys.size() * D;
      const uint8_t* bytes = compressed.entry(row, entry, compressed_record);
      core().split_fp4(bytes, bytes + D / 2, D, own);
      keys.add(own, window.size + i);
    }
    const int64_t offset = row * H + head;
    attend(q + offset * D, sink + head, scale, keys, heads, D, out + offset * D);
  });
}

void draft_attention(const bf16* q, const float* sink, float scale, const Drafts& drafts, bf16* out, int64_t N,
                     int64_t H, int64_t D) {
  const int64_t record = codec_record_bytes(Codec::fp8_e8m0_32, D);
  const int64_t B = drafts.rows, most = drafts.window + B;
  if (N == 0) return;
  // A block's rows share their keys: decode them once.
  Buffer<float> decoded(N / B * most * D);
  parallel_for(N / B, most * D, [&](int64_t block) {
    const int64_t start = drafts.starts[block];
    float* key = decoded.data() + block * most * D;
    const auto add = [&](const uint8_t* bytes) {
      core().split_fp8(bytes, bytes + D, D, key);
      key += D;
    };
    for (int64_t p = std::max<int64_t>(0, start - drafts.window); p < start; ++p)
      add(drafts.ring + (drafts.slots[block] * drafts.ring_size + p % drafts.ring_size) * record);
    for (int64_t i = 0; i < B; ++i) add(drafts.block + (block * B + i) * record);
  });
  for_each_row(N, H, H * D * most / 8, [&](int64_t row, int64_t head, int64_t heads) {
    const int64_t block = row / B, held = std::clamp<int64_t>(drafts.starts[block], 0, drafts.window);
    const float* key = decoded.data() + block * most * D;
    Keys keys;
    for (int64_t i = 0; i < held + B; ++i) keys.add(key + i * D, i < held ? i : drafts.window + i - held);
    const int64_t offset = row * H + head;
    attend(q + offset * D, sink + head, scale, keys, heads, D, out + offset * D);
  });
}

void gathered_attention(const bf16* q, const bf16* keys, const int32_t* indices, const float* sink,
                        float scale, bf16* out, int64_t N, int64_t H, int64_t D, int64_t entries, int64_t K) {
  Buffer<float> values(entries * D);
  for (int64_t i = 0; i < entries; ++i) core().split_bf16(keys + i * D, D, values.data() + i * D);
  for_each_row(N, H, H * D * K / 8, [&](int64_t row, int64_t head, int64_t heads) {
    Keys visible;
    for (int64_t i = 0; i < K; ++i) {
      const int64_t entry = indices[row * K + i];
      if (entry >= 0) visible.add(values.data() + entry * D, i);
    }
    const int64_t offset = row * H + head;
    attend(q + offset * D, sink + head, scale, visible, heads, D, out + offset * D);
  });
}

}  // namespace deepinfer
