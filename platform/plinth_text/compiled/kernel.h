/* Types and helpers of every kernel file.

   A kernel is a static C function marked KERNEL in the folder of the module that declares it. Its parameters have the
   names of the Python function's; arrays are the views below; a plain pointer is a result. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL static
#define INLINE static inline __attribute__((always_inline))

/* T_in: a C-contiguous array that is only read. T_out: one that is written. T_rows_in, T_rows_out: two dimensions. */
#define VIEWS(T, name)                                                                                     \
    typedef struct { const T *at; int64_t size; } name##_in;                                               \
    typedef struct { T *at; int64_t size; } name##_out;                                                    \
    typedef struct { const T *at; int64_t rows, columns; } name##_rows_in;                                 \
    typedef struct { T *at; int64_t rows, columns; } name##_rows_out;

VIEWS(bool, bool)
VIEWS(uint8_t, u8)
VIEWS(uint16_t, u16)
VIEWS(uint32_t, u32)
VIEWS(uint64_t, u64)
VIEWS(int8_t, i8)
VIEWS(int16_t, i16)
VIEWS(int32_t, i32)
VIEWS(int64_t, i64)
VIEWS(float, f32)
VIEWS(double, f64)

/* A kernel with an integer result returns this when memory could not be allocated; Python raises MemoryError. */
#define NO_MEMORY INT64_MIN

INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Quotient and remainder as Python rounds them; the divisor is positive. */
INLINE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
INLINE int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
