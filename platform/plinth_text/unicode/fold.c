#include "plinth_text/unicode/fold.h"

KERNEL int64_t fold(u8_in data, int64_t start, int64_t end, u8_out out) { return fold_text(data, start, end, out); }
