#include <algorithm>
#include <cmath>

#include "linear.h"

namespace deepinfer {
namespace {

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x)))); }

// Softmax of each row of [m, m], plus eps.
void softmax_rows(float* comb, int64_t m, float eps) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = comb + i * m;
    const float peak = *std::max_element(row, row + m);
    float total = 0.0f;
    for (int64_t j = 0; j < m; ++j)
      total += row[j] = static_cast<float>(std::exp(static_cast<double>(row[j] - peak)));
    for (int64_t j = 0; j < m; ++j) row[j] = row[j] / total + eps;
  }
}

// Divide every line of [m, m] by its sum + eps: rows for stride 1, columns for stride m.
void normalize(float* comb, int64_t m, int64_t stride, float eps) {
  const int64_t next = stride == 1 ? m : 1;
  for (int64_t i = 0; i < m; ++i) {
    float* line = comb + i * next;
    float total = 0.0f;
    for (int64_t j = 0; j < m; ++j) total += line[j * stride];
    for (int64_t j = 0; j < m; ++j) line[j * stride] /= total + eps;
  }
}

void sinkhorn(float* comb, int64_t m, int64_t iterations, float eps) {
  softmax_rows(comb, m, eps);
  normalize(comb, m, m, eps);
  for (int64_t i = 1; i < iterations; ++i) {
    normalize(comb, m, 1, eps);
    normalize(comb, m, m, eps);
  }
}

// out = sum over i of weights[i * stride] * x[i], in order of i.
void mix_streams(const bf16* x, const float* weights, int64_t stride, int64_t m, int64_t d, float* out) {
  for (int64_t k = 0; k < d; ++k) out[k] = weights[0] * from_bf16(x[k]);
  for (int64_t i = 1; i < m; ++i) {
    const float weight = weights[i * stride];
    for (int64_t k = 0; k < d; ++k) out[k] += weight * from_bf16(x[i * d + k]);
  }
}

}  // namespace

void hyper_connection_mix(const bf16* x, const float* fn, const float* base, const float* scale,
                          int64_t iterations, float eps, float norm_eps, float* pre, float* post, float* comb,
                          int64_t N, int64_t m, int64_t d) {
  const int64_t K = m * d, M = m * (2 + m);
  Buffer<float> mixes(N * M);
  parallel_for(N, M * K / 4, [&](int64_t n) {
    Buffer<float> row(K);
    widen(x + n * K, row.data(), K);
    const float rstd =
        1.0f / std::sqrt(core().dot(row.data(), row.data(), K) / static_cast<float>(K) + norm_eps);
    Buffer<double> sums(M);
    core().dots_f64(row.data(), fn, M, K, sums.data());
    for (int64_t i = 0; i < M; ++i) mixes[n * M + i] = static_cast<float>(sums[i]) * rstd;
  });
  parallel_for(N, 2000 + iterations * m * m * 20, [&](int64_t n) {
    const float* z = mixes.data() + n * M;
    for (int64_t i = 0; i < m; ++i) {
      pre[n * m + i] = sigmoid(z[i] * scale[0] + base[i]) + eps;
      post[n * m + i] = 2.0f * sigmoid(z[m + i] * scale[1] + base[m + i]);
    }
    float* mixing = comb + n * m * m;
    for (int64_t i = 0; i < m * m; ++i) mixing[i] = z[2 * m + i] * scale[2] + base[2 * m + i];
    sinkhorn(mixing, m, iterations, eps);
  });
}

void hyper_connection_collapse(const bf16* x, const float* pre, bf16* out, int64_t N, int64_t m, int64_t d) {
  parallel_for(N, m * d, [&](int64_t n) {
    Buffer<float> total(d);
    mix_streams(x + n * m * d, pre + n * m, 1, m, d, total.data());
    narrow(total.data(), out + n * d, d);
  });
}

void hyper_connection_expand(const bf16* y, const bf16* x, const float* post, const float* comb, bf16* out,
                             int64_t N, int64_t m, int64_t d) {
  parallel_for(N * m, m * d, [&](int64_t unit) {
    const int64_t n = unit / m, j = unit % m;
    Buffer<float> mixed(d);
    mix_streams(x + n * m * d, comb + n * m * m + j, m, m, d, mixed.data());  // column j of comb
    for (int64_t k = 0; k < d; ++k)
      out[unit * d + k] = to_bf16(post[unit] * from_bf16(y[n * d + k]) + mixed[k]);
  });
}

}  // namespace deepinfer
