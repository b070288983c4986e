/* Entries of a fastText dictionary. */
#include "plinth_text/compiled/kernel.h"

/* Bytes of an entry in addition to its name: a zero, the count, the kind. */
enum { ENTRY = 10 };

/* Bytes of the dictionary; -1 where it is damaged. */
KERNEL int64_t entries(u8_in data, int64_t nwords, i64_out starts, i64_out ends, i64_out counts) {
    int64_t at = 0;
    for (int64_t entry = 0; entry < starts.size; entry++) {
        starts.at[entry] = at;
        while (at < data.size && data.at[at] != 0) at++;
        if (at + ENTRY > data.size || data.at[at + 9] != (entry >= nwords)) return -1;
        ends.at[entry] = at;
        memcpy(counts.at + entry, data.at + at + 1, sizeof *counts.at); /* little-endian, as the file */
        at += ENTRY;
    }
    return at;
}
