#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"

namespace deepinfer {
namespace {

constexpr int64_t kBatch = 1024;  // rows per pass: bounds the float32 copies

float softplus(float x) {
  return x > 20.0f ? x : static_cast<float>(std::log1p(std::exp(static_cast<double>(x))));
}

// out[i] = weight * silu(min(a, limit)) * clamp(b, +-limit), rounded to bf16.
void gated(const float* a, const float* b, float limit, const float* weight, bf16* out, int64_t n) {
  constexpr int64_t kChunk = 64;
  float gate[kChunk], power[kChunk];
  for (int64_t start = 0; start < n; start += kChunk) {
    const int64_t count = std::min(kChunk, n - start);
    for (int64_t i = 0; i < count; ++i) {
      gate[i] = std::min(a[start + i], limit);
      power[i] = -gate[i];
    }
    core().exponentials(power, count);
    for (int64_t i = 0; i < count; ++i) {
      float hidden = gate[i] / (1.0f + power[i]) * std::min(std::max(b[start + i], -limit), limit);
      if (weight != nullptr) hidden = *weight * hidden;
      out[start + i] = to_bf16(hidden);
    }
  }
}

// Places (row, choice) sorted by expert, then by row.
struct Routing {
  std::vector<int64_t> place;  // row * k + choice, per sorted slot
  std::vector<int64_t> slot;   // inverse
  std::vector<int64_t> begin;  // first slot of each expert; one more at the end

  Routing(const int32_t* ids, int64_t places, int64_t experts)
      : place(places), slot(places), begin(experts + 1) {
    for (int64_t i = 0; i < places; ++i) ++begin[ids[i] + 1];
    for (int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t i = 0; i < places; ++i) {
      slot[i] = next[ids[i]]++;
      place[slot[i]] = i;
    }
  }
};

// A block of one expert's slots times a chunk of its outputs.
struct Task {
  int64_t expert, slot, rows, column, columns;
};

std::vector<Task> tasks_of(const Routing& routing, int64_t M) {
  std::vector<Task> tasks;
  const int64_t experts = static_cast<int64_t>(routing.begin.size()) - 1;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t s = routing.begin[e]; s < routing.begin[e + 1]; s += kRowBlock)
      for (int64_t c = 0; c < M; c += kColumnChunk)
        tasks.push_back(
            {e, s, std::min(kRowBlock, routing.begin[e + 1] - s), c, std::min(kColumnChunk, M - c)});
  return tasks;
}

void round_all(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = round_to_bf16(values[i]);
}

void set_row(Rows& rows, int64_t r, const bf16* x, bool quantize) {
  quantize ? rows.set_quantized(r, x) : rows.set(r, x);
}

struct Experts {
  const Weight &w1, &w2, &w3;
  float limit;
  bool quantize;
};

// hidden[slot] = gated product of the slot's row with its expert's w1 and w3.
void expert_hidden(const Experts& experts, const Routing& routing, const float* const* rows,
                   const float* weights, int64_t k, bf16* hidden) {
  const int64_t K = experts.w1.K, I = experts.w1.M;
  std::vector<const float*> x(routing.place.size());
  for (size_t s = 0; s < x.size(); ++s) x[s] = rows[routing.place[s] / k];
  const std::vector<Task> tasks = tasks_of(routing, I);
  parallel_for(static_cast<int64_t>(tasks.size()), 2 * K * kColumnChunk / 16, [&](int64_t i) {
    const Task& task = tasks[i];
    float a[kRowBlock * kColumnChunk], b[kRowBlock * kColumnChunk];
    dot_products(x.data() + task.slot, task.rows, K, experts.w1.columns(task.expert), task.column,
                 task.columns, a, kColumnChunk);
    dot_products(x.data() + task.slot, task.rows, K, experts.w3.columns(task.expert), task.column,
                 task.columns, b, kColumnChunk);
    for (int64_t r = 0; r < task.rows; ++r) {
      float *gate = a + r * kColumnChunk, *up = b + r * kColumnChunk;
      round_all(gate, task.columns);
      round_all(up, task.columns);
      gated(gate, up, experts.limit, weights + routing.place[task.slot + r],
            hidden + (task.slot + r) * I + task.column, task.columns);
    }
  });
}

// out[slot] = hidden[slot] . w2 of its expert.
void expert_outputs(const Experts& experts, const Routing& routing, const bf16* hidden, bf16* out) {
  const int64_t I = experts.w2.K, d = experts.w2.M, slots = static_cast<int64_t>(routing.place.size());
  Rows rows(slots, I);
  parallel_for(slots, 4 * I, [&](int64_t s) { set_row(rows, s, hidden + s * I, experts.quantize); });
  const std::vector<Task> tasks = tasks_of(routing, d);
  parallel_for(static_cast<int64_t>(tasks.size()), I * kColumnChunk / 16, [&](int64_t i) {
    const Task& task = tasks[i];
    float sums[kRowBlock * kColumnChunk];
    dot_products(rows.pointers() + task.slot, task.rows, I, experts.w2.columns(task.expert), task.column,
                 task.columns, sums, kColumnChunk);
    for (int64_t r = 0; r < task.rows; ++r)
      narrow(sums + r * kColumnChunk, out + (task.slot + r) * d + task.column, task.columns);
  });
}

void moe_batch(const bf16* x, const int32_t* ids, const float* weights, const Experts& experts, int64_t count,
               float* out, int64_t N, int64_t k) {
  const int64_t d = experts.w1.K, I = experts.w1.M;
  const Routing routing(ids, N * k, count);
  Buffer<bf16> hidden(N * k * I), outputs(N * k * d);
  {
    Rows rows(N, d);
    parallel_for(N, 4 * d, [&](int64_t n) { set_row(rows, n, x + n * d, experts.quantize); });
    expert_hidden(experts, routing, rows.pointers(), weights, k, hidden.data());
  }
  expert_outputs(experts, routing, hidden.data(), outputs.data());
  parallel_for(N, k * d, [&](int64_t n) {
    std::vector<int64_t> slots(routing.slot.begin() + n * k, routing.slot.begin() + (n + 1) * k);
    std::sort(slots.begin(), slots.end());  // ascending expert
    float* total = out + n * d;
    std::fill(total, total + d, 0.0f);
    for (const int64_t slot : slots)
      for (int64_t i = 0; i < d; ++i) total[i] += from_bf16(outputs[slot * d + i]);
  });
}

}  // namespace

