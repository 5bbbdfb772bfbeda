#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "codec.h"
#include "linear.h"

namespace deepinfer {
namespace {

constexpr int64_t kSegment = 1536;             // entries scored per unit; a multiple of kColumnChunk
constexpr int64_t kScores = int64_t{1} << 24;  // scores kept at once
constexpr int64_t kBatch = 1024;               // rows at once: bounds the float32 copy of q

// The entries that compete for one row, as positions of a pool.
struct Pool {
  const int32_t* blocks;  // ascending candidate blocks, or null: every visible entry
  int64_t block_size;
  int64_t size;

  Pool(const IndexQuery& query, int64_t row)
      : blocks(nullptr), block_size(query.block_size), size(query.visible[row]) {
    if (query.candidates < 0) return;
    blocks = query.candidate_blocks + row * query.candidates;
    int64_t count = 0;
    while (count < query.candidates && blocks[count] >= 0 && blocks[count] * block_size < size) ++count;
    // Only the last block can reach beyond the visible entries.
    const int64_t beyond = count ? std::max<int64_t>(0, (blocks[count - 1] + 1) * block_size - size) : 0;
    size = count * block_size - beyond;
  }
  int64_t entry(int64_t position) const {
    return blocks ? blocks[position / block_size] * block_size + position % block_size : position;
  }
  // Pool positions from `position` on whose entries are neighbours.
  int64_t run(int64_t position) const {
    return blocks ? std::min(block_size - position % block_size, size - position) : size - position;
  }
};

// Scores of `count` <= kColumnChunk neighbouring keys; `products` has kIndexKeys floats per head.
void score_keys(const IndexQuery& query, const float* weights, const float* const* heads,
                const uint8_t* records, int64_t count, float* products, float* out) {
  const int64_t record = codec_record_bytes(Codec::fp4_e8m0_32, query.D);
  const Columns columns{Format::fp4, records, record, records + query.D / 2, record, 0};
  for (int64_t h = 0; h < query.H; h += kRowBlock)
    dot_products(heads + h, std::min(kRowBlock, query.H - h), query.D, columns, 0, count,
                 products + h * kIndexKeys, kIndexKeys);
  float scores[kIndexKeys];
  core().index_scores(products, weights, query.H, scores);
  std::copy(scores, scores + count, out);
}

void score_segment(const IndexQuery& query, int64_t row, const Pool& pool, const float* const* heads,
                   int64_t begin, float* scores) {
  const int64_t record = codec_record_bytes(Codec::fp4_e8m0_32, query.D);
  const int32_t* table = query.block_tables + query.seq_of_row[row] * query.max_pages;
  const int64_t end = std::min(begin + kSegment, pool.size);
  Buffer<float> products(query.H * kIndexKeys);
  Buffer<float> weights(query.H);
  std::fill(products.data(), products.data() + query.H * kIndexKeys, 0.0f);
  widen(query.weights + row * query.H, weights.data(), query.H);
  for (int64_t position = begin; position < end;) {
    const int64_t entry = pool.entry(position), offset = entry % query.page_entries;
    const int64_t count =
        std::min({pool.run(position), query.page_entries - offset, end - position, kColumnChunk});
    const uint8_t* records =
        query.keys + (table[entry / query.page_entries] * query.page_entries + offset) * record;
    score_keys(query, weights.data(), heads, records, count, products.data(), scores + position);
    position += count;
  }
}

// A score and its place in one integer: larger scores first, then lower places.
uint64_t rank(float score, int64_t place) {
  const uint32_t bits = to_bits(score);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}

// Places of the `count` best scores, ascending.
std::vector<int64_t> best(const float* scores, int64_t n, int64_t count) {
  std::vector<int64_t> places;
  if (n <= count) {
    for (int64_t i = 0; i < n; ++i) places.push_back(i);
    return places;
  }
  std::vector<uint64_t> ranks(n);
  for (int64_t i = 0; i < n; ++i) ranks[i] = rank(scores[i], i);
  std::nth_element(ranks.begin(), ranks.begin() + count, ranks.end(), std::greater<uint64_t>());
  for (int64_t i = 0; i < count; ++i) places.push_back(0xffffffffu - static_cast<uint32_t>(ranks[i]));
  std::sort(places.begin(), places.end());
  return places;
}

std::vector<int64_t> best_blocks(const float* scores, int64_t n, int64_t block_size, int64_t count) {
  std::vector<float> peaks;
  for (int64_t begin = 0; begin < n; begin += block_size)
    peaks.push_back(*std::max_element(scores + begin, scores + std::min(begin + block_size, n)));
  if (!peaks.empty())
    peaks.back() = std::numeric_limits<float>::infinity();  // the newest entry's block stays
  return best(peaks.data(), static_cast<int64_t>(peaks.size()), count);
}

void select(const IndexQuery& query, const Pool& pool, const float* scores, int32_t* indices,
            int32_t* blocks) {
  std::fill(indices, indices + query.topk, -1);
  for (const int64_t place : best(scores, pool.size, query.topk))
    *indices++ = static_cast<int32_t>(pool.entry(place));
  if (query.keep_blocks == 0) return;
  std::fill(blocks, blocks + query.keep_blocks, -1);
  for (const int64_t block : best_blocks(scores, pool.size, query.block_size, query.keep_blocks))
    *blocks++ = static_cast<int32_t>(block);
}

}  // namespace

void index_topk(const IndexQuery& query, int32_t* indices, int32_t* blocks, int64_t N) {
  std::vector<Pool> pools;
  int64_t longest = 1;
  for (int64_t n = 0; n < N; ++n) {
    pools.emplace_back(query, n);
    longest = std::max(longest, pools.back().size);
  }
  const int64_t batch = std::max<int64_t>(1, std::min({N, kBatch, kScores / longest}));
  const int64_t segments = (longest + kSegment - 1) / kSegment;
  Buffer<float> scores(batch * longest);
  for (int64_t start = 0; start < N; start += batch) {
    const int64_t rows = std::min(batch, N - start);
    Rows heads(rows * query.H, query.D);
    parallel_for(rows * query.H, query.D,
                 [&](int64_t i) { heads.set(i, query.q + (start * query.H + i) * query.D); });
    parallel_for(rows * segments, query.H * query.D * std::min(longest, kSegment) / 16, [&](int64_t unit) {
      const int64_t n = unit / segments, begin = unit % segments * kSegment;
      if (begin < pools[start + n].size)
        score_segment(query, start + n, pools[start + n], heads.pointers() + n * query.H, begin,
                      scores.data() + n * longest);
    });
    parallel_for(rows, 8 * longest, [&](int64_t n) {
      const int64_t row = start + n;
      select(query, pools[row], scores.data() + n * longest, indices + row * query.topk,
             blocks + row * query.keep_blocks);
    });
  }
}

}  // namespace deepinfer
