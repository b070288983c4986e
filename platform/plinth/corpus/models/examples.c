#include "plinth_text/compiled/kernel.h"

KERNEL void train_epoch(
    i64_in starts, i32_in rows, i64_in labels, f32_in weights, i64_in order, double rate, double damping,
    f32_rows_out table, f32_out bias, f32_rows_out squares, f64_out bias_squares
) {
    int64_t outputs = bias.size;
    for (int64_t n = 0; n < order.size; n++) {
        int64_t doc = order.at[n], first = starts.at[doc], last = starts.at[doc + 1];
        if (first == last) continue;
        for (int64_t k = 0; k < outputs; k++) {
            double margin = 0;
            for (int64_t i = first; i < last; i++) margin += table.at[rows.at[i] * outputs + k];
            margin = margin / (double)(last - first) + bias.at[k];
            bool is_true = outputs > 1 ? labels.at[doc] == k : labels.at[doc] == 1;
            double gradient = (1.0 / (1.0 + exp(-margin)) - is_true) * weights.at[doc];
            double share = gradient / sqrt((double)(last - first));
            for (int64_t i = first; i < last; i++) {
                int64_t at = rows.at[i] * outputs + k;
                squares.at[at] += share * share;
                table.at[at] -= rate * gradient / sqrt(damping + squares.at[at]);
            }
            bias_squares.at[k] += gradient * gradient;
            bias.at[k] -= rate * gradient / sqrt(1.0 + bias_squares.at[k]) / 10.0;
        }
    }
}

/* Margins of documents: a document's rows are those of its words, then those of its pairs, one fewer. */
KERNEL void find_margins(
    i64_in starts, i32_in rows, f32_rows_in table, f32_in bias, int64_t window, f64_rows_out out
) {
    int64_t outputs = bias.size;
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        int64_t first = starts.at[doc], count = (starts.at[doc + 1] - first + 1) / 2;
        int64_t size = window && count > window ? window : count;
        for (int64_t k = 0; k < outputs; k++) {
            double best = size ? -INFINITY : bias.at[k];
            for (int64_t begin = 0; begin < count; begin += max_i64(size, 1)) {
                int64_t start = first + min_i64(begin, count - size);
                double total = 0;
                for (int64_t i = start; i < start + size; i++) total += table.at[rows.at[i] * outputs + k];
                for (int64_t i = start + count; i < start + count + size - 1; i++)
                    total += table.at[rows.at[i] * outputs + k];
                double margin = total / (double)(2 * size - 1) + bias.at[k];
                best = margin > best ? margin : best;
            }
            out.at[doc * outputs + k] = best;
        }
    }
}