void swiglu(const bf16* a, const bf16* b, float limit, bf16* out, int64_t N, int64_t I) {
  parallel_for(N, 16 * I, [&](int64_t n) {
    Buffer<float> gate(I), up(I);
    widen(a + n * I, gate.data(), I);
    widen(b + n * I, up.data(), I);
    gated(gate.data(), up.data(), limit, nullptr, out + n * I, I);
  });
}

void route_experts(const bf16* x, const bf16* weight, const float* bias, int64_t k, float route_scale,
                   bool normalize, int32_t* ids, float* weights, int64_t N, int64_t E, int64_t d) {
  Buffer<float> scores(N * E);
  linear({x, false}, {Format::bf16, reinterpret_cast<const uint8_t*>(weight), nullptr, E, d},
         {scores.data(), true}, N, false);
  parallel_for(N, E * (k + 40), [&](int64_t n) {
    float* score = scores.data() + n * E;
    std::vector<float> biased(E);
    std::vector<int32_t> order(E);
    for (int64_t e = 0; e < E; ++e) {
      score[e] = std::sqrt(softplus(score[e]));
      biased[e] = score[e] + bias[e];
      order[e] = static_cast<int32_t>(e);
    }
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
      return biased[a] > biased[b] || (biased[a] == biased[b] && a < b);
    });
    float total = 0.0f;
    for (int64_t i = 0; i < k; ++i) total += score[order[i]];
    for (int64_t i = 0; i < k; ++i) {
      const float share = normalize && k > 1 ? score[order[i]] / (total + 1e-20f) : score[order[i]];
      ids[n * k + i] = order[i];
      weights[n * k + i] = share * route_scale;
    }
  });
}

void moe_experts(const bf16* x, const int32_t* ids, const float* weights, const Weight& w1, const Weight& w2,
                 const Weight& w3, float limit, bool quantize, float* out, int64_t N, int64_t k,
                 int64_t experts) {
  const int64_t d = w1.K;
  for (int64_t start = 0; start < N; start += kBatch)
    moe_batch(x + start * d, ids + start * k, weights + start * k, {w1, w2, w3, limit, quantize}, experts,
              out + start * d, std::min(kBatch, N - start), k);
}

}  // namespace deepinfer
