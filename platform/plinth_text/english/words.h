/* The words of a text as spaCy's blank English tokenizer has them, white space left out. */
#pragma once
#include "plinth_text/english/tables.h"

/* The words of data[start:end] into `edges`; returns how many. */
int64_t english_split(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, int32_t *edges)
    __attribute__((visibility("hidden")));
