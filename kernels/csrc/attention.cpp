#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codec.h"
#include "linear.h"

namespace deepinfer {
namespace {

constexpr int64_t kProbabilityChunk = 64;  // slots over which probabilities share a running maximum
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float exponential(float x) {
  core().exponentials(&x, 1);
  return x;
}

// The visible keys of one row: where each lies, as float32, and which slot of the key list it takes.
struct Keys {
  std::vector<const float*> at;
  std::vector<int64_t> slot;

  void add(const float* key, int64_t place) {
    at.push_back(key);
    slot.push_back(place);
  }
  int64_t size() const { return static_cast<int64_t>(at.size()); }
};

// Running softmax state of the heads a unit works on.
struct Heads {
  int64_t count, dim;
  Buffer<float> scores, probabilities, total, peak, denominator;

  Heads(int64_t heads, int64_t keys, int64_t D)
      : count(heads),
        dim(D),
        scores(heads * keys),
        probabilities(heads * kProbabilityChunk),
        total(heads * D),
        peak(heads),
        denominator(heads) {
    std::fill(total.data(), total.data() + heads * D, 0.0f);
    std::fill(peak.data(), peak.data() + heads, -kInfinity);
    std::fill(denominator.data(), denominator.data() + heads, 0.0f);
  }
};

float sum_in_lanes(const float* x, int64_t n) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] += x[i];
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Fold keys [begin, end), which lie in one chunk of slots, into head h.
void fold_scores(Heads& heads, int64_t h, int64_t keys, int64_t begin, int64_t end) {
  const float* scores = heads.scores.data() + h * keys;
  float* p = heads.probabilities.data() + h * kProbabilityChunk;
  float* total = heads.total.data() + h * heads.dim;
  const int64_t count = end - begin;
  const float peak = std::max(heads.peak[h], *std::max_element(scores + begin, scores + end));
  const float shrink = exponential(heads.peak[h] - peak);
  for (int64_t i = 0; i < count; ++i) p[i] = scores[begin + i] - peak;
  core().exponentials(p, count);
  heads.denominator[h] = heads.denominator[h] * shrink + sum_in_lanes(p, count);
  heads.peak[h] = peak;
  for (int64_t i = 0; i < count; ++i) p[i] = round_to_bf16(p[i]);
  for (int64_t d = 0; d < heads.dim; ++d) total[d] *= shrink;
}

void score(const bf16* q, const Keys& keys, float scale, Heads& heads) {
  const int64_t D = heads.dim, n = keys.size();
  Rows rows(heads.count, D);
  for (int64_t h = 0; h < heads.count; ++h) rows.set(h, q + h * D);
  Buffer<float> scratch(dot_scratch(std::min(heads.count, kRowBlock)));
  const Columns columns{Format::pointers, keys.at.data()};
  for (int64_t h = 0; h < heads.count; h += kRowBlock)
    for (int64_t c = 0; c < n; c += kColumnChunk)
      core().dot_products(rows.pointers() + h, std::min(kRowBlock, heads.count - h), D, columns, c,
                          std::min(kColumnChunk, n - c), heads.scores.data() + h * n + c, n, scratch.data());
  for (int64_t i = 0; i < heads.count * n; ++i) heads.scores[i] *= scale;
}

// Some heads of one row: q, sink and out start at the first of them.
void attend(const bf16* q, const float* sink, float scale, const Keys& keys, int64_t count, int64_t D,
            bf16* out) {
  const int64_t n = keys.size();
  if (n == 0) return std::fill(out, out + count * D, bf16{0});
  Heads heads(count, n, D);
  score(q, keys, scale, heads);
  for (int64_t begin = 0, end; begin < n; begin = end) {
    const int64_t chunk = keys.slot[begin] / kProbabilityChunk;
    for (end = begin; end < n && keys.slot[end] / kProbabilityChunk == chunk;) ++end;
    for (int64_t h = 0; h < count; ++h) fold_scores(heads, h, n, begin, end);
    core().add_weighted(heads.probabilities.data(), kProbabilityChunk, count, keys.at.data() + begin,
                        end - begin, D, heads.total.data());
  }
  for (int64_t h = 0; h < count; ++h) {
    const float denominator = heads.denominator[h] + exponential(sink[h] - heads.peak[h]);
    for (int64_t d = 0; d < D; ++d) out[h * D + d] = to_bf16(heads.total[h * D + d] / denominator);
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
  Buffer<float> chunk(N * D);
  parallel_for(N, 4 * D, [&](int64_t n) {
    unpack_row(Codec::fp8_e8m0_32, window.chunk + n * record, D, chunk.data() + n * D);
  });
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
        unpack_row(Codec::fp8_e8m0_32,
                   window.ring + (window.slots[row] * window.ring_size + p % window.ring_size) * record, D,
                   own);
      keys.add(key, p - first);
    }
    for (int64_t i = 0; i < compressed.topk; ++i) {
      const int64_t entry = compressed.indices[row * compressed.topk + i];
      if (entry < 0) break;
      float* own = decoded.data() + keys.size() * D;
      unpack_row(Codec::fp4_e4m3_16, compressed.entry(row, entry, compressed_record), D, own);
      keys.add(own, window.size + i);
    }
    const int64_t offset = row * H + head;
    attend(q + offset * D, sink + head, scale, keys, heads, D, out + offset * D);
  });
}

void gathered_attention(const bf16* q, const bf16* keys, const int32_t* indices, const float* sink,
                        float scale, bf16* out, int64_t N, int64_t H, int64_t D, int64_t entries, int64_t K) {
  Buffer<float> values(entries * D);
  widen(keys, values.data(), entries * D);
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
