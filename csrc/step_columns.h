// A plan's rows as the columns that a device's inputs are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "step_plan.h"

namespace deepinfer {

// For S sequences with N rows, of which R yield a token and P have a token that is still to be drawn.
struct StepColumns {
  std::vector<int64_t> positions;        // [N]
  std::vector<int32_t> seq_of_row;       // [N]
  std::vector<int32_t> slots;            // [N] of the row's sequence, as are starts and ends
  std::vector<int32_t> starts;           // [N] first position of the sequence's rows
  std::vector<int32_t> ends;             // [N] last one
  std::vector<int32_t> block_tables;     // [S, width], short ones continued with the null page
  std::vector<int64_t> token_ids;        // [N]
  std::vector<int64_t> context_ids;      // [N, 1 + token_history]: a row's token and those before it; -1 before 0
  std::vector<int64_t> sampled_rows;     // [R]
  std::vector<int64_t> pending_rows;     // [P]
  std::vector<int64_t> pending_sources;  // [P] which of the plan before's R tokens each is
  int64_t table_width = 0;
};

StepColumns columns_of(const StepPlan& plan);

}  // namespace deepinfer
