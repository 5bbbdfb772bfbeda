#include <algorithm>
#include <limits>
#include <vector>

#include "attention.h"
#include "linear.h"

namespace deepinfer {
namespace {

// Scores of one pair and chunk: fold() fills up to a multiple of 16 from wherever the visible ones begin.
constexpr int64_t kStride = kProbabilityChunk + 16;

// Neighbouring rows of one sequence and query heads of one KV head: all read the same keys. A pair is one of
// its rows with one of its heads; pairs are counted row by row.
struct Block {
  int64_t row, rows, head, heads;
  int64_t pairs() const { return rows * heads; }
};

// Places [first, last) of a chunk of positions.
struct Span {
  int64_t first, last;
  bool operator==(const Span&) const = default;
};

// One block's attention, a chunk of positions after the other.
class BlockAttention {
 public:
  BlockAttention(const bf16* q, float scale, const Pages& pages, const Block& block, int64_t H, int64_t D)
      : pages_(pages),
        block_(block),
        scale_(scale),
        D_(D),
        width_(round_up(D, 32)),
        kv_head_(block.head / (H / pages.heads)),
        table_(pages.block_tables + pages.seq_of_row[block.row] * pages.max_pages),
        q_(block.pairs(), D),
        scores_(block.pairs() * kStride),
        values_(kProbabilityChunk * width_),
        total_(block.pairs() * width_),
        peak_(block.pairs(), -std::numeric_limits<float>::infinity()),
        denominator_(block.pairs(), 0.0f),
        shrink_(block.pairs()) {
    for (int64_t i = 0; i < block.pairs(); ++i)
      q_.set(i, q + ((block.row + i / block.heads) * H + block.head + i % block.heads) * D);
    for (int64_t i = 0; i < kProbabilityChunk; ++i) value_at_[i] = values_.data() + i * width_;
    std::fill(total_.data(), total_.data() + block.pairs() * width_, 0.0f);
  }

  void run(bf16* out, int64_t H) {
    int64_t first = begin_of(0), last = 0;
    for (int64_t r = 0; r < block_.rows; ++r) {
      first = std::min(first, begin_of(r));
      last = std::max(last, end_of(r));
    }
    // Chunks begin at multiples of their length, so that a row's sums do not depend on its block.
    for (int64_t begin = first / kProbabilityChunk * kProbabilityChunk; begin < last;
         begin += kProbabilityChunk) {
      const int64_t end = std::min(begin + kProbabilityChunk, last);
      score(begin, std::max(begin, first), end);
      for (int64_t at = std::max(begin, first); at < end; ++at)
        core().split_bf16(entry(pages_.values, at), D_, values_.data() + (at - begin) * width_);
      add(begin);
    }
    for (int64_t i = 0; i < block_.pairs(); ++i) {
      const int64_t row = block_.row + i / block_.heads, head = block_.head + i % block_.heads;
      finish(total_.data() + i * width_, denominator_[i], D_, out + (row * H + head) * D_);
    }
  }

 private:
  int64_t end_of(int64_t r) const { return pages_.positions[block_.row + r] + int64_t{1}; }
  int64_t begin_of(int64_t r) const { return std::max<int64_t>(0, end_of(r) - pages_.window); }

  const bf16* entry(const bf16* cache, int64_t position) const {
    const int64_t page = table_[position / pages_.entries];
    return cache + ((page * pages_.heads + kv_head_) * pages_.entries + position % pages_.entries) * D_;
  }

  // scores = q . key for the positions [from, end), in runs that lie side by side in a page.
  void score(int64_t begin, int64_t from, int64_t end) {
    for (int64_t at = from, next; at < end; at = next) {
      next = std::min({at + kColumnChunk, round_up(at + 1, pages_.entries), end});
      const Columns keys{Format::bf16, entry(pages_.keys, at), D_ * int64_t{sizeof(bf16)}};
      for (int64_t i = 0; i < block_.pairs(); i += kRowBlock)
        dot_products(q_.pointers() + i, std::min(kRowBlock, block_.pairs() - i), D_, keys, 0, next - at,
                     scores_.data() + i * kStride + at - begin, kStride);
    }
  }

  // Adds the chunk to all pairs, rows that see the same of it together.
  void add(int64_t begin) {
    const auto seen = [&](int64_t r) {
      return Span{std::clamp<int64_t>(begin_of(r) - begin, 0, kProbabilityChunk),
                  std::clamp<int64_t>(end_of(r) - begin, 0, kProbabilityChunk)};
    };
    for (int64_t r = 0, next; r < block_.rows; r = next) {
      const Span span = seen(r);
      for (next = r + 1; next < block_.rows && seen(next) == span;) ++next;
      if (span.first >= span.last) continue;
      const int64_t count = span.last - span.first;
      const int64_t pair = r * block_.heads, pairs = (next - r) * block_.heads;
      float* p = scores_.data() + pair * kStride + span.first;
      for (int64_t i = 0; i < pairs; ++i)
        shrink_[pair + i] =
            core().fold(p + i * kStride, count, scale_, &peak_[pair + i], &denominator_[pair + i]);
      core().add_weighted(p, kStride, shrink_.data() + pair, pairs, value_at_ + span.first, count, width_,
                          total_.data() + pair * width_);
    }
  }

  const Pages& pages_;
  const Block block_;
  const float scale_;
  const int64_t D_, width_, kv_head_;
  const int32_t* const table_;
  Rows q_;
  Buffer<float> scores_, values_, total_;
  std::vector<float> peak_, denominator_, shrink_;
  const float* value_at_[kProbabilityChunk];
};

// Blocks of up to kRowBlock pairs; fewer heads in each where that gives idle threads something to do.
std::vector<Block> blocks_of(const Pages& pages, int64_t N, int64_t H) {
  const int64_t group = H / pages.heads, height = std::max<int64_t>(1, kRowBlock / group);
  std::vector<Block> by_rows;
  for (int64_t row = 0, next; row < N; row = next) {
    const int32_t* owner = pages.seq_of_row;
    for (next = row + 1; next < N && next - row < height && owner[next] == owner[row];) ++next;
    by_rows.push_back({row, next - row, 0, 0});
  }
  const int64_t units = static_cast<int64_t>(by_rows.size()) * pages.heads;
  const int64_t shares = std::min(group, (num_threads() + units - 1) / std::max<int64_t>(units, 1));
  const int64_t width = (group + shares - 1) / std::max<int64_t>(shares, 1);
  std::vector<Block> blocks;
  for (const Block& rows : by_rows)
    for (int64_t first = 0; first < H; first += group)
      for (int64_t head = 0; head < group; head += width)
        blocks.push_back({rows.row, rows.rows, first + head, std::min(width, group - head)});
  return blocks;
}

}  // namespace

void paged_attention(const bf16* q, float scale, const Pages& pages, bf16* out, int64_t N, int64_t H,
                     int64_t D) {
  if (N == 0) return;
  const std::vector<Block> blocks = blocks_of(pages, N, H);
  const int64_t longest = *std::max_element(pages.positions, pages.positions + N) + int64_t{1};
  const int64_t keys = std::min(longest, pages.window);
  parallel_for(static_cast<int64_t>(blocks.size()), blocks[0].pairs() * D * keys / 8,
               [&](int64_t unit) { BlockAttention(q, scale, pages, blocks[unit], H, D).run(out, H); });
}

}  // namespace deepinfer
