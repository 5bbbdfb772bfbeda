#include "step_columns.h"

#include <algorithm>

namespace deepinfer {

namespace {

// The token `back` places before a row; -1 before the sequence's start.
int64_t token_before(const StepPlan& plan, size_t sequence, int32_t row, int32_t back) {
  const int32_t first = plan.query_offsets[sequence];
  if (row - back >= first) return plan.token_ids[static_cast<size_t>(row - back)];
  const int32_t beyond = back - (row - first);  // 1 for the token just before the chunk
  return plan.history[sequence * static_cast<size_t>(plan.token_history) +
                      static_cast<size_t>(plan.token_history - beyond)];
}

}  // namespace

StepColumns columns_of(const StepPlan& plan) {
  StepColumns columns;
  const size_t num_rows = plan.token_ids.size(), num_seqs = plan.handles.size();
  for (size_t s = 0; s < num_seqs; ++s) {
    const int64_t width = plan.block_table_offsets[s + 1] - plan.block_table_offsets[s];
    columns.table_width = std::max(columns.table_width, width);
  }
  columns.positions.assign(plan.positions.begin(), plan.positions.end());
  columns.token_ids.assign(plan.token_ids.begin(), plan.token_ids.end());
  for (auto* column : {&columns.seq_of_row, &columns.slots, &columns.starts, &columns.ends}) column->resize(num_rows);
  columns.block_tables.resize(num_seqs * static_cast<size_t>(columns.table_width));
  columns.context_ids.reserve(num_rows * static_cast<size_t>(1 + plan.token_history));
  columns.sampled_rows.reserve(static_cast<size_t>(plan.num_sampled_rows));
  for (size_t s = 0; s < num_seqs; ++s) {
    const int32_t first = plan.query_offsets[s], end = plan.query_offsets[s + 1];
    const auto fill = [&](std::vector<int32_t>& column, int32_t value) {
      std::fill(column.begin() + first, column.begin() + end, value);
    };
    fill(columns.seq_of_row, static_cast<int32_t>(s));
    fill(columns.slots, plan.slots[s]);
    fill(columns.starts, plan.starts[s]);
    fill(columns.ends, plan.starts[s] + plan.num_tokens[s] - 1);
    std::copy(plan.block_table.begin() + plan.block_table_offsets[s],
              plan.block_table.begin() + plan.block_table_offsets[s + 1],
              columns.block_tables.begin() + static_cast<std::ptrdiff_t>(s) * columns.table_width);
    for (int32_t row = first; row < end; ++row) {
      for (int32_t back = 0; back <= plan.token_history; ++back) {
        columns.context_ids.push_back(token_before(plan, s, row, back));
      }
    }
    if (!plan.samples[s]) continue;
    for (int32_t row = end - 1 - plan.num_drafts[s]; row < end; ++row) columns.sampled_rows.push_back(row);
  }
  for (size_t row = 0; row < num_rows && plan.num_pending > 0; ++row) {
    if (plan.token_sources[row] < 0) continue;
    columns.pending_rows.push_back(static_cast<int64_t>(row));
    columns.pending_sources.push_back(plan.token_sources[row]);
  }
  return columns;
}

}  // namespace deepinfer
