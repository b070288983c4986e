/* Crowds: groups too large to compare all pairs of. */
#pragma once
#include "plinth_text/words/word_hashes.h"

/* A document of a crowd and its place in the order. */
typedef struct {
    uint64_t place;
    int64_t document;
} Member;

static int by_place(const void *a, const void *b) {
    uint64_t left = ((const Member *)a)->place, right = ((const Member *)b)->place;
    return (left > right) - (left < right);
}

/* Documents ordered by a hash of the group's key and their id (NULL: a document's number is its id). The caller frees
   them; NULL without memory. */
static inline Member *order_crowd(const int64_t *documents, int64_t count, uint64_t key, const uint64_t *ids) {
    Member *members = malloc(count * sizeof *members);
    if (members == NULL) return NULL;
    for (int64_t i = 0; i < count; i++) {
        uint64_t id = ids ? ids[documents[i]] : (uint64_t)documents[i];
        members[i] = (Member){mix(id ^ key), documents[i]};
    }
    qsort(members, count, sizeof *members, by_place);
    return members;
}
